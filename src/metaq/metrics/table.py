"""The metrics of brokers and name servers. docs/metrics.md is made from it.

Counts are since the start of the process. Sizes are bytes, durations seconds, moments seconds since 1970.
"""

from __future__ import annotations

from typing import Final

from metaq.metrics.metric import Kind, Metric

_COUNTER, _GAUGE, _HISTOGRAM, _INFO = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM, Kind.INFO

# -- the process
BUILD: Final = Metric("build", _INFO, "Version, Python, and whether the compiled code runs.")
START_TIME: Final = Metric("start_time_seconds", _GAUGE, "When the process was ready.", unit="seconds")
LOOP_LAG: Final = Metric(
    "loop_lag_seconds", _HISTOGRAM, "How much later than wanted the event loop ran a timer, ten times a second.",
    unit="seconds",
)  # fmt: skip
CONNECTIONS: Final = Metric("connections", _GAUGE, "Open connections of clients, by protocol server.", ("server",))
PEER_BYTES: Final = Metric(
    "peer_bytes", _GAUGE, "Memory that clients make the process keep: unfinished requests, unread answers, waiting requests.",
    unit="bytes",
)  # fmt: skip
LOG_LINES: Final = Metric("log_lines", _COUNTER, "Lines of the process's log at level WARNING and above.", ("level",))

# -- what comes in and goes out
MESSAGES_PUT: Final = Metric("messages_put", _COUNTER, "Messages stored.", ("topic",))
BYTES_PUT: Final = Metric(
    "put_bytes", _COUNTER, "Bytes of stored messages, as records of the log.", ("topic",), "bytes"
)
PUT_FAILURES: Final = Metric("put_failures", _COUNTER, "Sends that the store refused.")
PUT_SECONDS: Final = Metric(
    "put_seconds", _HISTOGRAM, "Time of a send in the broker, from its append to its answer; of a sample of the sends.",
    unit="seconds",
)  # fmt: skip
MESSAGES_GOT: Final = Metric("messages_got", _COUNTER, "Messages given to consumers.", ("topic", "group"))
BYTES_GOT: Final = Metric("got_bytes", _COUNTER, "Bytes of messages given to consumers.", ("topic", "group"), "bytes")
MESSAGES_SENT_BACK: Final = Metric(
    "messages_sent_back", _COUNTER, "Messages that consumers gave back to be tried again.", ("topic", "group")
)
PULLS: Final = Metric("pulls", _COUNTER, "Pulls answered, by whether they had messages: hit or miss.", ("outcome",))
HELD_PULLS: Final = Metric("held_pulls", _GAUGE, "Pulls that wait for a message.")

# -- the store
LOG_BYTES: Final = Metric("log_bytes", _GAUGE, "Bytes of the log, from its oldest message to its end.", unit="bytes")
LOG_UNFLUSHED: Final = Metric("log_unflushed_bytes", _GAUGE, "Bytes of the log that are not synced yet.", unit="bytes")
LOG_OLDEST: Final = Metric(
    "log_oldest_message_timestamp_seconds", _GAUGE, "Store time of the oldest message.", unit="seconds"
)
DISK_FREE: Final = Metric("disk_free_bytes", _GAUGE, "Free bytes of the log's file system.", unit="bytes")
DISK_SIZE: Final = Metric("disk_size_bytes", _GAUGE, "Bytes of the log's file system.", unit="bytes")
DISK_STEP: Final = Metric(
    "disk_step", _GAUGE, "1 for what the fill of the disk has come to: ok, warn, clean or refuse.", ("step",)
)
STORE_TROUBLE: Final = Metric(
    "store_trouble",
    _GAUGE,
    "1 while the store cannot do something, or has lost something; `metaq broker show` says what.",
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
HALF_MESSAGES: Final = Metric("half_messages", _GAUGE, "Half messages whose transactions have not ended.")
STAGED_PARTS: Final = Metric("staged_parts", _GAUGE, "Parts of staged transactions that have not ended.")
STAGED_BYTES: Final = Metric("staged_bytes", _GAUGE, "Bytes of staged transactions that have not ended.", unit="bytes")

# -- replication
LEADS: Final = Metric("leads", _GAUGE, "1 if this broker is a master, 0 if it is a slave.")
SLAVES: Final = Metric("slaves", _GAUGE, "Slaves that are connected to this master.")
REPLICA_LAG: Final = Metric(
    "replica_lag_bytes", _GAUGE, "Bytes of the log that a slave has still to copy.", ("slave",), "bytes"
)

ALL: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
