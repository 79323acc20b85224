"""Which replica of its broker each queue is pulled from."""

from __future__ import annotations

from metaq.clock import Clock
from metaq.model import MessageQueue
from metaq.model.topics.route import MASTER_ID

AVOID_SECONDS = 10.0
"""Time for which a slave that failed is not asked, whatever its master suggests."""


class PullReplicas:
    """What brokers have suggested to one consumer or reader (suggestWhichBrokerId). Only in the client's loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._suggested: dict[MessageQueue, int] = {}
        """Queue → broker id; the others are pulled from masters."""
        self._failed: dict[tuple[str, int], float] = {}
        """(broker, broker id) of a slave → when it failed, monotonic seconds."""

    def of(self, queue: MessageQueue) -> int:
        """Return the broker id to pull a queue from."""
        broker_id = self._suggested.get(queue, MASTER_ID)
        if broker_id == MASTER_ID or not self._failed:
            return broker_id
        failed_at = self._failed.get((queue.broker, broker_id))
        if failed_at is None:
            return broker_id
        if self._clock.monotonic() - failed_at < AVOID_SECONDS:
            return MASTER_ID
        del self._failed[queue.broker, broker_id]
        return broker_id

    def suggested(self, queue: MessageQueue, broker_id: int) -> None:
        """Note which broker id an answer suggests to ask next."""
        if broker_id != MASTER_ID:
            self._suggested[queue] = broker_id
        else:
            self._suggested.pop(queue, None)

    def failed(self, queue: MessageQueue, broker_id: int) -> None:
        """Avoid a slave of the queue's broker for AVOID_SECONDS."""
        self._suggested.pop(queue, None)
        self._failed[queue.broker, broker_id] = self._clock.monotonic()
