"""Changes of tables that an administrator is told of when the in-sync set has them: who leads next knows them, too.

Tables are not in the log, and follow within some tenths of a second. A follower asks for what has changed behind a number: that says
that it has taken what is before it.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.broker.environment import Environment
from metaq.broker.failover.in_sync import InSyncReplicas, TableMark
from metaq.broker.replication.feed import TableFeed
from metaq.errors import Reason, Refused
from metaq.model.failover import Place
from metaq.saved import Pending, over

WAITING_MAX: Final = 10_000


class _Waiting(Struct, eq=False):
    feed: int
    """Identity of the feed; 0: of whichever begins next."""
    position: int
    until: float
    pending: Pending
    of: Place | None = None
    """The member that is waited for; None: all of the in-sync set."""


class TableAcks:
    """Of a leader: which changes of its tables the members of the in-sync set have. Only on the thread that owns the broker."""

    def __init__(self, environment: Environment, in_sync: InSyncReplicas, feed: TableFeed) -> None:
        self._options, self._clock = environment.options, environment.clock
        self._in_sync, self._feed = in_sync, feed
        self._taken = dict[Place, tuple[int, int]]()
        """Member → (feed, position) of its newest question."""
        self._waiting: list[_Waiting] = []
        in_sync.tables = self

    @property
    def mark(self) -> TableMark:
        """The newest change; of feed 0: of whichever begins next."""
        return self._feed.mark

    def taken(self, place: Place, feed: int, position: int) -> None:
        """Note a member's question for what is behind this number."""
        if place in self._in_sync.required_places:  # others may be anybody
            self._taken[place] = feed, position
            self._look()

    def wait(self) -> Pending:
        """Return what ends when the in-sync set has all changes that there are now.

        It is refused, though the change is made, if that is not so within `slaveTimeout`. Raises Refused: this broker leads no more,
        or too many wait.
        """
        if self._in_sync.state is None:
            raise _not_known()
        if not self._in_sync.required_places:
            return over()
        if len(self._waiting) >= WAITING_MAX:
            raise Refused(Reason.BUSY, f"{WAITING_MAX} changes wait for followers")
        return self._wait(self._options.slave_timeout / 1000)

    def wait_for(self, place: Place, seconds: float) -> Pending:
        """Return what ends when this member has all changes that there are now. It is refused if that is not so in time."""
        return self._wait(seconds, place) if self._feed.mark[0] else over()  # nobody has asked for any

    def _wait(self, seconds: float, of: Place | None = None) -> Pending:
        one = _Waiting(*self._feed.mark, self._clock.monotonic() + seconds, Pending(), of)
        if self._is_done(one):
            return over()
        self._waiting.append(one)
        return one.pending

    def tick(self) -> None:
        """Let time pass."""
        now = self._clock.monotonic()
        late = [one for one in self._waiting if one.until <= now]
        if late:
            self._waiting = [one for one in self._waiting if one.until > now]
            for one in late:
                one.pending.finish(_not_known())
        self._look()  # the set may have changed

    def _look(self) -> None:
        """End what all members have."""
        if self._in_sync.state is None or not self._waiting:
            return
        done, waiting = list[_Waiting](), list[_Waiting]()
        for one in self._waiting:
            (done if self._is_done(one) else waiting).append(one)
        self._waiting = waiting
        for one in done:
            one.pending.finish()

    def _is_done(self, one: _Waiting) -> bool:
        places = self._in_sync.required_places if one.of is None else (one.of,)
        return all(self.has(place, (one.feed, one.position)) for place in places)

    def has(self, place: Place, mark: TableMark) -> bool:
        """Return whether a member has said that it has taken this change, and all before it."""
        feed, position = self._taken.get(place, (0, 0))
        current, first = self._feed.mark[0], self._feed.at_first
        if not current or feed != current:
            return False
        # A feed that began behind the change has it among all that there is.
        return position >= (mark[1] if mark[0] == current else first)


def _not_known() -> Refused:
    return Refused(
        Reason.UNAVAILABLE,
        "the change is made here, and is not known to be at the other brokers of the in-sync set: if this one ends now, it may be "
        "undone. Make it once more",
    )
