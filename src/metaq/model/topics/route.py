"""Who holds a topic's queues, and where those brokers listen."""

from __future__ import annotations

from msgspec import Struct, field, structs

from metaq.model.queue import MessageQueue
from metaq.model.topics.order import OrderLayout
from metaq.model.topics.topic import Perm

MASTER_ID = 0


class QueueData(Struct, frozen=True):
    """How many queues of a topic one broker (name) holds."""

    broker: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0


class BrokerData(Struct, frozen=True):
    """The addresses of one broker name: id 0 is the master, others are slaves."""

    cluster: str
    broker: str
    addresses: dict[int, str]

    @property
    def master(self) -> str | None:
        return self.addresses.get(MASTER_ID)

    @property
    def any_address(self) -> str | None:
        """The master if it is up, else any slave."""
        return self.master or next(iter(self.addresses.values()), None)


class Route(Struct, frozen=True):
    """One topic's route as a name server told it."""

    topic: str
    queues: tuple[QueueData, ...] = ()
    brokers: tuple[BrokerData, ...] = ()
    order: str | None = None

    def broker(self, name: str) -> BrokerData | None:
        return next((data for data in self.brokers if data.broker == name), None)

    def readable(self) -> list[MessageQueue]:
        """Queues that can be pulled from, sorted."""
        return sorted(
            MessageQueue(self.topic, data.broker, queue_id)
            for data in self.queues
            if data.perm & Perm.READ
            for queue_id in range(data.read_queues)
        )

    def writable(self) -> list[MessageQueue]:
        """Queues that can be sent to: the broker has write permission and a master that is up.

        Sorted; of an ordered topic, those of its layout, in the layout's order. Raises ConfigError: that cannot be read.
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
        return [queue for queue in OrderLayout.of(self.order).queues(self.topic) if queue in usable]


def guessed(topic: str, template: Route, queues: int) -> Route:
    """The route that a topic will have once it is made like the one of `template`, with at most so many queues a broker."""
    made = tuple(
        structs.replace(data, read_queues=min(data.read_queues, queues), write_queues=min(data.read_queues, queues))
        for data in template.queues
    )
    return Route(topic, made, template.brokers)


class SystemTopics(Struct, frozen=True):
    """What a name server names when it is asked for the topics that users did not make."""

    names: tuple[str, ...]
    """Of its clusters and brokers, each of which is a topic too."""
    broker_address: str | None
    """Where to ask for the others, which all brokers have."""


class ClusterInfo(Struct, frozen=True):
    """Every broker of every cluster that a name server knows."""

    brokers: dict[str, BrokerData] = field(default_factory=dict)
    clusters: dict[str, tuple[str, ...]] = field(default_factory=dict)
