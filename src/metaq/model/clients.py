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
    """The members share the messages, and the brokers keep the group's progress."""
    BROADCASTING = "BROADCASTING"
    """Each member gets every message, and keeps its own progress."""


class ConsumeFrom(enum.Enum):
    """Where a group without a stored offset begins."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    """At the end of each queue."""
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    """At the first message that each queue keeps."""
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """At the first message that was stored at a time or later, which the member knows."""


class GroupConfig(Struct, frozen=True):
    """A consumer group as one broker holds it (RocketMQ's SubscriptionGroupConfig)."""

    name: str
    """Name of the group."""
    consume_enable: bool = True
    """Members may pull; False: the group is stopped."""
    consume_from_min_enable: bool = True
    """Stored, copied to slaves and returned, but without effect: no broker reads it, as in RocketMQ 4.9 (`consumeFromMinEnable`), where only
    `mqadmin updateSubGroup -m` sets it. Where a group begins, `ConsumerView.consume_from` says."""
    consume_broadcast_enable: bool = True
    """Members may broadcast."""
    retry_queues: int = 1
    """Queues of its retry topic, `%RETRY%name`, at each broker."""
    retry_max: int = 16
    """Deliveries of a message after its first one, before it is a dead letter."""
    broker_id: int = 0
    """`brokerId` of the broker from which members pull by default: 0 is the master."""
    slow_broker_id: int = 1
    """`brokerId` of the slave to which the master sends members that are far behind; only with the broker's option slaveReadEnable."""
    notify_changed: bool = True
    """Members are notified at once when another one joins or leaves; False: they notice it at their next rebalance."""


class ConsumerView(Struct, frozen=True):
    """A consumer group as one member describes it in its heartbeat; at the broker, the newest description of all
    members."""

    group: str
    """Name of the group."""
    subscriptions: Mapping[str, SubscriptionData] = field(default_factory=dict)
    """Topic → what the member wants of it."""
    push: bool = True
    """False: the member pulls by itself (`metaq.PullConsumer`)."""
    model: MessageModel = MessageModel.CLUSTERING
    """Whether the members share the messages."""
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """Where the group begins in a queue without progress."""
    unit_mode: bool = False
    """The member belongs to a unit: RocketMQ's `unitMode`."""
    keep_seconds: float = 0.0
    """Ours: seconds for which the broker keeps a member's queues for it when it is gone; 0: it does not."""


class Heartbeat(Struct, frozen=True):
    """Heartbeat of a client process."""

    client_id: str
    """Id of the client, `host@instance`: `10.0.0.7@4711#1700000000000`."""
    consumers: tuple[ConsumerView, ...] = ()
    """Its consumer groups."""
    producers: tuple[str, ...] = ()
    """Names of its producer groups."""


class QueueLocks(Struct, frozen=True):
    """Queues that a client of a group locks or unlocks, to consume them in order."""

    group: str
    """Name of the group."""
    client_id: str
    """Id of the client, `host@instance`."""
    queues: tuple[MessageQueue, ...] = ()
    """Queues that it wants, or, in the broker's answer, those that it has."""


class ClientConnection(Struct, frozen=True):
    """A member of a group, as administrators see it."""

    client_id: str
    """Id of the client, `host@instance`: `10.0.0.7@4711#1700000000000`."""
    address: str
    """`host:port` of its connection, as the broker sees it."""
    language: str
    """Language of the client, as RocketMQ spells it: `PYTHON`, `JAVA`."""
    version: int
    """Number of the release that it speaks for, as RocketMQ counts its releases (MQVersion)."""
    wants: Mapping[str, str] | None = None
    """Ours: topic → filter, where the members of a consumer group have different ones; None: not, or the broker does not tell."""
