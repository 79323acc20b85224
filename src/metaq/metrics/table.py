"""The metrics of brokers, name servers, clients and pipelines. docs/prometheus.md is made from it (`metaq.metrics.reference`).

Counts are since the start of the process. Sizes are bytes, durations seconds, moments seconds since 1970.
"""

from __future__ import annotations

from typing import Final

from metaq.metrics.metric import Kind, Metric, Of

_COUNTER, _GAUGE, _HISTOGRAM, _INFO = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM, Kind.INFO
_SERVERS: Final = (Of.BROKER, Of.NAMESRV)


def _histogram(name: str, text: str, labels: tuple[str, ...] = (), of: tuple[Of, ...] = (Of.BROKER,)) -> Metric:
    return Metric(f"{name}_seconds", _HISTOGRAM, text, labels, "seconds", of)


# -- the process
BUILD: Final = Metric(
    "build",
    _INFO,
    "Constant 1; the labels give the version of MetaQ, the version of Python, and whether the compiled extension is used.",
    of=_SERVERS,
)
START_TIME: Final = Metric(
    "start_time_seconds", _GAUGE, "Time at which the process was ready.", unit="seconds", of=_SERVERS
)
CPU: Final = Metric(
    "cpu_seconds", _COUNTER, "Processor time of the process, in user and system mode.", unit="seconds", of=_SERVERS
)  # fmt: skip
LOOP_LAG: Final = _histogram(
    "loop_lag", "How much later than scheduled the event loop runs a timer; measured ten times a second.", of=_SERVERS
)
CONNECTIONS: Final = Metric(
    "connections", _GAUGE, "Open connections of clients, by protocol server.", ("server",), of=_SERVERS
)
CONNECTIONS_REFUSED: Final = Metric(
    "connections_refused", _COUNTER, "Connections that were refused because of a limit or a quota, by protocol server.", ("server",), of=_SERVERS,
)  # fmt: skip
PEER_BYTES: Final = Metric(
    "peer_bytes", _GAUGE, "Memory that clients make the server use: incomplete requests, unread answers, waiting requests and so on (peerBytesMax).",
    unit="bytes", of=_SERVERS,
)  # fmt: skip
LOG_LINES: Final = Metric(
    "log_lines",
    _COUNTER,
    "Lines at level WARNING and above in the log of the process, by level.",
    ("level",),
    of=_SERVERS,
)
REQUESTS: Final = Metric(
    "requests", _COUNTER, "Requests of the remoting protocol by name, without plain sends and pulls, which metaq_messages_put_total and metaq_pulls_total count.",
    ("request",), of=_SERVERS,
)  # fmt: skip
FAILURES: Final = Metric(
    "failed_requests", _COUNTER, "Requests of remoting and HTTP that were answered with an error, by reason; `fault` is an unexpected error of the server.",
    ("reason",), of=_SERVERS,
)  # fmt: skip
HTTP_REQUESTS: Final = Metric(
    "http_requests", _COUNTER, "HTTP requests, by operation of /openapi.json and status code.", ("operation", "status"), of=_SERVERS
)  # fmt: skip
QUOTA_REFUSALS: Final = Metric(
    "quota_refusals",
    _COUNTER,
    "Requests and connections that were refused because of a quota, by kind of quota: client, account or address.",
    ("kind",),
)

