"""The fixed layout of a strictly ordered topic: which queues it has, whether or not their brokers are up.

It is kept by name servers, in the namespace ORDER_TOPIC_CONFIG, as `broker:queues;broker:queues`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from msgspec import Struct

from metaq.errors import ConfigError
from metaq.model.queue import MessageQueue
from metaq.model.topics.topic import QUEUES_MAX

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Of the name servers' KV configuration: topic → layout."""


class OrderLayout(Struct, frozen=True):
    """Broker name and number of queues, in an order that is as fixed as the rest: keys are hashed over it."""

    parts: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, text: str) -> Self:
        """Read `broker:queues;...`. Raises ConfigError: it is something else, or names a broker twice."""
        parts: list[tuple[str, int]] = []
        for part in filter(None, (part.strip() for part in text.split(";"))):
            broker, _, count = part.rpartition(":")
            if (
                not broker
                or set(broker) & set(":,")
                or not (count.isascii() and count.isdecimal())
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
        """Of brokers and their numbers of queues, those without any left out. Raises ConfigError: nothing is left."""
        return cls.of(";".join(f"{broker}:{count}" for broker, count in sorted(counts) if count))

    def __str__(self) -> str:
        return ";".join(f"{broker}:{count}" for broker, count in self.parts)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's queues in their fixed order."""
        return [MessageQueue(topic, broker, queue_id) for broker, count in self.parts for queue_id in range(count)]
