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
BUILD: Final = Metric("build", _INFO, "Version, Python, and whether the compiled code runs.", of=_SERVERS)
START_TIME: Final = Metric("start_time_seconds", _GAUGE, "When the process was ready.", unit="seconds", of=_SERVERS)
CPU: Final = Metric(
    "cpu_seconds", _COUNTER, "Processor time of the process, of the user's and of the system's.", unit="seconds", of=_SERVERS
)  # fmt: skip
LOOP_LAG: Final = _histogram(
    "loop_lag", "How much later than wanted the event loop ran a timer, ten times a second.", of=_SERVERS
)
CONNECTIONS: Final = Metric(
    "connections", _GAUGE, "Open connections of clients, by protocol server.", ("server",), of=_SERVERS
)
CONNECTIONS_REFUSED: Final = Metric(
    "connections_refused", _COUNTER, "Connections that a limit or a quota has refused, by protocol server.", ("server",), of=_SERVERS,
)  # fmt: skip
PEER_BYTES: Final = Metric(
    "peer_bytes", _GAUGE, "Memory that clients make the process keep: unfinished requests, unread answers, waiting requests.",
    unit="bytes", of=_SERVERS,
)  # fmt: skip
LOG_LINES: Final = Metric(
    "log_lines", _COUNTER, "Lines of the process's log at level WARNING and above.", ("level",), of=_SERVERS
)
REQUESTS: Final = Metric(
    "requests", _COUNTER, "Requests of remoting by name, but for plain sends and pulls, which are in `messages_put` and `pulls`.",
    ("request",), of=_SERVERS,
)  # fmt: skip
FAILURES: Final = Metric(
    "failed_requests", _COUNTER, "Requests of remoting and HTTP that were answered with an error, by reason; `fault`: of no reason's.",
    ("reason",), of=_SERVERS,
)  # fmt: skip
HTTP_REQUESTS: Final = Metric(
    "http_requests", _COUNTER, "Requests of HTTP, by operation of /openapi.json and status.", ("operation", "status"), of=_SERVERS
)  # fmt: skip
QUOTA_REFUSALS: Final = Metric(
    "quota_refusals",
    _COUNTER,
    "Requests and connections that quotas have refused, by what the quota is for.",
    ("kind",),
)

# -- what comes in and goes out
MESSAGES_PUT: Final = Metric("messages_put", _COUNTER, "Messages stored.", ("topic",))
BYTES_PUT: Final = Metric(
    "put_bytes", _COUNTER, "Bytes of stored messages, as records of the log.", ("topic",), "bytes"
)
PUT_FAILURES: Final = Metric("put_failures", _COUNTER, "Sends that the store refused.")
PUT_SECONDS: Final = _histogram(
    "put", "Time of a send in the broker, from its append to its answer; of a sample of the sends."
)
BORN_TO_STORED: Final = _histogram(
    "born_to_stored", "From a message's birth, by its producer's clock, until it was stored; of a sample of those given to consumers.",
)  # fmt: skip
MESSAGES_GOT: Final = Metric("messages_got", _COUNTER, "Messages given to consumers.", ("topic", "group"))
BYTES_GOT: Final = Metric("got_bytes", _COUNTER, "Bytes of messages given to consumers.", ("topic", "group"), "bytes")
STORED_TO_GIVEN: Final = _histogram(
    "stored_to_given", "From a message's being stored until it is given to a consumer, of any group; of a sample."
)
MESSAGES_SENT_BACK: Final = Metric(
    "messages_sent_back", _COUNTER, "Messages that consumers gave back to be tried again.", ("topic", "group")
)
PULLS: Final = Metric("pulls", _COUNTER, "Pulls answered, by whether they had messages: hit or miss.", ("outcome",))
PULL_SECONDS: Final = _histogram("pull", "Time to find what a pull gets, in memory; of a sample of the pulls.")
HELD_PULLS: Final = Metric("held_pulls", _GAUGE, "Pulls that wait for a message.")
HELD_SECONDS: Final = _histogram(
    "held_pull", "How long pulls waited for a message; of a sample, and not by predicates."
)
PREDICATE_MESSAGES: Final = Metric(
    "predicate_messages", _COUNTER,
    "Messages that predicates judged: yes, no, raised (delivered) or failed (delivered: the helper process has ended).", ("outcome",),
)  # fmt: skip
PREDICATE_SECONDS: Final = _histogram("predicate", "Time of a question to a helper process that evaluates predicates.")

