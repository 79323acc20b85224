"""Choice of a message's partition among those of its topic."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from metaq.clock import SYSTEM, Clock
from metaq.errors import NoRoute
from metaq.metaq1.model.message import Message
from metaq.metaq1.model.partition import Partition
from metaq.wire.metaq1.commands import ANY_PARTITION

PartitionSelector: TypeAlias = Callable[[str, Sequence[Partition], Message], Partition]
"""Chooses: (topic, its partitions, message) → one of them. Called in the thread or task that sends; with a fixed server it gets
`RANDOM_PARTITION` alone and may return any other number. What it raises, the send raises."""

_MASK: Final = 0x7FFF_FFFF


class RoundRobinPartitionSelector:
    """One partition after the other, the second one first, as in Java. For any number of threads."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def __call__(self, topic: str, partitions: Sequence[Partition], message: Message) -> Partition:  # noqa: ARG002
        return partitions[(next(self._count) & _MASK) % len(partitions)]


class RandomPartitionSelector:
    """Any partition."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock

    def __call__(self, topic: str, partitions: Sequence[Partition], message: Message) -> Partition:  # noqa: ARG002
        return partitions[self._clock.random_below(len(partitions))]


def chosen(
    selector: PartitionSelector, message: Message, partitions: Sequence[Partition], known: Sequence[int]
) -> Partition:
    """Return the selector's choice. `known`: the brokers that the topic has here.

    Raises NoRoute: there is nothing to choose from; TypeError: it is no partition; ValueError: at another broker, or no number of one; and what the
    selector raises.
    """
    if not partitions:
        raise NoRoute(
            f"there is no available partition for topic {message.topic}: no server that is up publishes it, or its id is another"
        )
    partition = selector(message.topic, partitions, message)
    if not isinstance(partition, Partition):
        raise TypeError(f"the selector returned {partition!r}: it must return one of the partitions that it is given")
    if partition.broker_id not in known:
        raise ValueError(f"the selector chose {partition}, and topic {message.topic} has the brokers {sorted(known)}")
    # The server would close the connection, with everything that is under way on it.
    if not isinstance(partition.partition, int) or not ANY_PARTITION <= partition.partition <= _MASK:
        raise ValueError(f"the selector chose {partition}: need a number of a partition, or {ANY_PARTITION} for any")
    return partition
