"""Queue locks of orderly consumers (LOCK_BATCH_MQ 41, UNLOCK_BATCH_MQ 42).

A lock belongs to a group and a queue, and is held by a client id. It is granted if the queue is free, if the same client holds
it (a renewal), or if it was not renewed for a minute. It ends by `unlock` or by that minute, never with a connection: an
orderly consumer that is cut off goes on for up to 30 s, and another must not consume beside it.

A client id is what a client says of itself. So only the host (or the signer) that took a lock renews it and lets it go: another
one that says the same id waits like any other client. A client that moves to another address gets its queues after the minute.

As in RocketMQ, locks are in memory and lost at a restart: members lock their queues again every 20 s.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from msgspec import Struct

from metaq.broker.allowance import share_of
from metaq.broker.environment import Environment, Tables
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.tables.members import CLIENT_ID_CHARS_MAX
from metaq.broker.tables.topics import check_client_topic
from metaq.errors import Reason, Refused
from metaq.in_pieces import InPieces, finish
from metaq.log import RateLimitedLog
from metaq.model import MessageQueue, QueueLocks
from metaq.model.access import Action, Caller
from metaq.model.topics.topic import RETRY_PREFIX

log = logging.getLogger(__name__)

SHARE_MIN: Final = 1024
"""One host, and one group, get at most a quarter of all locks, or so many."""
QUEUES_MAX = 10_000
"""Queues of one request."""
QUEUES_OF_A_PIECE = 64
"""Queues that are locked at once: some 0.1 ms."""
TOLD_MAX = 10
"""Queues of one request that a log line names."""
_HELD: Final = "another client holds it"
"""The only reason that is not logged: it is the normal case in a rebalance."""


class _Lock(Struct):
    """Lock of one queue."""

    client_id: str
    host: str
    """Address of the client, or its proven identity."""
    renewed: float
    """Time of the last renewal, monotonic seconds."""


class Locks:
    """The locks of one broker, of all groups."""

    def __init__(self, environment: Environment, tables: Tables, gatekeeper: Gatekeeper) -> None:
        self._options, self._clock, self._broker = environment.options, environment.clock, environment.name
        self._topics, self._groups, self._gatekeeper = tables.topics, tables.groups, gatekeeper
        self._log = RateLimitedLog(log, environment.clock)
        self._held: dict[str, dict[tuple[str, int], _Lock]] = {}
        self._by_host = Counter[str]()
        self._count = 0

    @property
    def count(self) -> int:
        """Number of locks in memory, including expired ones."""
        return self._count

    def holder(self, group: str, topic: str, queue_id: int) -> str | None:
        """Return the client id that holds the queue's lock; None: it is free or expired."""
        lock = self._held.get(group, {}).get((topic, queue_id))
        return lock.client_id if lock is not None and not self._over(lock) else None

    def lock(self, caller: Caller, wanted: QueueLocks) -> list[MessageQueue]:
        """Grant or renew locks at once; otherwise as `lock_in_pieces`."""
        return finish(self.lock_in_pieces(caller, wanted))

    def lock_in_pieces(self, caller: Caller, wanted: QueueLocks) -> InPieces[list[MessageQueue]]:
        """Grant or renew locks, some at a time. Returns the locked queues, in the order of the request.

        Queues that another client holds are left out, and those that cannot be locked, which are logged: the response has no
        error code for a single queue.

        Raises Refused: the group does not exist or may not consume, or the caller lacks permission; Saving: it is being created.
        """
        self._check(caller, wanted)
        if not self._groups.require(wanted.group, caller.client).consume_enable:
            raise Refused(Reason.NO_PERMISSION, f"subscription group no permission, {wanted.group}")
        granted, told, not_lockable = list[MessageQueue](), list[str](), 0
        queues_of = dict[str, int | str]()
        for number, queue in enumerate(wanted.queues, 1):
            if number % QUEUES_OF_A_PIECE == 0:
                yield
            # Once per topic: a request names many queues of few topics.
            if queue.topic not in queues_of:
                queues_of[queue.topic] = self._queues_of(caller, queue.topic)
            why_not = self._why_not(queue, queues_of[queue.topic]) or self._take(
                wanted.group, wanted.client_id, caller.client, queue
            )
            if not why_not:
                granted.append(queue)
            elif why_not is not _HELD:
                not_lockable += 1
                if len(told) < TOLD_MAX:
                    told.append(f"{queue!s:.200}: {why_not:.200}")
        if told:  # one line per request, however many queues it names
            self._log.warning(
                wanted.group, "client %s of group %s gets no lock on %d queues, %s: %s", wanted.client_id, wanted.group,
                not_lockable, "which are" if not_lockable == len(told) else "of which these are the first", "; ".join(told),
            )  # fmt: skip
        return granted

    def unlock(self, caller: Caller, held: QueueLocks) -> None:
        """Release locks that this client holds; others stay. Raises Refused, as `lock`."""
        self._check(caller, held)
        locks, host, others = self._held.get(held.group, {}), caller.client, 0
        for queue in held.queues:
            lock = locks.get((queue.topic, queue.queue_id))
            if lock is None or lock.client_id != held.client_id:
                continue
            if lock.host == host:
                self._drop(held.group, queue.topic, queue.queue_id)
            else:
                others += 1
        if others:
            self._log.warning(
                ("unlock", held.group), "%s wants to let go of %d locks of client %s of group %s, which that took from another "
                "host: they stay", host, others, held.client_id, held.group,
            )  # fmt: skip

    def expire(self) -> None:
        """Drop expired locks."""
        self._log.tick()
        stands = self._clock.monotonic() - self._options.rebalance_lock_max_live_time / 1000
        # A copy: `_drop` removes groups without locks.
        for group, locks in list(self._held.items()):
            for topic, queue_id in [place for place, lock in locks.items() if lock.renewed < stands]:
                self._drop(group, topic, queue_id)

    def _check(self, caller: Caller, asked: QueueLocks) -> None:
        if not 0 < len(asked.client_id) <= CLIENT_ID_CHARS_MAX:
            raise Refused(
                Reason.INVALID,
                f"the client id has {len(asked.client_id)} characters, allowed are 1 to {CLIENT_ID_CHARS_MAX}",
            )
        if len(asked.queues) > QUEUES_MAX:
            raise Refused(Reason.INVALID, f"{len(asked.queues)} queues in one request, the limit is {QUEUES_MAX}")
        self._gatekeeper.check_uncovered(caller, Action.SUBSCRIBE, RETRY_PREFIX + asked.group)

    def _queues_of(self, caller: Caller, topic: str) -> int | str:
        """Return the number of the topic's queues, or the reason why this client may lock none of them."""
        try:
            config = self._topics.require(check_client_topic(topic))
            self._gatekeeper.check_uncovered(caller, Action.SUBSCRIBE, topic)
        except Refused as refused:
            return refused.text
        # The larger: while a topic shrinks, queues that take no more messages are still consumed.
        return max(config.read_queues, config.write_queues)

    def _why_not(self, queue: MessageQueue, queues: int | str) -> str:
        """Return why this queue cannot be locked; "" if it can. `queues`: result of `_queues_of` for its topic."""
        if queue.broker != self._broker:
            return f"this broker is {self._broker}"
        if isinstance(queues, str):
            return queues
        return "" if 0 <= queue.queue_id < queues else f"the topic has {queues} queues"

    def _take(self, group: str, client_id: str, host: str, queue: MessageQueue) -> str:
        """Lock a queue, or renew its lock. Returns the reason if that fails; "" if it was done."""
        place, now = (queue.topic, queue.queue_id), self._clock.monotonic()
        lock = self._held.get(group, {}).get(place)
        if lock is None:
            if full := self._full(group) or self._full_of(host):
                return full
            self._held.setdefault(group, {})[place] = _Lock(client_id, host, now)
            self._by_host[host] += 1
            self._count += 1
            return ""
        if (lock.client_id, lock.host) != (client_id, host):
            # Expired by time, not by the end of a connection: see the module's text.
            if not self._over(lock):
                return _HELD if lock.client_id != client_id else f"a client of this id at {lock.host} holds it"
            if lock.host != host and (full := self._full_of(host)):
                return full
            log.info(
                "group %s: client %s at %s has not renewed its lock on %s for %.0f s, %s at %s has it now",
                group, lock.client_id, lock.host, queue, now - lock.renewed, client_id, host,
            )  # fmt: skip
            self._leave(lock.host)
            self._by_host[host] += 1
            lock.client_id, lock.host = client_id, host
        lock.renewed = now
        return ""

    def _full(self, group: str) -> str:
        """Return which limit another lock of the group would exceed; "" if none."""
        limit = self._options.queue_locks_max
        if self._count >= limit:
            return f"{self._count} queues are locked, which is the limit (queueLocksMax)"
        if len(self._held.get(group, ())) >= self._share:
            return f"the group holds {len(self._held[group])} locks, its share of queueLocksMax={limit}"
        return ""

    def _full_of(self, host: str) -> str:
        """Return which limit another lock of the host would exceed; "" if none."""
        if self._by_host[host] >= self._share:
            limit = self._options.queue_locks_max
            return f"clients at {host} hold {self._by_host[host]} locks, a host's share of queueLocksMax={limit}"
        return ""

    @property
    def _share(self) -> int:
        """Locks that one host, and one group, may have."""
        return share_of(self._options.queue_locks_max, SHARE_MIN)

    def _leave(self, host: str) -> None:
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def _over(self, lock: _Lock) -> bool:
        return (self._clock.monotonic() - lock.renewed) * 1000 > self._options.rebalance_lock_max_live_time

    def _drop(self, group: str, topic: str, queue_id: int) -> None:
        locks = self._held[group]
        self._leave(locks.pop((topic, queue_id)).host)
        self._count -= 1
        if not locks:
            del self._held[group]
