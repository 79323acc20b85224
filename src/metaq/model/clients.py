"""Consumer groups: their settings, what their members say of themselves, and what a broker tells of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from msgspec import Struct, field

from metaq.model.filters.subscription import SubscriptionData
from metaq.model.queue import MessageQueue


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


class ConsumerView(Struct, frozen=True):
    """A consumer group as one member sees it, or as its broker does: the newest word of all members."""

    group: str
    subscriptions: Mapping[str, SubscriptionData] = field(default_factory=dict)
    push: bool = True
    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    unit_mode: bool = False
    keep_seconds: float = 0.0
    """How long a member's queues are to be kept for it when it is gone; only a broker of ours does."""


class Heartbeat(Struct, frozen=True):
    """What a client process says of itself."""

    client_id: str
    consumers: tuple[ConsumerView, ...] = ()
    producers: tuple[str, ...] = ()
    """Names of its producer groups."""


class QueueLocks(Struct, frozen=True):
    """Queues that one client of a group wants to consume alone, or no longer."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...] = ()


class ClientConnection(Struct, frozen=True):
    """One member of a group, as administrators are told of it."""

    client_id: str
    address: str
    language: str
    version: int
    wants: Mapping[str, str] | None = None
    """Topic → filter, where the members of a consumer group differ; only a broker of ours tells it."""
