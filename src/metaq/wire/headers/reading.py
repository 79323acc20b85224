"""Pulls, positions and look-ups (11, 12, 14, 15, 29-33, 361)."""
# ruff: noqa: RUF009  `wire` makes a dataclass field, as `field` does

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metaq.wire.headers.codec import Header, Int, Long, wire


@dataclass(slots=True, kw_only=True)
class PullHeader(Header):
    """11."""

    COMMIT_OFFSET: ClassVar[int] = 1
    SUSPEND: ClassVar[int] = 2
    SUBSCRIPTION: ClassVar[int] = 4
    """Bits of `sys_flag`: commit_offset is valid; may be held; subscription here beats the heartbeat's."""

    group: str = wire("consumerGroup")
    topic: str
    queue_id: Int
    queue_offset: Long
    max_messages: Int = wire("maxMsgNums")
    sys_flag: Int
    commit_offset: Long = 0
    suspend_ms: Long = wire("suspendTimeoutMillis", 0)
    subscription: str | None = None
    sub_version: Long = 0
    expression_type: str | None = None
    broker_name: str | None = wire("bname", None)
    max_msg_bytes: Int | None = None
    """Ours (docs/formats/extensions.md): lifts the limits of 32 messages and 256 KiB."""


@dataclass(slots=True, kw_only=True)
class PullReplyHeader(Header):
    """Answers 11 with code 0, 19, 20 or 21: clients decode all four fields for each."""

    suggest_broker_id: Long = wire("suggestWhichBrokerId", 0)
    next_offset: Long = wire("nextBeginOffset")
    min_offset: Long
    max_offset: Long


@dataclass(slots=True, kw_only=True)
class QueueHeader(Header):
    """30, 31, 32."""

    topic: str
    queue_id: Int
    broker_name: str | None = wire("bname", None)


@dataclass(slots=True, kw_only=True)
class SearchOffsetHeader(Header):
    """29: the offset at a store time in milliseconds."""

    topic: str
    queue_id: Int
    timestamp: Long
    broker_name: str | None = wire("bname", None)


@dataclass(slots=True, kw_only=True)
class OffsetReplyHeader(Header):
    """Answers 14, 29, 30, 31."""

    offset: Long


@dataclass(slots=True, kw_only=True)
class TimestampReplyHeader(Header):
    """Answers 32; -1 for an empty queue."""

    timestamp: Long


@dataclass(slots=True, kw_only=True)
class QueryOffsetHeader(Header):
    """14."""

    group: str = wire("consumerGroup")
    topic: str
    queue_id: Int
    broker_name: str | None = wire("bname", None)


@dataclass(slots=True, kw_only=True)
class UpdateOffsetHeader(Header):
    """15."""

    group: str = wire("consumerGroup")
    topic: str
    queue_id: Int
    commit_offset: Long
    broker_name: str | None = wire("bname", None)


@dataclass(slots=True, kw_only=True)
class QueryMessageHeader(Header):
    """12: look messages up by key. Times in ms, both inclusive."""

    topic: str
    key: str
    max_messages: Int = wire("maxNum")
    begin_ms: Long = wire("beginTimestamp")
    end_ms: Long = wire("endTimestamp")
    unique_id_query: bool = wire("_UNIQUE_KEY_QUERY", default=False)


@dataclass(slots=True, kw_only=True)
class QueryMessageReplyHeader(Header):
    """Answers 12."""

    index_last_update_ms: Long = wire("indexLastUpdateTimestamp")
    index_last_update_offset: Long = wire("indexLastUpdatePhyoffset")


@dataclass(slots=True, kw_only=True)
class ViewMessageHeader(Header):
    """33: the record at a LogOffset."""

    offset: Long
