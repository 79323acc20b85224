"""Topics and groups of brokers themselves, listed once.

These tables decide which of them take sends, which are made at a broker's start, and which are hidden from users in
lists.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

AUTO_CREATE_TOPIC: Final = "TBW102"
"""Template of automatic topic creation."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Delayed messages: a queue for each level, whose units have the time of delivery in place of the tag's hash."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Half messages, in queue 0, until their transactions end."""
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Ends of half messages, in queue 0: the body is the QueueOffset in `HALF_TOPIC` of one that needs no more
attention."""
CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages that nobody ended after all checks."""
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""Message traces of clients, unless they name another topic."""

SYSTEM_PREFIX: Final = "rmq_sys_"
"""Prefix of topics that nobody may administer."""
OUR_PREFIX: Final = "rmq_sys_METAQ_"
"""Prefix of topics of our extensions (docs/formats/extensions.md): no client may send to, pull from or administer
them."""

STAGE_TOPIC: Final = OUR_PREFIX + "STAGE"
"""Chunks of staged transactions, in queue 0 (docs/formats/staging.md)."""
TXN_TOPIC: Final = OUR_PREFIX + "TXN"
"""Decisions about staged transactions and their progress, in queue 0."""
POSITIONS_TOPIC: Final = OUR_PREFIX + "POSITIONS"
"""Byte positions of MetaQ 1.x of queue offsets, in queue 0 (docs/formats/positions.md)."""
EPOCHS_TOPIC: Final = OUR_PREFIX + "EPOCHS"
"""Beginnings of epochs, in queue 0, of brokers with failover (docs/formats/failover.md)."""


class SystemTopic(Struct, frozen=True):
    """A topic that every RocketMQ broker has for itself, and no administrator changes."""

    name: str
    queues: int = 0
    """Queues at the broker's start; 0: it is not made then, or an option has the number."""
    takes_sends: bool = False
    """Clients may send to it."""


SYSTEM_TOPICS: Final = (
    SystemTopic("SELF_TEST_TOPIC", queues=1),
    SystemTopic(BENCHMARK_TOPIC, queues=1024, takes_sends=True),
    SystemTopic("OFFSET_MOVED_EVENT", queues=1),
    SystemTopic(SCHEDULE_TOPIC),
    SystemTopic(HALF_TOPIC, queues=1),
    SystemTopic(OP_TOPIC),
    SystemTopic(CHECK_MAX_TOPIC),
    SystemTopic(TRACE_TOPIC, takes_sends=True),
    SystemTopic(AUTO_CREATE_TOPIC, takes_sends=True),
)
"""The broker's name, its cluster's and `reply_topic` are topics too."""
SYSTEM_TOPIC_NAMES: Final = frozenset(topic.name for topic in SYSTEM_TOPICS)
SEND_FORBIDDEN: Final = frozenset(topic.name for topic in SYSTEM_TOPICS if not topic.takes_sends)


def reply_topic(cluster: str) -> str:
    """Return the topic of replies in a cluster (request-reply)."""
    return f"{cluster}_REPLY_TOPIC"


TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""Group of pulls of RocketMQ's tools."""
SYSTEM_GROUPS: Final = (
    TOOLS_GROUP, "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip
"""Groups of every RocketMQ broker from its start."""
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The broker's own group: its offsets in `HALF_TOPIC` and `OP_TOPIC` show which transactions are still open."""
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
"""Prefix of groups that are created even if automatic creation is off."""


def is_system_group(name: str) -> bool:
    """Return whether a group is a broker's own."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)
