"""Queues closed for a while, because part of a staged transaction is being applied there and its messages must be contiguous.

Other messages wait: the topic has no gate for the fast path (`metaq.broker.log.admit`), the services raise `Saving`, and
`Appender.put` refuses the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from metaq.saved import Pending, Saving


class ClosedQueues:
    """The closed queues of one broker."""

    def __init__(self) -> None:
        self._closed: dict[tuple[str, int], Pending] = {}
        # Closed queues per topic: gates are per topic, so one closed queue takes the whole topic off the fast path.
        self._topics: dict[str, int] = {}
        self._watchers: list[Callable[[str], None]] = []

    def when_closed(self, watcher: Callable[[str], None]) -> None:
        """Call `watcher` with each topic of which a queue is closed from now on."""
        self._watchers.append(watcher)

    def close(self, topic: str, queue_id: int) -> None:
        """Close the queue. Closing a closed one has no effect."""
        if (topic, queue_id) not in self._closed:
            self._closed[topic, queue_id] = Pending()
            self._topics[topic] = self._topics.get(topic, 0) + 1
            for watcher in self._watchers:
                # Closes the topic's gates on the fast path, before anything else is appended.
                watcher(topic)

    def open(self, topic: str, queue_id: int) -> None:
        """Open the queue, if it is closed, and let waiting requests go on."""
        pending = self._closed.pop((topic, queue_id), None)
        if pending is not None:
            self._topics[topic] -= 1
            if not self._topics[topic]:
                del self._topics[topic]
            pending.finish()

    def has(self, topic: str, queue_id: int) -> bool:
        """Return whether the queue is closed."""
        return (topic, queue_id) in self._closed

    def has_of(self, topic: str) -> bool:
        """Return whether a queue of the topic is closed."""
        return topic in self._topics

    def pass_by(self, topic: str, queue_id: int) -> None:
        """Return if the queue takes messages. Raises Saving while it is closed."""
        # The first test alone is the usual case: nothing is closed.
        if self._closed and (pending := self._closed.get((topic, queue_id))) is not None:
            raise Saving(pending)
