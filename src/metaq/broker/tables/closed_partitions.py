"""Partitions closed by an administrator (MetaQ 1.x's closePartitions): they neither take nor hand out messages.

In memory only, as in MetaQ 1.x: after a restart all are open. They are closed for RocketMQ's clients too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from metaq.clock import Clock
from metaq.errors import Reason, Refused


class ClosedPartitions:
    """The closed partitions of one broker."""

    def __init__(self) -> None:
        self._closed: dict[str, frozenset[int]] = {}
        self._watchers: list[Callable[[str], None]] = []

    def __bool__(self) -> bool:
        return bool(self._closed)

    def when_changed(self, watcher: Callable[[str], None]) -> None:
        """Call `watcher` with each topic of which a partition is closed or opened from now on."""
        self._watchers.append(watcher)

    def close(self, topic: str, numbers: range) -> None:
        """Close partitions of a topic, in addition to those that are closed."""
        if numbers:
            self._closed[topic] = self._closed.get(topic, frozenset()) | frozenset(numbers)
            self._tell(topic)

    def open(self, topic: str) -> None:
        """Open all partitions of a topic."""
        if self._closed.pop(topic, None):
            self._tell(topic)

    def put(self, topic: str, numbers: Iterable[int]) -> None:
        """Close exactly these partitions of a topic, as a master has."""
        wanted = frozenset(numbers)
        if wanted != self.of(topic):
            if wanted:
                self._closed[topic] = wanted
            else:
                del self._closed[topic]
            self._tell(topic)

    def topics(self) -> list[str]:
        """Return the topics with closed partitions."""
        return list(self._closed)

    def of(self, topic: str) -> frozenset[int]:
        """Return the closed partitions of a topic."""
        return self._closed.get(topic, frozenset())

    def check(self, topic: str, queue_id: int) -> None:
        """Return if the queue is open. Raises Refused NO_PERMISSION."""
        if queue_id in self._closed.get(topic, ()):
            raise Refused(
                Reason.NO_PERMISSION,
                f"queue {queue_id} of topic {topic} is closed; `metaq meta1 open-partitions` opens it again",
            )

    def any_open(self, topic: str, count: int, clock: Clock) -> int:
        """Choose an open one of a topic's `count` queues at random. Raises Refused NO_PERMISSION: all are closed."""
        closed = self._closed.get(topic)
        if closed is None:
            return clock.random_below(count)
        usable = [number for number in range(count) if number not in closed]
        if not usable:
            raise Refused(Reason.NO_PERMISSION, f"all {count} queues of topic {topic} are closed")
        return usable[clock.random_below(len(usable))]

    def _tell(self, topic: str) -> None:
        for watcher in self._watchers:
            watcher(topic)
