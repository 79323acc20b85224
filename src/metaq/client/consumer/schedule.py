"""Which queue is due when, for the scheduled form of pulling: one call per queue at a time. Time comes in as an argument."""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Collection

from metaq.model import MessageQueue

log = logging.getLogger("metaq.client")

USUAL_PAUSE = 0.2
"""Seconds to the next call of a function that returned None, as RocketMQ has it."""
PAUSE_AFTER_ERROR = 1.0


class Schedule:
    """The queues of a member. Not thread-safe: its user holds a lock."""

    def __init__(self) -> None:
        self._due: list[tuple[float, MessageQueue]] = []
        self._busy: set[MessageQueue] = set()
        self._ours: frozenset[MessageQueue] = frozenset()

    def set(self, queues: Collection[MessageQueue], now: float) -> None:
        """Set the queues that are ours: new ones are due now, others are not called any more."""
        old, self._ours = self._ours, frozenset(queues)
        self._due = [(due, queue) for due, queue in self._due if queue in self._ours]
        # A busy queue comes back with `done`: due here as well, it would be called twice at a time.
        self._due += [(now, queue) for queue in self._ours - old - self._busy]
        heapq.heapify(self._due)

    def take(self, now: float) -> MessageQueue | None:
        """A queue that is due, which is busy until `done`; None: there is none now."""
        if not self._due or self._due[0][0] > now:
            return None
        queue = heapq.heappop(self._due)[1]
        self._busy.add(queue)
        return queue

    def done(self, queue: MessageQueue, due: float) -> None:
        """Its call has ended; the next is due then."""
        self._busy.discard(queue)
        # It may have gone to another member while its call ran.
        if queue in self._ours:
            heapq.heappush(self._due, (due, queue))

    def pause(self, now: float) -> float | None:
        """Seconds until one is due; None: nothing is."""
        return max(0.0, self._due[0][0] - now) if self._due else None


def pause_of(result: object, queue: MessageQueue) -> float:
    """Seconds to the next call of the function that returned `result` for the queue."""
    if result is None:
        return USUAL_PAUSE
    if isinstance(result, int | float) and not isinstance(result, bool) and math.isfinite(result) and result >= 0:
        return float(result)
    log.error("the function for %s returned %r: need None, or seconds until its next call", queue, result)
    return PAUSE_AFTER_ERROR