# -- what comes in and goes out
MESSAGES_PUT: Final = Metric("messages_put", _COUNTER, "Messages stored.", ("topic",))
BYTES_PUT: Final = Metric(
    "put_bytes", _COUNTER, "Bytes of stored messages, as records in the commit log.", ("topic",), "bytes"
)
PUT_FAILURES: Final = Metric("put_failures", _COUNTER, "Sends that the store refused.")
PUT_SECONDS: Final = _histogram(
    "put", "Time of a send in the broker, from the append to the answer; measured for a sample of the sends."
)
BORN_TO_STORED: Final = _histogram(
    "born_to_stored", "Time from the creation of a message, by its producer's clock, until it was stored; measured for a sample of the messages delivered to consumers.",
)  # fmt: skip
MESSAGES_GOT: Final = Metric("messages_got", _COUNTER, "Messages delivered to consumers.", ("topic", "group"))
BYTES_GOT: Final = Metric(
    "got_bytes", _COUNTER, "Bytes of messages delivered to consumers.", ("topic", "group"), "bytes"
)
STORED_TO_GIVEN: Final = _histogram(
    "stored_to_given",
    "Time from the storing of a message until its delivery to a consumer of any group; measured for a sample.",
)
MESSAGES_SENT_BACK: Final = Metric(
    "messages_sent_back", _COUNTER, "Messages that consumers sent back to be delivered again later.", ("topic", "group")
)
PULLS: Final = Metric("pulls", _COUNTER, "Pulls answered: `hit` with messages, `miss` without.", ("outcome",))
PULL_SECONDS: Final = _histogram(
    "pull", "Time to find the messages for a pull in memory; measured for a sample of the pulls."
)
HELD_PULLS: Final = Metric("held_pulls", _GAUGE, "Pulls that wait for a message (long polling).")
HELD_SECONDS: Final = _histogram(
    "held_pull",
    "Time for which pulls waited for a message (long polling); measured for a sample, without pulls by predicates.",
)
PREDICATE_MESSAGES: Final = Metric(
    "predicate_messages", _COUNTER,
    "Messages that predicates judged: `yes` (delivered), `no`, `raised` (an exception; delivered) or `failed` (the helper process ended; delivered).", ("outcome",),
)  # fmt: skip
PREDICATE_SECONDS: Final = _histogram(
    "predicate", "Time until a helper process of predicates answered a question of the broker."
)

# -- the store
LOG_BYTES: Final = Metric(
    "log_bytes", _GAUGE, "Bytes of the commit log, from its oldest message to its end.", unit="bytes"
)
LOG_UNFLUSHED: Final = Metric(
    "log_unflushed_bytes", _GAUGE, "Bytes of the commit log that are not synced to disk yet.", unit="bytes"
)
LOG_OLDEST: Final = Metric(
    "log_oldest_message_timestamp_seconds",
    _GAUGE,
    "Time at which the oldest message in the commit log was stored.",
    unit="seconds",
)
FLUSH_SECONDS: Final = _histogram(
    "flush", "Time of a sync of the commit log to disk, from the request until its end is noticed."
)
FLUSH_BYTES: Final = Metric(
    "flush_bytes", _HISTOGRAM, "Bytes of the commit log that one sync wrote to disk.", unit="bytes"
)
DISK_FREE: Final = Metric("disk_free_bytes", _GAUGE, "Free bytes of the file system of the commit log.", unit="bytes")
DISK_SIZE: Final = Metric("disk_size_bytes", _GAUGE, "Size of the file system of the commit log.", unit="bytes")
DISK_STEP: Final = Metric(
    "disk_step",
    _GAUGE,
    "1 for the step that applies to the fullness of the disk, 0 for the others: `ok`, `warn` (expired files are deleted at any hour), `clean` (the oldest files are deleted early) or `refuse` (sends are refused).",
    ("step",),
)
STORE_TROUBLE: Final = Metric(
    "store_trouble",
    _GAUGE,
    "1 while the store cannot do something, or has lost something; `metaq cluster` says what.",
)
UNSAVED_TABLES: Final = Metric(
    "unsaved_tables", _GAUGE, "Tables (topics, groups, offsets and so on) whose last save failed."
)
TOPICS: Final = Metric("topics", _GAUGE, "Topics, system topics included.")
QUEUES: Final = Metric("queues", _GAUGE, "Queues that have had messages.")
GROUPS: Final = Metric("groups", _GAUGE, "Consumer groups with a subscription or a committed offset.")

# -- groups
GROUP_MEMBERS: Final = Metric("group_members", _GAUGE, "Connected consumers of a group.", ("group",))
GROUP_LAG: Final = Metric(
    "group_lag_messages",
    _GAUGE,
    "Messages of a topic that a group has not consumed yet.",
    ("topic", "group"),
    "messages",
)
GROUP_LAG_SECONDS: Final = Metric(
    "group_lag_seconds", _GAUGE, "Age of the oldest message of a topic that a group has not consumed yet; 0 if there is none.",
    ("topic", "group"), "seconds",
)  # fmt: skip

