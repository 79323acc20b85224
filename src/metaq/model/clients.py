"""Consumer groups: their settings, what their members say of themselves, and what a broker tells of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from msgspec import Struct, field

from metaq.model.filters.subscription import SubscriptionData
from metaq.model.queue import MessageQueue


class MessageModel(enum.Enum):
    """Whether the members of a group share its messages (CLUSTERING) or each get all of them."""

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


class ConsumerView(Struct, frozen=True):
    """A consumer group as one member describes it in its heartbeat; at the broker, the newest description of all
    members."""

    group: str
    subscriptions: Mapping[str, SubscriptionData] = field(default_factory=dict)
    push: bool = True
    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    unit_mode: bool = False
    keep_seconds: float = 0.0
    """Ours: how long the broker keeps a member's queues for it when it is gone."""


class Heartbeat(Struct, frozen=True):
    """Heartbeat of a client process."""

    client_id: str
    consumers: tuple[ConsumerView, ...] = ()
    producers: tuple[str, ...] = ()
    """Names of its producer groups."""


class QueueLocks(Struct, frozen=True):
    """Queues that a client of a group locks or unlocks, to consume them in order."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...] = ()


class ClientConnection(Struct, frozen=True):
    """A member of a group, as administrators see it."""

    client_id: str
    address: str
    language: str
    version: int
    wants: Mapping[str, str] | None = None
    """Ours: topic → filter, where the members of a consumer group have different ones."""
