"""Queue locks of an orderly member, as leases: which are to be renewed, are lost, or have expired. Pure, no I/O.

A broker keeps a lock for 60 s after its last renewal. A member renews it every 20 s, and stops consuming 30 s after its last
successful request was sent: long before another member may begin.
"""

from __future__ import annotations

from collections.abc import Collection

from metaq.client.consumer.delivery.orderly import Lease
from metaq.model import MessageQueue

RENEW_SECONDS = 20.0
"""Interval of renewals, s; as Java's clients."""
LEASE_SECONDS = 30.0
"""Time for which a lock is used after its renewal, s. Brokers keep it for 60 s, so two members never have one queue."""


class Leases:
    """The leases of one member. `now`: monotonic seconds."""

    def __init__(self) -> None:
        self._leases: dict[MessageQueue, Lease] = {}
        self._asked: dict[MessageQueue, float] = {}
        """Queue → time of the last granted request."""

    def grant(self, queue: MessageQueue, asked_at: float) -> Lease:
        """Note a granted lock. `asked_at`: time of the request, before the broker's own time began."""
        lease = self._leases.setdefault(queue, Lease())
        lease.until = asked_at + LEASE_SECONDS
        self._asked[queue] = asked_at
        return lease

    def lease(self, queue: MessageQueue) -> Lease:
        """The lease of a queue whose lock was granted."""
        return self._leases[queue]

    def granted_at(self, queue: MessageQueue) -> float | None:
        """Return when the lock of a queue was last asked for and granted; None: it is not ours."""
        lease = self._leases.get(queue)
        return None if lease is None else lease.until - LEASE_SECONDS

    def drop(self, queue: MessageQueue) -> None:
        """Stop renewing the lock of a queue."""
        self._leases.pop(queue, None)
        self._asked.pop(queue, None)

    def due(self, now: float) -> dict[str, list[MessageQueue]]:
        """Return locks to renew now, by broker."""
        due: dict[str, list[MessageQueue]] = {}
        for queue, asked_at in self._asked.items():
            if now - asked_at >= RENEW_SECONDS:
                due.setdefault(queue.broker, []).append(queue)
        return due

    def doubt(self, broker: str) -> None:
        """Have the locks at a broker renewed at once: it may have restarted, and locks are in its memory only."""
        for queue in self._asked:
            if queue.broker == broker:
                # Due at any time, because monotonic clocks do not go below 0.
                self._asked[queue] = -RENEW_SECONDS

    def answered(
        self, asked: Collection[MessageQueue], granted: Collection[MessageQueue], asked_at: float
    ) -> list[MessageQueue]:
        """Process the response to a renewal. Returns queues that another member has now, which are dropped."""
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
        """Remove and return the expired leases."""
        over = [queue for queue, lease in self._leases.items() if now >= lease.until]
        for queue in over:
            self.drop(queue)
        return over

    @property
    def queues(self) -> list[MessageQueue]:
        return list(self._leases)
