"""Routes: which brokers hold a topic's queues and where they listen, and the fixed layout of a strictly ordered topic.

A layout says which queues an ordered topic has, whether or not their brokers are up. Name servers keep it in the KV
namespace ORDER_TOPIC_CONFIG as `broker:queues;broker:queues`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from msgspec import Struct, field, structs

from metaq.errors import ConfigError
from metaq.model.queue import MessageQueue
from metaq.model.topics.topic import QUEUES_MAX, Perm

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Namespace of the name servers' KV configuration: topic → layout."""


class OrderLayout(Struct, frozen=True):
    """Broker names and their numbers of queues. The order is part of the layout: producers hash keys over it."""

    parts: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse `broker:queues;...`. Raises ConfigError: something else, or a broker twice."""
        parts: list[tuple[str, int]] = []
        for part in filter(None, (part.strip() for part in text.split(";"))):
            broker, _, count = part.rpartition(":")
            if (
                not broker
                or set(broker) & set(":,")
                or not (count.isascii() and count.isdecimal())
                # Cut: `int` of a very long text is slow.
                or not 0 < int(count[:8]) <= QUEUES_MAX
            ):
                raise ConfigError(
                    f"{part[:80]!r} is no part of an order configuration: need broker:queues, several joined by ';', "
                    f"queues from 1 to {QUEUES_MAX}"
                )
            parts.append((broker, int(count)))
        brokers = [broker for broker, _ in parts]
        if len(set(brokers)) < len(brokers):
            raise ConfigError(f"the order configuration {text[:200]!r} names a broker twice")
        if not parts:
            raise ConfigError("the order configuration is empty: need broker:queues, several joined by ';'")
        return cls(tuple(parts))

    @classmethod
    def from_counts(cls, counts: Iterable[tuple[str, int]]) -> Self:
        """Make a layout of brokers and their numbers of queues, without those that have none. Raises ConfigError:
        nothing is left."""
        return cls.of(";".join(f"{broker}:{count}" for broker, count in sorted(counts) if count))

    def __str__(self) -> str:
        return ";".join(f"{broker}:{count}" for broker, count in self.parts)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the topic's queues in their fixed order."""
        return [MessageQueue(topic, broker, queue_id) for broker, count in self.parts for queue_id in range(count)]


MASTER_ID = 0


class QueueData(Struct, frozen=True):
    """Queues of a topic at one broker name."""

    broker: str
    """Name of the broker."""
    read_queues: int
    """Queues that consumers see there, numbers 0 to `read_queues` - 1."""
    write_queues: int
    """Queues that producers see there, numbers 0 to `write_queues` - 1."""
    perm: int
    """Bits of `metaq.model.Perm`."""
    sys_flag: int = 0
    """RocketMQ's `topicSysFlag`: 1, made by a client of a unit; 2, subscribed to by one."""


class BrokerData(Struct, frozen=True):
    """The addresses of one broker name: id 0 is the master, others are slaves."""

    cluster: str
    """Name of its cluster."""
    broker: str
    """Name of the broker, which a master and its slaves share."""
    addresses: dict[int, str]
    """Broker id → `host:port`, of those that are up."""

    @property
    def master(self) -> str | None:
        """Address of the master; None: it is not registered."""
        return self.addresses.get(MASTER_ID)

    @property
    def any_address(self) -> str | None:
        """Address of the master if it is up, else of any slave; None: nobody is."""
        return self.master or next(iter(self.addresses.values()), None)


class Route(Struct, frozen=True):
    """Route of one topic, as a name server answered."""

    topic: str
    """Name of the topic."""
    queues: tuple[QueueData, ...] = ()
    """Its queues at each broker name."""
    brokers: tuple[BrokerData, ...] = ()
    """Addresses of these broker names."""
    order: str | None = None
    """Layout of a strictly ordered topic, `broker:queues;broker:queues`; None: it has none."""

    def broker(self, name: str) -> BrokerData | None:
        """Return the addresses of a broker name; None: the route does not have it."""
        return next((data for data in self.brokers if data.broker == name), None)

    def readable(self) -> list[MessageQueue]:
        """Return the queues that can be pulled from, sorted by broker and number. Empty: none has the permission."""
        return sorted(
            MessageQueue(self.topic, data.broker, queue_id)
            for data in self.queues
            if data.perm & Perm.READ
            for queue_id in range(data.read_queues)
        )

    def writable(self) -> list[MessageQueue]:
        """Return the queues that can be sent to: with write permission, at a broker whose master is up.

        Sorted; of an ordered topic, those of its layout, in the layout's order. Raises ConfigError: the layout cannot
        be read.
        """
        found = sorted(
            MessageQueue(self.topic, data.broker, queue_id)
            for data in self.queues
            if data.perm & Perm.WRITE and (broker := self.broker(data.broker)) and broker.master
            for queue_id in range(data.write_queues)
        )
        if not self.order:
            return found
        usable = set(found)
        # In the layout's order: producers hash keys over this list, and must all have the same.
        return [queue for queue in OrderLayout.of(self.order).queues(self.topic) if queue in usable]


def guessed(topic: str, template: Route, queues: int) -> Route:
    """Return the route that a topic will have once it is created from `template`, with at most `queues` at each broker.

    As in RocketMQ's producer: the broker creates the topic at its first send.
    """
    made = tuple(
        # `read_queues` twice: RocketMQ's producer takes the number for both from it.
        structs.replace(data, read_queues=min(data.read_queues, queues), write_queues=min(data.read_queues, queues))
        for data in template.queues
    )
    return Route(topic, made, template.brokers)


class SystemTopics(Struct, frozen=True):
    """A name server's answer to GET_SYSTEM_TOPIC_LIST_FROM_NS."""

    names: tuple[str, ...]
    """Names of its clusters and brokers, each of which is a topic too."""
    broker_address: str | None
    """Address of a broker, to ask for the system topics that all brokers have."""


class ClusterInfo(Struct, frozen=True):
    """Every broker of every cluster that a name server knows."""

    brokers: dict[str, BrokerData] = field(default_factory=dict)
    """Broker name → its addresses."""
    clusters: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Cluster name → names of its brokers."""
