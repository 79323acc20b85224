"""Choice of the replica to read from: a broker's master, or one of its slaves (option `readFrom`).

A slave lags behind its master, and its log may begin later: messages that it lacks may well exist. So only the master is
believed about the queues' offsets and about lost messages, and it is asked for whatever a slave lacks.
"""

from __future__ import annotations

from typing import Final

from metaq.clock import SYSTEM, Clock
from metaq.errors import NoRoute
from metaq.model import MessageQueue, Route
from metaq.model.topics.route import MASTER_ID

AUTO: Final = "auto"
MASTER: Final = "master"
SLAVE: Final = "slave"
READ_FROM: Final = (AUTO, MASTER, SLAVE)

_END: Final = 1 << 62
"""An offset beyond all queues."""

AVOID_SECONDS: Final = 10.0
"""Time for which a replica that failed is avoided."""


class Replicas:
    """Addresses of each broker's replicas, recent failures, and the offsets that masters suggested to read from slaves."""

    def __init__(self, read_from: str, clock: Clock = SYSTEM) -> None:
        """
        Args:
            read_from: one of READ_FROM.
            clock: monotonic time of AVOID_SECONDS.
        """
        self.read_from, self._clock = read_from, clock
        self._addresses: dict[str, dict[int, str]] = {}
        self._avoided: dict[str, float] = {}
        """Address → end of the time for which it is avoided, monotonic seconds."""
        self._old: dict[MessageQueue, int] = {}
        """Queue → offset below which its master suggested a slave: those messages are no longer in its memory."""

    def learn(self, route: Route) -> None:
        for data in route.brokers:
            if data.addresses:
                self._addresses[data.broker] = dict(data.addresses)

    def knows(self, broker: str) -> bool:
        return broker in self._addresses

    def forget(self, broker: str) -> None:
        """Forget a broker's addresses, so that they are looked up again."""
        self._addresses.pop(broker, None)

    def address(self, broker: str, broker_id: int) -> str:
        return self._addresses.get(broker, {}).get(broker_id, "")

    def usable(self, queue: MessageQueue) -> list[int]:
        """Return the broker ids that messages of `queue` may be pulled from; those that failed lately only if all did.

        Raises NoRoute: there is none.
        """
        allowed = self._allowed(queue)
        if not allowed:
            raise self._away(queue)
        return sorted(one for one, address in allowed.items() if not self._is_avoided(address)) or sorted(allowed)

    def offset_replica(self, queue: MessageQueue) -> int:
        """Return the broker id that is asked for the queue's min and max offset: the master's.

        A slave's where the name servers know no master and readFrom is slave. Raises NoRoute: the master is not up.
        """
        known = self._addresses.get(queue.broker, {})
        if MASTER_ID in known:
            return MASTER_ID
        if known and self.read_from == SLAVE:
            return min(known)
        raise self._away(queue)

    def _away(self, queue: MessageQueue) -> NoRoute:
        who = "master of the broker" if self._addresses.get(queue.broker) else "broker"
        return NoRoute(f"the {who} {queue.broker} of {queue} is not up")

    def failed(self, broker: str, broker_id: int) -> None:
        """Avoid a replica for AVOID_SECONDS."""
        if address := self.address(broker, broker_id):
            self._avoided[address] = self._clock.monotonic() + AVOID_SECONDS

    def another(self, queue: MessageQueue) -> bool:
        """Return whether some replica has not failed lately."""
        return any(not self._is_avoided(address) for address in self._allowed(queue).values())

    def _allowed(self, queue: MessageQueue) -> dict[int, str]:
        known = self._addresses.get(queue.broker, {})
        return {one: address for one, address in known.items() if self.read_from != MASTER or one == MASTER_ID}

    def _is_avoided(self, address: str) -> bool:
        until = self._avoided.get(address)
        if until is not None and self._clock.monotonic() >= until:
            del self._avoided[address]
            return False
        return until is not None

    # -------------------------------------------------------------- messages that masters have on disk only
    def is_old(self, queue: MessageQueue, offset: int) -> bool:
        """Return whether the master suggested a slave for this offset or a later one."""
        return offset < self._old.get(queue, 0)

    def call_old(self, queue: MessageQueue, offset: int) -> None:
        """Note that the master suggested a slave below `offset`. Never undone: in a log, messages only get older."""
        self._old[queue] = max(offset, self._old.get(queue, 0))


class ReplicaChoice:
    """Chooses the replica for each pull of one slice. Pure; its caller reports failures and suggestions."""

    def __init__(self, read_from: str, queue: MessageQueue, *, old: bool) -> None:
        """
        Args:
            read_from: one of READ_FROM.
            queue: of the slice.
            old: whether the master suggested a slave for the slice's start.
        """
        self._queue, self._read_from = queue, read_from
        self._slave = read_from == SLAVE or (read_from == AUTO and old)
        self._suggested = MASTER_ID
        self._lacks: range | None = None
        """Offsets that no slave is asked for, because one did not have them."""

    def choose(self, usable: list[int], offset: int) -> int:
        """Return the broker id to ask at `offset`. `usable`: those that are up."""
        if self._lacks is not None and offset in self._lacks:
            return MASTER_ID
        slaves = [one for one in usable if one != MASTER_ID]
        if slaves and (self._slave or MASTER_ID not in usable):
            # Queues spread over the slaves, unless the master names one (whichBrokerWhenConsumeSlowly of its group).
            return self._suggested if self._suggested in slaves else slaves[self._queue.queue_id % len(slaves)]
        return MASTER_ID

    def suggested(self, broker_id: int) -> None:
        """Note the replica that a master's answer suggests to ask next.

        A slave's suggestion must not be noted: a slave with `slaveReadEnable` off names the master, which names the slave
        again, and so on.
        """
        if self._read_from == AUTO and broker_id != MASTER_ID:
            self._slave, self._suggested = True, broker_id

    def lacks(self, offset: int, kept: range) -> None:
        """Note that a slave has the offsets `kept` but not `offset`: ask the master, up to where the slave's begin."""
        # A slave whose log begins later has all from there on; one that lags may lack everything from here on.
        self._lacks = range(offset, kept.start if kept.start > offset else _END)

    def failed(self, broker_id: int) -> bool:
        """Note that a replica failed, and turn to the other kind for the rest of the slice.

        Returns False if the caller should pause first: the master was asked because a slave lacked the offset, so turning
        to a slave again would bring no progress.
        """
        # A slave may have received meanwhile what it lacked.
        lacked, self._lacks = self._lacks is not None, None
        self._slave = broker_id == MASTER_ID and self._read_from != MASTER
        return not lacked
