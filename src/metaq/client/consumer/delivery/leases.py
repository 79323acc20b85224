"""The locks of a member on its queues, as it knows them (pure, no I/O): which are to be renewed, lost, or over.

A broker keeps a lock for 60 s after its last renewal. A member asks every 20 s, and counts on nothing after 30 s without
an answer, from the moment at which it asked: so it has stopped long before another member may begin.
"""

from __future__ import annotations

from collections.abc import Collection

from metaq.client.consumer.delivery.orderly import Lease
from metaq.model import MessageQueue

RENEW_SECONDS = 20.0
"""Between two renewals of a lock, as Java's clients do it."""
LEASE_SECONDS = 30.0
"""A lock is used for so long after its last renewal; brokers hold it for 60 s, so two members never have one queue."""


class Leases:
    """One member's. `now` is seconds of an even clock."""

    def __init__(self) -> None:
        self._leases: dict[MessageQueue, Lease] = {}
        self._asked: dict[MessageQueue, float] = {}
        """Queue → when the renewal that was granted last was asked for."""

    def grant(self, queue: MessageQueue, asked_at: float) -> Lease:
        """Note a lock that was granted. `asked_at`: when the request was made; the broker's time-out began later."""
        lease = self._leases.setdefault(queue, Lease())
        lease.until = asked_at + LEASE_SECONDS
        self._asked[queue] = asked_at
        return lease

    def lease(self, queue: MessageQueue) -> Lease:
        """The lease of a queue whose lock was granted."""
        return self._leases[queue]

    def drop(self, queue: MessageQueue) -> None:
        """Renew the lock of a queue no more."""
        self._leases.pop(queue, None)
        self._asked.pop(queue, None)

    def due(self, now: float) -> dict[str, list[MessageQueue]]:
        """Locks that must be renewed now, by broker."""
        due: dict[str, list[MessageQueue]] = {}
        for queue, asked_at in self._asked.items():
            if now - asked_at >= RENEW_SECONDS:
                due.setdefault(queue.broker, []).append(queue)
        return due

    def doubt(self, broker: str) -> None:
        """Renew the locks of a broker as soon as it can be reached: it may have restarted and forgotten them."""
        for queue in self._asked:
            if queue.broker == broker:
                self._asked[queue] = -RENEW_SECONDS

    def answered(
        self, asked: Collection[MessageQueue], granted: Collection[MessageQueue], asked_at: float
    ) -> list[MessageQueue]:
        """A broker answered a renewal. Returns the queues that another member has now: they are dropped here."""
        lost = []
        for queue in asked:
            if queue not in self._leases:  # Given up since.
                continue
            if queue in granted:
                self.grant(queue, asked_at)
            else:
                lost.append(queue)
                self.drop(queue)
        return lost

    def over(self, now: float) -> list[MessageQueue]:
        """Remove and return the locks that were not renewed in time."""
        over = [queue for queue, lease in self._leases.items() if now >= lease.until]
        for queue in over:
            self.drop(queue)
        return over

    @property
    def queues(self) -> list[MessageQueue]:
        return list(self._leases)
