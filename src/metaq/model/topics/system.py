"""The topics and groups that brokers have for themselves, listed once.

Who may send to them, which are made when a broker starts and what users do not see in lists all follow from here: a new
one is an entry of these tables.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

AUTO_CREATE_TOPIC: Final = "TBW102"
"""The template that automatic topic creation copies (RocketMQ 4.9, section 5.1 of its broker)."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Where delayed messages wait: a queue for each level, whose units hold the time of delivery in place of a tag hash."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Where half messages wait for the end of their transactions, in queue 0."""
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Queue 0 tells which half messages need no more attention: the body is a QueueOffset of `HALF_TOPIC`."""
CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where half messages are kept that nobody ended, however often the broker asked."""
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""Where clients that trace tell what they send and handle, unless they are told another topic."""

SYSTEM_PREFIX: Final = "rmq_sys_"
"""Topics whose names begin so are nobody's to administer."""
OUR_PREFIX: Final = "rmq_sys_METAQ_"
"""Topics of our extensions (docs/formats/extensions.md): no client may send to, pull from or administer them."""

STAGE_TOPIC: Final = OUR_PREFIX + "STAGE"
"""Queue 0: the chunks of staged transactions (docs/formats/staging.md)."""
TXN_TOPIC: Final = OUR_PREFIX + "TXN"
"""Queue 0: what was decided about staged transactions, and how far that is done."""
POSITIONS_TOPIC: Final = OUR_PREFIX + "POSITIONS"
"""Queue 0: which byte position of MetaQ 1.x a queue offset has (docs/formats/positions.md)."""


class SystemTopic(Struct, frozen=True):
    """A topic that every RocketMQ broker has for itself, and no administrator changes."""

    name: str
    queues: int = 0
    """It is made with so many at the start; 0: it is not, or a setting says how many."""
    takes_sends: bool = False
    """Whether clients may send to it."""


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
"""A broker's name and its cluster's are topics too, and so is `reply_topic`."""
SYSTEM_TOPIC_NAMES: Final = frozenset(topic.name for topic in SYSTEM_TOPICS)
SEND_FORBIDDEN: Final = frozenset(topic.name for topic in SYSTEM_TOPICS if not topic.takes_sends)


def reply_topic(cluster: str) -> str:
    """The topic that carries the answers of a cluster's request-reply clients."""
    return f"{cluster}_REPLY_TOPIC"


TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""Pulls without a group of their own are counted there."""
SYSTEM_GROUPS: Final = (
    TOOLS_GROUP, "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip
"""Groups that every RocketMQ broker has from its start."""
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The broker's own: its positions in `HALF_TOPIC` and `OP_TOPIC` say which transactions are still open."""
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
"""Groups whose names begin so are made even where automatic creation is off."""
