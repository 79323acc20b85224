"""Clients and groups (35, 38, 40, 203, 204), and administration of a broker (17, 26, 202, 207, 208, 215, 220, 222, 300, 30010)."""

from __future__ import annotations

from msgspec import field

from metaq.model.topics.system import AUTO_CREATE_TOPIC
from metaq.wire.headers.codec import Header, Int, Long


class CreateTopicHeader(Header, kw_only=True):
    """17."""

    topic: str
    default_topic: str = AUTO_CREATE_TOPIC
    read_queues: Int = field(name="readQueueNums")
    write_queues: Int = field(name="writeQueueNums")
    perm: Int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False


class TopicHeader(Header, kw_only=True):
    """202, 215, 300."""

    topic: str


class DeleteGroupHeader(Header, kw_only=True):
    """207."""

    group: str = field(name="groupName")
    remove_offset: bool = False


class ConsumeStatsHeader(Header, kw_only=True):
    """208; without a topic, all that the group has offsets for."""

    consumer_group: str
    topic: str | None = None


class ResetOffsetHeader(Header, kw_only=True):
    """220, 222: to the first message stored at `timestamp` (milliseconds), -1: to the end."""

    topic: str
    group: str
    timestamp: Long
    force: bool = field(name="isForce", default=False)


class ClosePartitionsHeader(Header, kw_only=True):
    """30010: partitions take and give nothing from now on; without `first` and `last`, all of the topic do again."""

    topic: str
    first: Int = -1
    last: Int = -1
    """Closed, too."""


class VersionReplyHeader(Header, kw_only=True):
    """Answers 26: the DataVersion of the configuration, as JSON."""

    version: str


class UnregisterClientHeader(Header, kw_only=True):
    """35."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupHeader(Header, kw_only=True):
    """38, 40, 203."""

    consumer_group: str


class ProducerGroupHeader(Header, kw_only=True):
    """204."""

    producer_group: str
