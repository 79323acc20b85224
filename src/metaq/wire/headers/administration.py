"""Administration of a broker (17, 26, 202, 207, 208, 215, 300)."""
# ruff: noqa: RUF009  `wire` makes a dataclass field, as `field` does

from __future__ import annotations

from dataclasses import dataclass

from metaq.model.system import AUTO_CREATE_TOPIC
from metaq.wire.headers.codec import Header, Int, wire


@dataclass(slots=True, kw_only=True)
class CreateTopicHeader(Header):
    """17."""

    topic: str
    default_topic: str = AUTO_CREATE_TOPIC
    read_queues: Int = wire("readQueueNums")
    write_queues: Int = wire("writeQueueNums")
    perm: Int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False


@dataclass(slots=True, kw_only=True)
class TopicHeader(Header):
    """202, 215, 300."""

    topic: str


@dataclass(slots=True, kw_only=True)
class DeleteGroupHeader(Header):
    """207."""

    group: str = wire("groupName")
    remove_offset: bool = False


@dataclass(slots=True, kw_only=True)
class ConsumeStatsHeader(Header):
    """208; without a topic, all that the group has offsets for."""

    consumer_group: str
    topic: str | None = None


@dataclass(slots=True, kw_only=True)
class VersionReplyHeader(Header):
    """Answers 26: the DataVersion of the configuration, as JSON."""

    version: str
