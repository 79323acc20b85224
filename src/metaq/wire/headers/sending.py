"""Sends, messages that come back, and half messages (10, 36, 37, 39, 310, 320, 323-326)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import ClassVar, Self

from msgspec import field

from metaq.model.topics.system import AUTO_CREATE_TOPIC
from metaq.wire.headers.codec import Header, Int, Item, Long, items, read_items


class SendHeader(Header, kw_only=True):
    """10, 310, 320 and 324, 325. Sent with V2's one-letter names; both spellings are read."""

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c", default=AUTO_CREATE_TOPIC)
    """The topic whose settings an automatically created one copies."""
    default_topic_queues: Int = field(name="d", default=4)
    queue_id: Int = field(name="e")
    """Below zero lets the broker choose."""
    sys_flag: Int = field(name="f", default=0)
    born_ms: Long = field(name="g")
    flag: Int = field(name="h", default=0)
    properties: str = field(name="i", default="")
    reconsume_times: Int = field(name="j", default=0)
    unit_mode: bool = field(name="k", default=False)
    max_reconsume_times: Int | None = field(name="l", default=None)
    """Only looked at in sends to `%RETRY%` topics: Go sends 0 with every message."""
    batch: bool = field(name="m", default=False)
    broker_name: str | None = field(name="n", default=None)

    LONG_NAMES: ClassVar[dict[str, str]] = {
        "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
        "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
        "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
    }  # fmt: skip

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
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
    """Answers 10, 310, 320. Java needs `MSG_REGION` and `TRACE_ON` beside these; the server adds them."""

    message_id: str = field(name="msgId")
    """The offset id; of a batch, all of them, comma-separated."""
    queue_id: Int
    queue_offset: Long
    """Of a batch, the first."""
    transaction_id: str | None = None


class PushReplyHeader(Header, kw_only=True):
    """326, of a broker: this is the reply to your request. The body is the reply's, compressed if `sys_flag` says so."""

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
    """36: this message failed; deliver it again later, or file it with the dead letters."""

    offset: Long
    """LogOffset of the record that failed."""
    group: str
    delay_level: Int
    """Below zero: straight to the dead letters; 0: the broker chooses; above: that level."""
    origin_message_id: str | None = field(name="originMsgId", default=None)
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    broker_name: str | None = field(name="bname", default=None)
    repeated: bool | None = field(name="metaqRepeated", default=None)
    """Ours: an earlier request like this one may have been answered, and the answer lost."""


class EndTransactionHeader(Header, kw_only=True):
    """37: what became of the local transaction that a half message belongs to."""

    producer_group: str
    half_queue_offset: Long = field(name="tranStateTableOffset")
    """QueueOffset of the half record."""
    log_offset: Long = field(name="commitLogOffset")
    """LogOffset of the half record."""
    outcome: Int = field(name="commitOrRollback")
    """`SysFlag.COMMITTED`, `SysFlag.ROLLED_BACK`, or 0: unknown."""
    from_check: bool = field(name="fromTransactionCheck", default=False)
    """Whether this answers a check."""
    message_id: str = field(name="msgId", default="")
    """The producer's unique id of the message. One that is missing is no error; another message's is, at brokers of ours."""
    transaction_id: str | None = None
    broker_name: str | None = field(name="bname", default=None)


class CheckTransactionHeader(Header, kw_only=True):
    """39, of a broker: how did it end? The body is the half record with the topic and queue that it is for."""

    half_queue_offset: Long = field(name="tranStateTableOffset")
    """QueueOffset of the half record, to be named in the answer."""
    log_offset: Long = field(name="commitLogOffset")
    """LogOffset of the half record, to be named in the answer."""
    message_id: str | None = field(name="msgId", default=None)
    """The producer's unique id of the message."""
    transaction_id: str | None = None
    offset_message_id: str | None = field(name="offsetMsgId", default=None)


class ResumeCheckHeader(Header, kw_only=True):
    """323: ask once more about a half message that was given up."""

    message_id: str = field(name="msgId")
    """The offset id of its record in TRANS_CHECK_MAX_TIME_TOPIC."""
