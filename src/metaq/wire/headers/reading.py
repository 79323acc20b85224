"""Pulls, positions and look-ups (11, 12, 14, 15, 29-33, 361)."""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec import field

from metaq.wire.headers.codec import Header, Int, Long

GENERATION: Final = "metaqGeneration"
"""Ours (docs/formats/extensions.md): the LogOffset at which the topic of that name was last deleted; 0: never."""


class PullHeader(Header, kw_only=True):
    """PULL_MESSAGE (11)."""

    COMMIT_OFFSET: ClassVar[int] = 1
    SUSPEND: ClassVar[int] = 2
    SUBSCRIPTION: ClassVar[int] = 4
    """Bits of `sys_flag`: `commit_offset` is valid; the pull may be held; `subscription` here beats the heartbeat's."""

    group: str = field(name="consumerGroup")
    topic: str
    queue_id: Int
    queue_offset: Long
    max_messages: Int = field(name="maxMsgNums")
    sys_flag: Int
    commit_offset: Long = 0
    suspend_ms: Long = field(name="suspendTimeoutMillis", default=0)
    subscription: str | None = None
    sub_version: Long = 0
    expression_type: str | None = None
    broker_name: str | None = field(name="bname", default=None)
    max_msg_bytes: Int | None = None
    """Ours (docs/formats/extensions.md): lifts the limits of 32 messages and 256 KiB."""


class PullReplyHeader(Header, kw_only=True):
    """Answers PULL_MESSAGE (11) with code 0, 19, 20 or 21: Java's client decodes all four for each of them."""

    suggest_broker_id: Long = field(name="suggestWhichBrokerId", default=0)
    next_offset: Long = field(name="nextBeginOffset")
    min_offset: Long
    max_offset: Long


class QueueHeader(Header, kw_only=True):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32).

    `wants_generation`, ours, with 31: the answer tells the topic's generation too.
    """

    topic: str
    queue_id: Int
    wants_generation: bool | None = field(name=GENERATION, default=None)
    broker_name: str | None = field(name="bname", default=None)


class SearchOffsetHeader(Header, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29): the offset at a store time, ms."""

    topic: str
    queue_id: Int
    timestamp: Long
    broker_name: str | None = field(name="bname", default=None)


class OffsetReplyHeader(Header, kw_only=True):
    """Answers QUERY_CONSUMER_OFFSET (14), SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET (30), GET_MIN_OFFSET (31). `generation`, ours: of the topic, if it was asked for."""

    offset: Long
    generation: Long | None = field(name=GENERATION, default=None)


class TimestampReplyHeader(Header, kw_only=True):
    """Answers GET_EARLIEST_MSG_STORETIME (32); -1 for an empty queue."""

    timestamp: Long


class QueryOffsetHeader(Header, kw_only=True):
    """QUERY_CONSUMER_OFFSET (14). False in RocketMQ 5's `setZeroIfNotFound`: no 0 for a group without progress."""

    group: str = field(name="consumerGroup")
    topic: str
    queue_id: Int
    zero_if_not_found: bool | None = field(name="setZeroIfNotFound", default=None)
    broker_name: str | None = field(name="bname", default=None)


class UpdateOffsetHeader(Header, kw_only=True):
    """UPDATE_CONSUMER_OFFSET (15). Ours: `generation`: of the topic that the offset is of; no other takes it. `instead_of`: the offset
    that it replaces; another one stays."""

    group: str = field(name="consumerGroup")
    topic: str
    queue_id: Int
    commit_offset: Long
    generation: Long | None = field(name=GENERATION, default=None)
    instead_of: Long | None = field(name="metaqInsteadOf", default=None)
    broker_name: str | None = field(name="bname", default=None)


class QueryMessageHeader(Header, kw_only=True):
    """QUERY_MESSAGE (12): messages by key. Times in ms, both inclusive."""

    topic: str
    key: str
    max_messages: Int = field(name="maxNum")
    begin_ms: Long = field(name="beginTimestamp")
    end_ms: Long = field(name="endTimestamp")
    unique_id_query: bool = field(name="_UNIQUE_KEY_QUERY", default=False)


class QueryMessageReplyHeader(Header, kw_only=True):
    """Answers QUERY_MESSAGE (12)."""

    index_last_update_ms: Long = field(name="indexLastUpdateTimestamp")
    index_last_update_offset: Long = field(name="indexLastUpdatePhyoffset")


class ViewMessageHeader(Header, kw_only=True):
    """VIEW_MESSAGE_BY_ID (33): the record at a LogOffset."""

    offset: Long
