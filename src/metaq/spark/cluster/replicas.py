"""Choice of the replica to read from: a broker's master, or one of its slaves (option `readFrom`).

A slave lags behind its master, and its log may begin later: what it lacks may well exist. So the master alone says where
queues begin and end and what is gone, and is asked for whatever a slave lacks.
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

AVOID_SECONDS: Final = 10.0
"""Time for which a machine that failed is avoided."""


class Replicas:
    """Addresses of each broker's machines, recent failures, and the offsets that masters suggested to read from slaves."""

    def __init__(self, read_from: str, clock: Clock = SYSTEM) -> None:
        self.read_from, self._clock = read_from, clock
        self._addresses: dict[str, dict[int, str]] = {}
        self._avoided: dict[str, float] = {}
        """Address → end of the time for which it is avoided."""
        self._old: dict[MessageQueue, int] = {}
        """Queue → offset before which its master suggested a slave: those messages are no longer in its memory."""

    def learn(self, route: Route) -> None:
        for data in route.brokers:
            if data.addresses:
                self._addresses[data.broker] = dict(data.addresses)

    def knows(self, broker: str) -> bool:
        return broker in self._addresses

    def forget(self, broker: str) -> None:
        """Forget its addresses, so that they are asked for anew."""
        self._addresses.pop(broker, None)

    def address(self, broker: str, broker_id: int) -> str:
        return self._addresses.get(broker, {}).get(broker_id, "")

    def usable(self, queue: MessageQueue) -> list[int]:
        """The ids of the machines that messages of `queue` may be pulled from, without those that failed lately unless all
        did. Raises NoRoute: there is none.
        """
        allowed = self._allowed(queue)
        if not allowed:
            raise self._away(queue)
        return sorted(one for one, address in allowed.items() if not self._is_avoided(address)) or sorted(allowed)

    def teller(self, queue: MessageQueue) -> int:
        """The id of the machine that tells where `queue` begins and ends. Raises NoRoute: the master is not up.

        It is a slave where there is no master and the user wants to read from slaves.
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
        """Avoid a machine for a while."""
        if address := self.address(broker, broker_id):
            self._avoided[address] = self._clock.monotonic() + AVOID_SECONDS

    def another(self, queue: MessageQueue) -> bool:
        """Whether some machine to pull from has not failed lately."""
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

    # -------------------------------------------------------------- what masters have on their disks only
    def is_old(self, queue: MessageQueue, offset: int) -> bool:
        """Whether the master suggested a slave for this offset or a later one."""
        return offset < self._old.get(queue, 0)

    def call_old(self, queue: MessageQueue, offset: int) -> None:
        """Note that the master suggested a slave below `offset`. In a log this never reverts."""
        self._old[queue] = max(offset, self._old.get(queue, 0))


class Turn:
    """Chooses the machine for each read of one slice. Pure decisions; failures are reported to it."""

    def __init__(self, read_from: str, queue: MessageQueue, *, old: bool) -> None:
        """Args: old: whether the master suggested a slave for the slice's beginning."""
        self._queue, self._read_from = queue, read_from
        self._slave = read_from == SLAVE or (read_from == AUTO and old)
        self._suggested = MASTER_ID
        self._lacks: range | None = None
        """Offsets that no slave is asked for."""

    def choose(self, usable: list[int], offset: int) -> int:
        """Id of the machine to ask at `offset`."""
        if self._lacks is not None and offset in self._lacks:
            return MASTER_ID
        slaves = [one for one in usable if one != MASTER_ID]
        if slaves and (self._slave or MASTER_ID not in usable):
            # Queues spread over the slaves, but for what a broker's administrator says.
            return self._suggested if self._suggested in slaves else slaves[self._queue.queue_id % len(slaves)]
        return MASTER_ID

    def suggested(self, broker_id: int) -> None:
        """A master's answer names who should be asked next. A slave's answer is not heeded: one that may not serve
        (`slaveReadEnable` is off there) names the master, which names the slave again.
        """
        if self._read_from == AUTO and broker_id != MASTER_ID:
            self._slave, self._suggested = True, broker_id

    def lacks(self, offset: int, kept: range) -> None:
        """The slave keeps `kept`, which `offset` is not in: the master has to do, up to where the slave's begin."""
        self._lacks = range(offset, kept.start if kept.start > offset else _END)

    def failed(self, broker_id: int) -> bool:
        """The machine did not serve: the others have the rest of the slice to serve. Returns whether one may do so at once,
        else the same have failed before, with nothing between.
        """
        lacked, self._lacks = self._lacks is not None, None  # A slave may have got meanwhile what it lacked.
        self._slave = broker_id == MASTER_ID and self._read_from != MASTER
        return not lacked