# -- the store
LOG_BYTES: Final = Metric("log_bytes", _GAUGE, "Bytes of the log, from its oldest message to its end.", unit="bytes")
LOG_UNFLUSHED: Final = Metric("log_unflushed_bytes", _GAUGE, "Bytes of the log that are not synced yet.", unit="bytes")
LOG_OLDEST: Final = Metric(
    "log_oldest_message_timestamp_seconds", _GAUGE, "Store time of the oldest message.", unit="seconds"
)
FLUSH_SECONDS: Final = _histogram(
    "flush", "Time of a sync of the log, from when it was asked for until that was heard of."
)
FLUSH_BYTES: Final = Metric("flush_bytes", _HISTOGRAM, "Bytes that a sync of the log made durable.", unit="bytes")
DISK_FREE: Final = Metric("disk_free_bytes", _GAUGE, "Free bytes of the log's file system.", unit="bytes")
DISK_SIZE: Final = Metric("disk_size_bytes", _GAUGE, "Bytes of the log's file system.", unit="bytes")
DISK_STEP: Final = Metric(
    "disk_step", _GAUGE, "1 for what the fill of the disk has come to: ok, warn, clean or refuse.", ("step",)
)
STORE_TROUBLE: Final = Metric(
    "store_trouble",
    _GAUGE,
    "1 while the store cannot do something, or has lost something; `metaq cluster` says what.",
)
UNSAVED_TABLES: Final = Metric("unsaved_tables", _GAUGE, "Tables whose last save failed.")
TOPICS: Final = Metric("topics", _GAUGE, "Topics, those of the system included.")
QUEUES: Final = Metric("queues", _GAUGE, "Queues that have had messages.")
GROUPS: Final = Metric("groups", _GAUGE, "Consumer groups with a subscription or an offset.")

# -- groups
GROUP_MEMBERS: Final = Metric("group_members", _GAUGE, "Consumers of a group that are connected.", ("group",))
GROUP_LAG: Final = Metric(
    "group_lag_messages",
    _GAUGE,
    "Messages of a topic that a group has still to consume.",
    ("topic", "group"),
    "messages",
)
GROUP_LAG_SECONDS: Final = Metric(
    "group_lag_seconds", _GAUGE, "Age of the oldest message of a topic that a group has still to consume; 0: there is none.",
    ("topic", "group"), "seconds",
)  # fmt: skip

# -- what is owed
DELAYED: Final = Metric("delayed_messages", _GAUGE, "Messages that wait for their time, by delay level.", ("level",))
DELAY_LATE: Final = _histogram(
    "delay_late", "How much later than due delayed messages were delivered: the first of each batch."
)
HALF_MESSAGES: Final = Metric("half_messages", _GAUGE, "Half messages whose transactions have not ended.")
HALVES_PUT: Final = Metric("half_messages_put", _COUNTER, "Half messages stored: transactions that were begun.")
TRANSACTIONS_ENDED: Final = Metric("transactions_ended", _COUNTER, "Transactions committed or rolled back.")
TRANSACTION_CHECKS: Final = Metric(
    "transaction_checks", _COUNTER, "Producers asked what became of a transaction that they have not ended."
)
TRANSACTIONS_GIVEN_UP: Final = Metric(
    "transactions_given_up", _COUNTER, "Transactions that nobody has ended, kept in TRANS_CHECK_MAX_TIME_TOPIC."
)
STAGED_PARTS: Final = Metric("staged_parts", _GAUGE, "Parts of staged transactions that have not ended.")
STAGED_BYTES: Final = Metric("staged_bytes", _GAUGE, "Bytes of staged transactions that have not ended.", unit="bytes")

# -- replication
LEADS: Final = Metric("leads", _GAUGE, "1 if this broker is a master, 0 if it is a slave.")
SLAVES: Final = Metric("slaves", _GAUGE, "Slaves that are connected to this master.")
REPLICA_LAG: Final = Metric(
    "replica_lag_bytes", _GAUGE, "Bytes of the log that a slave has still to copy.", ("slave",), "bytes"
)
REPLICA_LAG_SECONDS: Final = Metric(
    "replica_lag_seconds", _GAUGE, "How long ago the log was as long as a slave's is, to a tenth of a second; 0: it has all.",
    ("slave",), "seconds",
)  # fmt: skip

# -- groups with failover: only a broker with failover=zookeeper has these
_GROUP: Final = ("cluster", "broker")
FAILOVER_LEADS: Final = Metric("failover_leads", _GAUGE, "1 if this broker leads its group, 0 if it follows.", _GROUP)
FAILOVER_EPOCH: Final = Metric(
    "failover_epoch", _GAUGE, "Number of the newest epoch of its log: grows with each leader.", _GROUP
)
FAILOVER_DOUBT: Final = Metric(
    "failover_in_doubt", _GAUGE, "1 if this broker leads, and acknowledges nothing: ZooKeeper does not answer, or too few are in sync.", _GROUP
)  # fmt: skip
FAILOVER_IN_SYNC: Final = Metric(
    "failover_in_sync_members",
    _GAUGE,
    "Members of the in-sync set, the leader included; 0 where this broker follows.",
    _GROUP,
)
FAILOVER_MINIMUM: Final = Metric(
    "failover_in_sync_minimum",
    _GAUGE,
    "With fewer members of the in-sync set sends are refused: minInSyncReplicas.",
    _GROUP,
)
FAILOVER_LEASE: Final = Metric(
    "failover_lease_seconds", _GAUGE, "For how long this leader still acknowledges if ZooKeeper does not answer any more; 0 where it follows.",
    _GROUP, "seconds",
)  # fmt: skip
FAILOVER_LAG: Final = Metric(
    "failover_member_lag_bytes",
    _GAUGE,
    "Of a leader: bytes of the log that a member has still to copy.",
    (*_GROUP, "member"),
    "bytes",
)
FAILOVER_LAG_SECONDS: Final = Metric(
    "failover_member_lag_seconds", _GAUGE, "Of a leader: how long ago the log was as long as a member's is, to a tenth of a second; 0: it has all.",
    (*_GROUP, "member"), "seconds",
)  # fmt: skip

