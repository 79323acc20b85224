"""Sends, messages that come back, and half messages (10, 36, 37, 39, 310, 320, 323-326)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import ClassVar, Self

from msgspec import field

from metaq.model.topics.system import AUTO_CREATE_TOPIC
from metaq.wire.headers.codec import Header, Int, Item, Long, items, read_items


class SendHeader(Header, kw_only=True):
    """SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE (324),
    SEND_REPLY_MESSAGE_V2 (325).

    Written with V2's one-letter names. Codes 10 and 324 have long ones: Go sends 10; both spellings are read.
    """

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c", default=AUTO_CREATE_TOPIC)
    """Template of an automatically created topic."""
    default_topic_queues: Int = field(name="d", default=4)
    queue_id: Int = field(name="e")
    """Negative: the broker chooses."""
    sys_flag: Int = field(name="f", default=0)
    born_ms: Long = field(name="g")
    flag: Int = field(name="h", default=0)
    properties: str = field(name="i", default="")
    reconsume_times: Int = field(name="j", default=0)
    unit_mode: bool = field(name="k", default=False)
    max_reconsume_times: Int | None = field(name="l", default=None)
    """Obeyed in sends to `%RETRY%` topics only: Go sends 0 with every message."""
    batch: bool = field(name="m", default=False)
    broker_name: str | None = field(name="n", default=None)

    LONG_NAMES: ClassVar[dict[str, str]] = {
        "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
        "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
        "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
    }  # fmt: skip

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        # By the fields and not by the code: 310 is the letters' code, but a field `b` is what tells.
        return cls(**read_items(items(cls), ext)) if "b" in ext else cls.from_long_ext(ext)

    @classmethod
    def from_long_ext(cls, ext: Mapping[str, str]) -> Self:
        """The header of code 10 and 324, with long names."""
        return cls(**read_items(_long_send_items(), ext))

    def to_long_ext(self) -> dict[str, str]:
        """The fields under their long names, for code 10 and 324."""
        return {self.LONG_NAMES[letter]: value for letter, value in self.to_ext().items()}


@functools.cache
def _long_send_items() -> tuple[Item, ...]:
    return tuple(item._replace(wire_name=SendHeader.LONG_NAMES[item.wire_name]) for item in items(SendHeader))


class SendReplyHeader(Header, kw_only=True):
    """Answers SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320).

    The server adds `MSG_REGION` and `TRACE_ON`: Java's client reads both, and crashes on an answer without ext fields.
    """

    message_id: str = field(name="msgId")
    """The offset id; of a batch, all of them, comma-separated."""
    queue_id: Int
    queue_offset: Long
    """Of a batch, the first."""
    transaction_id: str | None = None


class PushReplyHeader(Header, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326), broker to client: the reply to a request, its body compressed as `sys_flag`
    says."""

    producer_group: str
    topic: str
    default_topic: str = AUTO_CREATE_TOPIC
    default_topic_queues: Int = field(name="defaultTopicQueueNums", default=4)
    queue_id: Int
    sys_flag: Int = 0
    born_ms: Long = field(name="bornTimestamp")
    flag: Int = 0
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: bool = False
    born_host: str
    """`ip:port` of whoever replied."""
    store_host: str
    """`ip:port` of the broker."""
    store_ms: Long = field(name="storeTimestamp")


class SendBackHeader(Header, kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36): a message failed; deliver it again later, or store it in the dead-letter topic."""

    offset: Long
    """LogOffset of the record that failed."""
    group: str
    delay_level: Int
    """Negative: to the dead letters at once; 0: the broker chooses by the number of retries; else this level."""
    origin_message_id: str | None = field(name="originMsgId", default=None)
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    broker_name: str | None = field(name="bname", default=None)
    repeated: bool | None = field(name="metaqRepeated", default=None)
    """Ours: this may repeat a request that was done and whose answer was lost."""


class EndTransactionHeader(Header, kw_only=True):
    """END_TRANSACTION (37): the outcome of the local transaction of a half message."""

    producer_group: str
    half_queue_offset: Long = field(name="tranStateTableOffset")
    """QueueOffset of the half record."""
    log_offset: Long = field(name="commitLogOffset")
    """LogOffset of the half record."""
    outcome: Int = field(name="commitOrRollback")
    """`SysFlag.COMMITTED`, `SysFlag.ROLLED_BACK`, or 0: unknown."""
    from_check: bool = field(name="fromTransactionCheck", default=False)
    """Whether this answers CHECK_TRANSACTION_STATE."""
    message_id: str = field(name="msgId", default="")
    """UNIQ_KEY of the message. May be missing; MetaQ brokers refuse that of another message."""
    transaction_id: str | None = None
    broker_name: str | None = field(name="bname", default=None)


class CheckTransactionHeader(Header, kw_only=True):
    """CHECK_TRANSACTION_STATE (39), broker to client. The body is the half record with the topic and queue that it is
    for."""

    half_queue_offset: Long = field(name="tranStateTableOffset")
    """QueueOffset of the half record, to be named in the answer."""
    log_offset: Long = field(name="commitLogOffset")
    """LogOffset of the half record, to be named in the answer."""
    message_id: str | None = field(name="msgId", default=None)
    """The producer's unique id of the message."""
    transaction_id: str | None = None
    offset_message_id: str | None = field(name="offsetMsgId", default=None)


class ResumeCheckHeader(Header, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE (323): check a half message again that was given up after transactionCheckMax
    checks."""

    message_id: str = field(name="msgId")
    """The offset id of its record in TRANS_CHECK_MAX_TIME_TOPIC."""
