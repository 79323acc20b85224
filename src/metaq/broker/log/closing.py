"""Queues that take nothing for a while, because messages are being put there that are to lie together.

Whoever wants to put something waits: the fast path leaves such a topic alone (`metaq.broker.log.admit`), the services raise
`Saving`, and `Appender.put` refuses what comes by another way.
"""

from __future__ import annotations

from collections.abc import Callable

from metaq.saved import Pending, Saving


class ClosedQueues:
    """The closed queues of one broker."""

    def __init__(self) -> None:
        self._closed: dict[tuple[str, int], Pending] = {}
        self._topics: dict[str, int] = {}
        self._watchers: list[Callable[[str], None]] = []

    def when_closed(self, watcher: Callable[[str], None]) -> None:
        """Tell `watcher` of each topic of which a queue is closed, from now on."""
        self._watchers.append(watcher)

    def close(self, topic: str, queue_id: int) -> None:
        """From now on the queue takes nothing. May be called again."""
        if (topic, queue_id) not in self._closed:
            self._closed[topic, queue_id] = Pending()
            self._topics[topic] = self._topics.get(topic, 0) + 1
            for watcher in self._watchers:
                watcher(topic)

    def open(self, topic: str, queue_id: int) -> None:
        """It takes messages again, if it was closed; those who wait go on."""
        pending = self._closed.pop((topic, queue_id), None)
        if pending is not None:
            self._topics[topic] -= 1
            if not self._topics[topic]:
                del self._topics[topic]
            pending.finish()

    def has(self, topic: str, queue_id: int) -> bool:
        """Whether the queue is closed."""
        return (topic, queue_id) in self._closed

    def has_of(self, topic: str) -> bool:
        """Whether a queue of the topic is closed."""
        return topic in self._topics

    def pass_by(self, topic: str, queue_id: int) -> None:
        """Returns if the queue takes messages. Raises Saving while it is closed."""
        if self._closed and (pending := self._closed.get((topic, queue_id))) is not None:
            raise Saving(pending)