# -- name servers
_NAMESRV: Final = (Of.NAMESRV,)
NAMESRV_BROKERS: Final = Metric("namesrv_brokers", _GAUGE, "Addresses of brokers that are registered.", of=_NAMESRV)
NAMESRV_TOPICS: Final = Metric("namesrv_topics", _GAUGE, "Topics that have a route.", of=_NAMESRV)
NAMESRV_REGISTRATIONS: Final = Metric("namesrv_registrations", _COUNTER, "Registrations taken.", of=_NAMESRV)
NAMESRV_ROUTES: Final = Metric(
    "namesrv_route_requests", _COUNTER, "Routes asked for, by whether there was one: found or missing.", ("outcome",), of=_NAMESRV
)  # fmt: skip
NAMESRV_REMOVED: Final = Metric(
    "namesrv_brokers_removed", _COUNTER,
    "Addresses of brokers that were removed: unregistered, disconnected, or expired (silent for brokerLeaseMs).", ("why",), of=_NAMESRV,
)  # fmt: skip

# -- clients, by `metaq.client.observing.metrics.ClientMetrics`
_PRODUCER, _CONSUMER = (Of.PRODUCER,), (Of.CONSUMER,)
PRODUCER_MESSAGES: Final = Metric(
    "producer_messages", _COUNTER, "Messages whose send has ended, by whether they were stored: ok or failed.", ("topic", "outcome"),
    of=_PRODUCER,
)  # fmt: skip
PRODUCER_BYTES: Final = Metric(
    "producer_bytes", _COUNTER, "Bytes of the bodies of requests that were sent, as they were sent.", ("topic",), "bytes", _PRODUCER
)  # fmt: skip
PRODUCER_SECONDS: Final = _histogram(
    "producer_request", "From a request's being ready until its outcome is known.", of=_PRODUCER
)
CONSUMER_MESSAGES: Final = Metric(
    "consumer_messages", _COUNTER, "Messages whose handling has ended, by how: success, failed, exception or timeout.",
    ("topic", "group", "outcome"), of=_CONSUMER,
)  # fmt: skip
CONSUMER_SECONDS: Final = _histogram(
    "consumer_handling", "From a message's being handed out until its handling has ended.", ("group",), _CONSUMER
)
CONSUMER_AGE: Final = _histogram(
    "consumer_age", "Age of messages when they were handed out, since they were born.", ("group",), _CONSUMER
)
CONSUMER_REPEATED: Final = Metric(
    "consumer_messages_repeated", _COUNTER, "Messages handed out that had been given back before.", ("topic", "group"), of=_CONSUMER
)  # fmt: skip
CONSUMER_LAG: Final = Metric(
    "consumer_lag_messages", _GAUGE, "Messages behind the last one of each queue that was handed out, as its broker told with it.",
    ("topic", "group"), "messages", _CONSUMER,
)  # fmt: skip
CONSUMER_IN_FLIGHT: Final = Metric(
    "consumer_in_flight", _GAUGE, "Messages that are handed out and not ended.", ("group",), of=_CONSUMER
)

# -- pipelines and queries of Spark
_PIPELINE: Final = (Of.PIPELINE,)
PIPELINE_ROWS: Final = Metric("pipeline_rows", _COUNTER, "Rows read by a query.", ("query",), of=_PIPELINE)
PIPELINE_BATCHES: Final = Metric(
    "pipeline_batches", _COUNTER, "Micro-batches that have ended.", ("query",), of=_PIPELINE
)
PIPELINE_BATCH_SECONDS: Final = _histogram("pipeline_batch", "Time of a micro-batch.", ("query",), _PIPELINE)
PIPELINE_BEHIND: Final = Metric(
    "pipeline_behind_messages", _GAUGE, "Messages that were there and not read when the last micro-batch began.", ("query",), "messages",
    _PIPELINE,
)  # fmt: skip
PIPELINE_LAST: Final = Metric(
    "pipeline_last_batch_timestamp_seconds",
    _GAUGE,
    "When the last micro-batch ended.",
    ("query",),
    "seconds",
    _PIPELINE,
)

ALL: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def of(part: Of) -> tuple[Metric, ...]:
    """Return the metrics that a part of the system has."""
    return tuple(metric for metric in ALL if part in metric.of)