# -- what is owed
DELAYED: Final = Metric(
    "delayed_messages", _GAUGE, "Delayed messages that are not due yet, by delay level.", ("level",)
)
DELAY_LATE: Final = _histogram(
    "delay_late",
    "How much later than due delayed messages were delivered; measured for the first message of each batch.",
)
HALF_MESSAGES: Final = Metric("half_messages", _GAUGE, "Half messages whose transactions have not ended.")
HALVES_PUT: Final = Metric(
    "half_messages_put", _COUNTER, "Half messages stored, which is the number of transactions begun."
)
TRANSACTIONS_ENDED: Final = Metric("transactions_ended", _COUNTER, "Transactions that were committed or rolled back.")
TRANSACTION_CHECKS: Final = Metric(
    "transaction_checks", _COUNTER, "Requests to producers for the outcome of a transaction that has not ended."
)
TRANSACTIONS_GIVEN_UP: Final = Metric(
    "transactions_given_up",
    _COUNTER,
    "Transactions that were given up after transactionCheckMax checks; their half messages are in TRANS_CHECK_MAX_TIME_TOPIC.",
)
STAGED_PARTS: Final = Metric("staged_parts", _GAUGE, "Parts of staged transactions that have not ended.")
STAGED_BYTES: Final = Metric("staged_bytes", _GAUGE, "Bytes of staged transactions that have not ended.", unit="bytes")

# -- replication
LEADS: Final = Metric("leads", _GAUGE, "1 if this broker is a master, 0 if it is a slave.")
SLAVES: Final = Metric("slaves", _GAUGE, "Slaves that are connected to this master.")
REPLICA_LAG: Final = Metric(
    "replica_lag_bytes", _GAUGE, "Bytes of the commit log that a slave has not copied yet.", ("slave",), "bytes"
)
REPLICA_LAG_SECONDS: Final = Metric(
    "replica_lag_seconds", _GAUGE, "Time since the master's log was as long as the slave's is now, to a tenth of a second; 0 if the slave has everything.",
    ("slave",), "seconds",
)  # fmt: skip

# -- groups with failover: only a broker with failover=zookeeper has these
_GROUP: Final = ("cluster", "broker")
FAILOVER_LEADS: Final = Metric("failover_leads", _GAUGE, "1 if this broker leads its group, 0 if it follows.", _GROUP)
FAILOVER_EPOCH: Final = Metric(
    "failover_epoch", _GAUGE, "Number of the newest epoch in this broker's log; it grows with each new leader.", _GROUP
)
FAILOVER_DOUBT: Final = Metric(
    "failover_in_doubt", _GAUGE, "1 if this broker leads but acknowledges nothing, because ZooKeeper does not answer or too few brokers are in sync.", _GROUP
)  # fmt: skip
FAILOVER_IN_SYNC: Final = Metric(
    "failover_in_sync_members",
    _GAUGE,
    "Members of the in-sync set, the leader included; 0 at a follower.",
    _GROUP,
)
FAILOVER_MINIMUM: Final = Metric(
    "failover_in_sync_minimum",
    _GAUGE,
    "Value of minInSyncReplicas: with fewer members in the in-sync set sends are refused.",
    _GROUP,
)
FAILOVER_LEASE: Final = Metric(
    "failover_lease_seconds", _GAUGE, "How long this leader would still acknowledge sends if ZooKeeper stopped answering now; 0 at a follower.",
    _GROUP, "seconds",
)  # fmt: skip
FAILOVER_LAG: Final = Metric(
    "failover_member_lag_bytes",
    _GAUGE,
    "At a leader, bytes of the commit log that a member has not copied yet.",
    (*_GROUP, "member"),
    "bytes",
)
FAILOVER_LAG_SECONDS: Final = Metric(
    "failover_member_lag_seconds", _GAUGE, "At a leader, time since its log was as long as the member's is now, to a tenth of a second; 0 if the member has everything.",
    (*_GROUP, "member"), "seconds",
)  # fmt: skip

