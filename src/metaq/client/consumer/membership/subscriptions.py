"""What a member subscribes to: topic → what it lets through, with the version that brokers compare."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from msgspec import structs

from metaq.clock import Clock
from metaq.model import SubscriptionData
from metaq.model.filters.subscription import Expression, subscribe


class Subscriptions:
    """The topics of one member, its group's retry topic among them."""

    def __init__(self, topics: Mapping[str, Expression], clock: Clock) -> None:
        """Args: topics: topic → tag expression or SQL filter."""
        self._clock = clock
        now = clock.now_ms()
        self._data = {topic: subscribe(topic, tags, now) for topic, tags in topics.items()}
        self._leaving: dict[str, SubscriptionData] = {}
        """Topics that are not subscribed to any more, but perhaps still pulled."""

    def __getitem__(self, topic: str) -> SubscriptionData:
        return self._data[topic] if topic in self._data else self._leaving[topic]

    def __contains__(self, topic: str) -> bool:
        return topic in self._data

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._data))

    def view(self) -> dict[str, SubscriptionData]:
        """For a heartbeat: it is not changed afterwards."""
        return self._data

    def add(self, topics: Mapping[str, Expression]) -> None:
        """More topics, or other expressions for known ones."""
        now = self._clock.now_ms()
        self._data = {**self._data, **{topic: subscribe(topic, tags, now) for topic, tags in topics.items()}}

    def leave(self, topics: Collection[str]) -> None:
        """Subscribe to these no more; what is still pulled of them goes on until `left`."""
        self._leaving.update({topic: self._data[topic] for topic in topics if topic in self._data})
        self._data = {topic: data for topic, data in self._data.items() if topic not in topics}

    def left(self, topic: str) -> None:
        """Forget a topic of which nothing is pulled any more."""
        self._leaving.pop(topic, None)

    @property
    def leaving(self) -> list[str]:
        """Topics of which queues may still be ours."""
        return list(self._leaving)

    def renew(self) -> None:
        """Give all subscriptions new versions: a broker keeps the newest that it gets."""
        now = self._clock.now_ms()
        self._data = {topic: structs.replace(data, version=now) for topic, data in self._data.items()}
