"""What a master knows of the slaves that copy its log, and what acknowledgements make of it.

A slave counts from its first report on: a connection that never reported has copied nothing. It is *near* while it lags less
than `haSlaveFallbehindMax`. Sends of a SYNC_MASTER wait for the slaves that `inSyncReplicas` names beside the master, if so
many are near, and clients read what these have (`metaq.broker.replication.read_limit`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import ClassVar, Final

from msgspec import Struct

from metaq.broker.environment import Environment
from metaq.broker.part import BrokerPart
from metaq.broker.replication.read_limit import ReadLimit
from metaq.model.leadership import SYNC_MASTER, GroupRole

ENDS_MAX: Final = 36_000
"""Notes of the log's end: of the last hour under way."""
NOT_YET = -1
"""`Replica.copied` of a connection that has not reported."""


class Replica(Struct, eq=False):
    """A slave's connection."""

    address: str
    """Its `host:port`."""
    copied: int = NOT_YET
    """LogOffset up to which it has the log, as it has reported."""
    sent: int = 0
    """LogOffset up to which the log was sent to it."""


class Replicas(BrokerPart):
    """The slaves of one broker. A `metaq.broker.log.acks.Copies`. Only on the thread that owns the broker."""

    leads: ClassVar[bool] = False
    takes_tickets: ClassVar[bool] = False
    """Whether slaves may say who they are."""
    carries_alone: ClassVar[bool] = False

    def __init__(self, environment: Environment) -> None:
        self._options, self._log = environment.options, environment.store.log.tail
        self._read_limit = ReadLimit(environment)
        self._read_on: Callable[[], None] = lambda: None
        self.required = False
        self.port = 0
        """Port from which slaves copy; 0: there is none."""
        self.connected: list[Replica] = []
        self.copied = 0
        """Never goes back: what a slave had when it left, it has still."""
        self.history = 0
        """Counts the times when the log got another history, by a cut or a new epoch: who copies it has to ask anew."""
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._ends: deque[tuple[int, float]] = deque(maxlen=ENDS_MAX)
        """(LogOffset where the log ended, when), while there are slaves; ten a second."""
        self.take_role()

    def take_role(self) -> None:
        """Let sends wait for slaves, or not, as brokerRole says now."""
        self.required = self._options.broker_role == SYNC_MASTER
        self._limit_reads(near=self.available)

    def when_readable(self, read_on: Callable[[], None]) -> None:
        """Register who is told when clients may read further, or less far, than before (`LogTail.read_end`)."""
        self._read_on = read_on

    def tick(self) -> None:
        """Let time pass: what is not reported in time is not waited for."""
        self._limit_reads(near=self.available)
        self._read_limit.tick()

    def _limit_reads(self, *, near: bool) -> None:
        """Args: near: whether enough slaves are."""
        if self._read_limit.look(waited_for=self.required and near, copied=self.copied, log_end=self._log.end):
            self._log.read_end = self._read_limit.end
            self._read_on()

    def log_was_cut(self) -> None:
        """Forget what slaves had of the log behind its end; they have to ask anew."""
        self.copied = min(self.copied, self._log.end)
        self.history += 1

    @property
    def available(self) -> bool:
        return self._are_near(self._wanted)

    @property
    def enough(self) -> bool:
        """Whether sends are taken: `minInSyncReplicas` are there, the master included."""
        wanted = self._options.min_in_sync_replicas - 1
        return not self.required or wanted <= 0 or self._are_near(wanted)

    @property
    def in_doubt(self) -> bool:
        return False

    @property
    def lacks_for_now(self) -> bool:
        return False

    @property
    def lacking(self) -> str:
        return (
            f"fewer than {self._options.min_in_sync_replicas} brokers would have it, this one included (minInSyncReplicas): slaves are "
            "away or far behind"
        )

    def identify(self, replica: Replica, ticket: int) -> bool:  # noqa: ARG002  only where there is failover
        """Note whose connection it is, by a ticket that it was given. Returns whether the ticket is good."""
        return False

    @property
    def group_role(self) -> GroupRole | None:
        """This broker's part in a group with failover; None: there is none."""
        return None

    @property
    def told_end(self) -> int:
        """LogOffset up to which followers that have shown a ticket may let clients read; -1: nothing is to be told."""
        return -1

    def was_told(self, acknowledged_end: int) -> None:
        """Of a slave: its master has acknowledged so far."""

    def lacks(self, begin: int, end: int) -> bool:  # noqa: ARG002  slaves copy all of it, in order
        return False

    def refusal_of(self, topic: str) -> str | None:  # noqa: ARG002
        return None

    @property
    def _wanted(self) -> int:
        """Slaves that must have a send."""
        return max(1, self._options.in_sync_replicas - 1)

    def _nearest(self, number: int) -> int:
        """What so many of the connected slaves have of the log; NOT_YET: there are less."""
        if number == 1:  # the usual case, asked at each read event
            return max([one.copied for one in self.connected], default=NOT_YET)
        copied = sorted((one.copied for one in self.connected), reverse=True)
        return copied[number - 1] if len(copied) >= number else NOT_YET

    def _are_near(self, number: int) -> bool:
        return self._is_near(self._nearest(number))

    def _is_near(self, copied: int) -> bool:
        return copied != NOT_YET and self._log.end - copied < self._options.ha_slave_fallbehind_max

    def connect(self, address: str) -> Replica:
        """Add a slave, of which nothing is known yet."""
        replica = Replica(address)
        self.connected.append(replica)
        return replica

    def disconnect(self, replica: Replica) -> None:
        """Forget a slave. Sends that wait for it wait on, for another one or for their time.

        Clients may read what it lacks from the next tick on: of a broker that is just stopping, they never do.
        """
        if replica in self.connected:
            self.connected.remove(replica)

    def is_copied(self, log_offset: int) -> bool:
        """Return whether a slave that is connected has the log up to there."""
        return any(one.copied >= log_offset for one in self.connected)

    def reported(self) -> dict[str, int]:
        """Return address → LogOffset up to which the slave has the log, of those that have said so."""
        return {one.address: one.copied for one in self.connected if one.copied != NOT_YET}

    def note_end(self, now: float) -> None:
        """Note where the log ends, ten times a second. `now`: monotonic seconds."""
        if self.connected and (not self._ends or self._log.end > self._ends[-1][0]):
            self._ends.append((self._log.end, now))

    def behind_ms(self, copied: int, now: float) -> int:
        """Return how long ago the log was as long as a slave's, to a tenth of a second; 0: the slave has all of it."""
        if copied >= self._log.end:
            return 0
        return next((int((now - at) * 1000) for end, at in self._ends if end > copied), 0)

    def report(self, replica: Replica, log_end: int) -> None:
        """Note that a slave has the log up to there, and release what waited for it."""
        replica.copied = log_end
        nearest = self._nearest(self._wanted)
        if nearest > self.copied:
            self.copied = nearest
            due = [done for place, done in self._waiting if place <= nearest]
            if due:
                self._waiting = [entry for entry in self._waiting if entry[0] > nearest]
                for done in due:
                    done()
        self._limit_reads(near=self._is_near(nearest))

    def when_copied(self, log_end: int, done: Callable[[], None]) -> None:
        """Call `done` when enough slaves have the log up to there; at once if they have."""
        if self.copied >= log_end:
            done()
        else:
            self._waiting.append((log_end, done))
