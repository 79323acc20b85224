"""Message properties: their reserved names and their text form.

The text is `name 0x01 value 0x02 name 0x01 value ...`, UTF-8, at most 32767 bytes, without escapes: names and values
must not hold 0x01 or 0x02. RocketMQ 4.9 writes no trailing 0x02, older clients and Go do; both are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping

PROPERTIES_BYTES_MAX = 32767
NAME_END = "\x01"
PAIR_END = "\x02"

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
CHECK_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
UNIQUE_ID = "UNIQ_KEY"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
REGION = "MSG_REGION"
TRACE = "TRACE_ON"
INSTANCE_ID = "INSTANCE_ID"
"""A producer's namespace."""
CLUSTER = "CLUSTER"
MESSAGE_TYPE = "MSG_TYPE"
REPLY = "reply"
"""Value of `MESSAGE_TYPE` that marks the reply to a request."""
CORRELATION_ID = "CORRELATION_ID"
"""Id that a request and its reply have in common."""
REPLY_TO = "REPLY_TO_CLIENT"
"""Client id of the requester."""
TTL = "TTL"
"""How long the requester waits, ms."""
ARRIVE_TIME = "ARRIVE_TIME"
"""When the reply came to the requester, ms."""
PUSH_TIME = "PUSH_REPLY_TIME"
"""When the broker pushed the reply, ms."""
DUE = "METAQ_DUE"
UNDECODABLE = "METAQ_UNDECODABLE"
"""Ours, in retry and dead-letter topics: why a consumer could not decode the body."""
METAQ_ID = "METAQ_ID"
"""Ours, of a message put by a 1.x client: its id, decimal."""
METAQ_ATTRIBUTE = "METAQ_ATTRIBUTE"
"""Ours: attribute of a message put by a 1.x client, where that is no legal tag."""
METAQ_BLOCK = "METAQ_BLOCK"
"""Ours: the attribute's block is still in the body, as the 1.x client sent it: no property can hold it."""
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"

RESERVED = frozenset(
    {
        KEYS, TAGS, WAIT, DELAY, RETRY_TOPIC, REAL_TOPIC, REAL_QUEUE_ID, TRANSACTION_PREPARED, PRODUCER_GROUP,
        MIN_OFFSET, MAX_OFFSET, UNIQUE_ID, ORIGIN_MESSAGE_ID, RECONSUME_TIME, MAX_RECONSUME_TIMES, REGION, TRACE,
        CLUSTER, MESSAGE_TYPE, CHECK_TIMES, PREPARED_QUEUE_OFFSET, CHECK_IMMUNITY, "CONSUME_START_TIME",
        INSTANCE_ID, CORRELATION_ID, REPLY_TO, TTL, ARRIVE_TIME, PUSH_TIME, "TRANSFER_FLAG",
        "CORRECTION_FLAG", "MQ2_FLAG", "BUYER_ID", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "__STARTDELIVERTIME",
        DUE, UNDECODABLE, METAQ_ID, METAQ_ATTRIBUTE, METAQ_BLOCK,
    }
)  # fmt: skip
"""RocketMQ's reserved names and ours, which users may not set."""

ADDED = (
    UNDECODABLE, WAIT, RECONSUME_TIME, MAX_RECONSUME_TIMES, ORIGIN_MESSAGE_ID, REGION, TRACE, CLUSTER,
)  # fmt: skip
"""Properties that brokers and consumers add to a message, and that it can be retried without; the least useful first."""


def parse(text: str) -> dict[str, str]:
    """Parse a property text. Pieces without 0x01, or with an empty name or value, are skipped, as in Java 4.9."""
    pairs: dict[str, str] = {}
    for piece in text.split(PAIR_END):
        name, found, value = piece.partition(NAME_END)
        if found and name and value:
            pairs[name] = value
    return pairs


def join(pairs: Mapping[str, str]) -> str:
    """Return the property text of `pairs`, without a trailing separator."""
    return PAIR_END.join(f"{name}{NAME_END}{value}" for name, value in pairs.items())


def make_room(pairs: MutableMapping[str, str], names: Iterable[str], bytes_max: int = PROPERTIES_BYTES_MAX) -> bool:
    """Remove these properties, one after the other, until the text has at most `bytes_max` bytes. Returns whether it has."""
    # Half a character cannot be sent, which is for the encoder to say.
    over = len(join(pairs).encode(errors="surrogatepass")) - bytes_max
    for name in names:
        if over <= 0:
            break
        value = pairs.pop(name, None)
        if value is not None:
            over -= len(name) + len(value.encode(errors="surrogatepass")) + len(NAME_END + PAIR_END)
    return over <= 0
