"""Consumer group settings and the enums of consumption."""

from __future__ import annotations

import enum

from msgspec import Struct


class MessageModel(enum.Enum):
    """Whether the members of a group share its messages or each get all."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFrom(enum.Enum):
    """Where a group without a stored offset begins."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class GroupConfig(Struct, frozen=True):
    """A consumer group as one broker holds it (RocketMQ's SubscriptionGroupConfig)."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queues: int = 1
    retry_max: int = 16
    broker_id: int = 0
    slow_broker_id: int = 1
    notify_changed: bool = True
