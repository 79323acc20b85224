"""Queue locks of orderly consumers: LOCK_BATCH_MQ (41), also for renewal, and UNLOCK_BATCH_MQ (42).

A module of its own, because producers do not need it.
"""

from __future__ import annotations

from metaq.client.conversation.call import Call, Order
from metaq.model import MessageQueue, QueueLocks
from metaq.wire import bodies
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request


class LockQueues(Call[frozenset[MessageQueue]], frozen=True):
    """Lock queues of one broker for a client, or renew its locks. The outcome: the queues that it holds now."""

    action = "lock queues"

    locks: QueueLocks

    def request(self) -> Command:
        return request(RequestCode.LOCK_BATCH_MQ, body=bodies.queue_locks(self.locks))

    def read(self, answer: Command) -> frozenset[MessageQueue]:
        # Only queues asked for: the response may name others.
        return frozenset(bodies.locked_queues_of(answer.body)) & frozenset(self.locks.queues)


class UnlockQueues(Order, frozen=True):
    """Release the locks of queues."""

    action = "unlock queues"

    locks: QueueLocks

    def request(self) -> Command:
        return request(RequestCode.UNLOCK_BATCH_MQ, body=bodies.queue_locks(self.locks))