# -- name servers
_NAMESRV: Final = (Of.NAMESRV,)
NAMESRV_BROKERS: Final = Metric("namesrv_brokers", _GAUGE, "Addresses of registered brokers.", of=_NAMESRV)
NAMESRV_TOPICS: Final = Metric("namesrv_topics", _GAUGE, "Topics that have a route.", of=_NAMESRV)
NAMESRV_REGISTRATIONS: Final = Metric(
    "namesrv_registrations", _COUNTER, "Registrations of brokers that were accepted.", of=_NAMESRV
)
NAMESRV_ROUTES: Final = Metric(
    "namesrv_route_requests", _COUNTER, "Requests for routes, by outcome: `found` or `missing`.", ("outcome",), of=_NAMESRV
)  # fmt: skip
NAMESRV_REMOVED: Final = Metric(
    "namesrv_brokers_removed", _COUNTER,
    "Addresses of brokers that were removed, by reason: `unregistered`, `disconnected`, or `expired` (no registration for brokerLeaseMs).", ("why",), of=_NAMESRV,
)  # fmt: skip

# -- clients, by `metaq.client.observing.metrics.ClientMetrics`
_PRODUCER, _CONSUMER = (Of.PRODUCER,), (Of.CONSUMER,)
PRODUCER_MESSAGES: Final = Metric(
    "producer_messages", _COUNTER, "Messages whose send has ended, by outcome: `ok` (stored) or `failed`.", ("topic", "outcome"),
    of=_PRODUCER,
)  # fmt: skip
PRODUCER_BYTES: Final = Metric(
    "producer_bytes", _COUNTER, "Bytes of message bodies in the requests that were sent, compressed if they were.", ("topic",), "bytes", _PRODUCER
)  # fmt: skip
PRODUCER_SECONDS: Final = _histogram(
    "producer_request", "Time from when a request is ready to be sent until its outcome is known.", of=_PRODUCER
)
CONSUMER_MESSAGES: Final = Metric(
    "consumer_messages", _COUNTER, "Messages whose handling has ended, by outcome: `success`, `failed`, `exception` or `timeout`.",
    ("topic", "group", "outcome"), of=_CONSUMER,
)  # fmt: skip
CONSUMER_SECONDS: Final = _histogram(
    "consumer_handling",
    "Time from when a message is handed to the application until its handling has ended.",
    ("group",),
    _CONSUMER,
)
CONSUMER_AGE: Final = _histogram(
    "consumer_age",
    "Age of messages, since their creation, when they are handed to the application.",
    ("group",),
    _CONSUMER,
)
CONSUMER_REPEATED: Final = Metric(
    "consumer_messages_repeated", _COUNTER, "Messages handed to the application that had been given back before, and were delivered again.", ("topic", "group"), of=_CONSUMER
)  # fmt: skip
CONSUMER_LAG: Final = Metric(
    "consumer_lag_messages", _GAUGE, "Messages behind the last one of each queue that was handed to the application, as the broker said with that message.",
    ("topic", "group"), "messages", _CONSUMER,
)  # fmt: skip
CONSUMER_IN_FLIGHT: Final = Metric(
    "consumer_in_flight",
    _GAUGE,
    "Messages that were handed to the application and whose handling has not ended.",
    ("group",),
    of=_CONSUMER,
)

# -- pipelines and queries of Spark
_PIPELINE: Final = (Of.PIPELINE,)
PIPELINE_ROWS: Final = Metric("pipeline_rows", _COUNTER, "Rows that a query has read.", ("query",), of=_PIPELINE)
PIPELINE_BATCHES: Final = Metric(
    "pipeline_batches", _COUNTER, "Micro-batches that have ended.", ("query",), of=_PIPELINE
)
PIPELINE_BATCH_SECONDS: Final = _histogram("pipeline_batch", "Duration of a micro-batch.", ("query",), _PIPELINE)
PIPELINE_BEHIND: Final = Metric(
    "pipeline_behind_messages", _GAUGE, "Messages that were stored but not read yet when the last micro-batch began.", ("query",), "messages",
    _PIPELINE,
)  # fmt: skip
PIPELINE_LAST: Final = Metric(
    "pipeline_last_batch_timestamp_seconds",
    _GAUGE,
    "Time at which the last micro-batch ended.",
    ("query",),
    "seconds",
    _PIPELINE,
)

ALL: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def of(part: Of) -> tuple[Metric, ...]:
    """Return the metrics that a part of the system has."""
    return tuple(metric for metric in ALL if part in metric.of)
