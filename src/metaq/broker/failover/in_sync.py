"""The in-sync set of a leader: whose copies acknowledgements and clients' reads wait for, and who may join or has to leave it.

What ZooKeeper says of it comes from outside, by `begin`, `attempt`, `settle` and `end`; the rules are `metaq.broker.failover.protocol`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from metaq.broker.environment import Environment
from metaq.broker.failover.lapse import Lapse
from metaq.broker.failover.lease import Lease
from metaq.broker.failover.protocol import acknowledged, caught_up, grown, may_report, must_have, shrunk
from metaq.broker.replication.replicas import NOT_YET, Replica, Replicas
from metaq.errors import Reason, Refused
from metaq.model.failover import MEMBERS_MAX, NOBODY, TOKEN_CHARS_MAX, GroupState, Place
from metaq.model.leadership import GroupRole
from metaq.saved import Pending

TICKET_SECONDS: Final = 30.0
"""How long a ticket lets its follower connect."""
TICKETS_MAX: Final = 1000
NEAR_MS: Final = 1000
"""A follower that lacks no more than the log's last second may come into the set."""
JOIN_SECONDS: Final = 2.0
"""How long acknowledgements wait for one that is about to."""


class Follower(Struct, eq=False):
    """A member that copies this leader's log, as it has said in this epoch."""

    place: Place
    replica: Replica
    """Of its newest connection."""
    copied: int = NOT_YET
    """LogOffset up to which it has the log."""
    seen: float = 0.0
    """When it was connected last, monotonic seconds."""


TableMark: TypeAlias = tuple[int, int]
"""(identity of a feed of tables, number of a change); (0, 0): nothing has changed."""
NO_CHANGES: Final[TableMark] = 0, 0


class Joining(Struct, frozen=True):
    """A follower that is about to come into the set: acknowledgements wait for it already, so that it can catch up with them."""

    place: Place
    acknowledged: int
    """LogOffset up to which was acknowledged without it."""
    since: float
    """Monotonic seconds."""
    tables: TableMark
    """Newest change of the tables then: the next leader must know what was answered without it."""


class Ticket(Struct, frozen=True):
    """Lets a connection speak for a member."""

    place: Place
    epoch: int
    until: float


class TableReports(Protocol):
    """What followers have said of their tables."""

    @property
    def mark(self) -> TableMark:
        """The newest change of this leader's tables."""
        ...

    def has(self, place: Place, mark: TableMark) -> bool:
        """Return whether a member has said that it has taken this change, and all before it."""
        ...


class InSyncReplicas(Replicas):
    """The slaves of a broker whose group has failover. Only on the thread that owns the broker.

    Until `begin`, and after `end`, nothing is acknowledged.
    """

    takes_tickets = True

    def __init__(self, environment: Environment) -> None:
        self.lease = Lease(environment.clock)
        self._lapse = Lapse(environment.clock)
        self.state: GroupState | None = None
        """Of the group, as ZooKeeper has it, while this broker leads; None: it does not."""
        self._attempts: list[GroupState] = []
        """States that were sent to ZooKeeper, and may be there."""
        self._required = frozenset[Place]()
        """Places whose copies are waited for."""
        self._doubt = ""
        self.waiting = ""
        """Why this broker neither leads nor follows; "": it does one of them."""
        self._joining: Joining | None = None
        self.tables: TableReports | None = None
        """Asked before a follower comes into the set; None: only its log counts."""
        self._own, self._incarnation, self._epoch_start = NOBODY, "", 0
        self._followers = dict[int, Follower]()
        self._tickets = dict[int, Ticket]()
        self._alive: Collection[int] = ()
        self._clock = environment.clock
        self._since = 0.0
        """When this broker began to lead, monotonic seconds."""
        self._acknowledged = 0
        """Never goes back while this broker leads."""
        self._told = -1
        """Of a follower: up to where its leader has acknowledged, as it was told; -1: not yet."""
        super().__init__(environment)

    # ------------------------------------------------------------------ what ZooKeeper says

    def begin(self, own: int, state: GroupState, epoch_start: int) -> None:
        """Lead. `epoch_start`: LogOffset at which this epoch begins."""
        self._own, self._incarnation, self._epoch_start = own, state.incarnation, epoch_start
        self._followers.clear()
        self._tickets.clear()
        self._joining, self.waiting = None, ""
        # What the leader before has acknowledged, as far as it is known, every member has.
        self._acknowledged, self._since = min(max(self._told, 0), epoch_start), self._clock.monotonic()
        self._attempts = []
        self._take(state)

    def end(self) -> None:
        """Acknowledge nothing any more: this broker does not lead, or that is not known."""
        if self.state is not None:  # clients have read so far
            self._told = max(self._told, self._acknowledged)
        self.state, self._attempts = None, []
        self.lease.lose()
        self._tickets.clear()

    def doubt(self, why: str) -> None:
        """Acknowledge nothing until the lease is renewed, for this reason."""
        self.lease.lose()
        self._doubt = self.waiting = why

    def attempt(self, state: GroupState) -> None:
        """Note a state that is about to be sent to ZooKeeper: acknowledgements wait for its set too."""
        self._attempts.append(state)
        self._require()

    def settle(self, state: GroupState) -> None:
        """Note the state that is in ZooKeeper, whatever became of the attempts: none of them is under way."""
        self._attempts = []
        self._take(state)

    def _take(self, state: GroupState) -> None:
        self.state = state
        self._require()
        self._release()

    def _require(self) -> None:
        self._required = must_have(self._own, self.state, *self._attempts)
        if self._joining is not None:
            self._required |= {self._joining.place}

    @property
    def required_places(self) -> frozenset[Place]:
        """Those beside the leader that must have what is acknowledged; none while this broker does not lead."""
        return self._required if self.state is not None else frozenset()

    def alive(self, members: Collection[int]) -> None:
        """Note the members that have a session at ZooKeeper."""
        self._alive = members

    # ------------------------------------------------------------------ what acknowledgements wait for

    def take_role(self) -> None:
        self.required = True
        self._limit_reads(near=True)

    @property
    def available(self) -> bool:
        return True  # the set says who is waited for, not who is near

    @property
    def is_certain(self) -> bool:
        """Whether this broker leads, and nobody else can lead now."""
        return self.state is not None and self.lease.valid

    @property
    def in_doubt(self) -> bool:
        return not self.is_certain

    @property
    def enough(self) -> bool:
        minimum = self._options.min_in_sync_replicas
        return self.is_certain and (minimum <= 1 or self._there >= minimum)  # asked at each read event

    @property
    def lacks_for_now(self) -> bool:
        """In doubt, and for as long as the followers of a new leader have to come (inSyncTimeout)."""
        return self.in_doubt or (self._clock.monotonic() - self._since) * 1000 < self._options.in_sync_timeout

    @property
    def lacking(self) -> str:
        if self._doubt:
            return self._doubt
        if self.state is None:
            return "this broker does not lead its group, or does not know whether it does"
        if not self.lease.valid:
            return "ZooKeeper does not answer (failoverZookeeper), and another broker may lead by now: nothing is acknowledged until it does"
        there = self._there
        here = "1 broker of the in-sync set is" if there == 1 else f"{there} brokers of the in-sync set are"
        return f"{here} here, this one included, and minInSyncReplicas is {self._options.min_in_sync_replicas}"

    @property
    def _there(self) -> int:
        """Members of the set that are here, this broker included."""
        state = self.state
        if state is None:
            return 0
        connected = {id(one) for one in self.connected}
        return 1 + sum(
            1
            for one in self._followers.values()
            if one.place in state.in_sync and one.copied != NOT_YET and id(one.replica) in connected
        )

    @property
    def copied(self) -> int:
        """LogOffset up to which this leader may acknowledge.

        It is asked several times for each read event, and grows with a report, or with a change of what is required. Only a leader
        that waits for nobody goes by the end of its log.
        """
        if not self._required:
            self._acknowledge()
        return self._acknowledged

    @copied.setter
    def copied(self, value: int) -> None:
        """As the base class does when the log is cut, which a leader's never is."""
        self._acknowledged = value

    def _acknowledge(self) -> None:
        """Note how far the required members have the log, if nobody else can lead now."""
        if self.is_certain:
            reported = {one.place: one.copied for one in self._followers.values()}
            self._acknowledged = max(self._acknowledged, acknowledged(self._log.end, reported, self._required))

    def when_copied(self, log_end: int, done: Callable[[], None]) -> None:
        if self.copied >= log_end:
            done()
        else:
            self._waiting.append((log_end, done))

    def _release(self) -> None:
        self._acknowledge()
        copied = self._acknowledged
        due = [done for place, done in self._waiting if place <= copied]
        if due:
            self._waiting = [entry for entry in self._waiting if entry[0] > copied]
            for done in due:
                done()
        self._limit_reads(near=True)
        self._lapse.look("" if self.enough else self.lacking)

    def until_enough(self) -> Pending | None:
        """Return what a request waits for that comes while not `enough` are there for a moment; None: it need not, or it cannot."""
        return None if self.enough or self.state is None or not self.lacks_for_now else self._lapse.wait()

    def renewed(self, sent: float, session_timeout: float) -> None:
        """Note a renewal of the lease, see `Lease.renewed`. What waited for it is released."""
        was_valid = self.lease.valid
        self._doubt = self.waiting = ""
        self.lease.renewed(sent, session_timeout)
        if not was_valid:
            self._release()

    # ------------------------------------------------------------------ up to where clients read

    def _limit_reads(self, *, near: bool) -> None:  # noqa: ARG002  the set decides
        end = self.copied if self.state is not None else max(self._told, 0)
        if end != self._log.read_end:
            self._log.read_end = end
            self._read_on()

    def was_told(self, acknowledged_end: int) -> None:
        """Of a follower: its leader has acknowledged so far. Clients read no further here: the rest may be cut."""
        if acknowledged_end > self._told:
            self._told = acknowledged_end
            if self.state is None:
                self._limit_reads(near=True)

    def log_was_cut(self) -> None:
        self._told = min(self._told, self._log.end)
        super().log_was_cut()

    def tick(self) -> None:
        now = self._clock.monotonic()
        self._look_for_joining(now)
        connected = {id(one) for one in self.connected}
        for one in self._followers.values():
            if id(one.replica) in connected:
                one.seen = now
        self._release()

    @property
    def group_role(self) -> GroupRole:
        state, minimum = self.state, self._options.min_in_sync_replicas
        if state is None:
            number = self._own or self._options.broker_id
            return GroupRole(number, acknowledged=self._told, minimum=minimum, waiting=self.waiting)
        in_sync = tuple(one.member for one in state.in_sync)
        doubt = "" if self.enough else self.lacking
        now, copied = self._clock.monotonic(), self.followers
        behind_ms = {number: self.behind_ms(place, now) for number, place in copied.items()}
        lease_ms = int(self.lease.seconds * 1000)
        return GroupRole(self._own, in_sync, copied, self.copied, doubt, behind_ms, minimum, lease_ms)

    @property
    def told_end(self) -> int:
        return self._acknowledged if self.state is not None else -1

    # ------------------------------------------------------------------ followers

    def ticket(self, place: Place, epoch: int) -> int:
        """Return a number by which a follower's connection shows who it is. Raises Refused: its reports would not count."""
        state = self.state
        why = _fault(place)
        if not why:
            why = "this broker does not lead" if state is None else may_report(state, place, epoch, self._incarnation)
        if why:
            raise Refused(Reason.UNAVAILABLE, f"reports of member {place.member} do not count here: {why}")
        now = self._clock.monotonic()
        self._tickets = {number: one for number, one in self._tickets.items() if one.until > now}
        while len(self._tickets) >= TICKETS_MAX:
            del self._tickets[next(iter(self._tickets))]
        number = int(self._clock.token()[:15], 16) + 1
        self._tickets[number] = Ticket(place, epoch, now + TICKET_SECONDS)
        return number

    def identify(self, replica: Replica, ticket: int) -> bool:
        """Note whose connection it is. Returns whether the ticket is good."""
        found = self._tickets.pop(ticket, None)
        state = self.state
        if found is None or state is None or found.epoch != state.epoch or found.until < self._clock.monotonic():
            return False
        before = self._followers.get(found.place.member)
        copied = before.copied if before is not None and before.place == found.place else NOT_YET
        self._followers[found.place.member] = Follower(found.place, replica, copied, self._clock.monotonic())
        return True

    def report(self, replica: Replica, log_end: int) -> None:
        replica.copied = log_end
        for one in self._followers.values():
            if one.replica is replica:
                # Less than before: it was cut, or came back without the end of its log. It counts as it is.
                one.copied = log_end
                self._release()
                return

    # ------------------------------------------------------------------ changes of the set

    def wanted(self) -> GroupState | None:
        """Return the state that this leader should put into ZooKeeper; None: it is right as it is, or a change is under way."""
        state = self.state
        if state is None or self._attempts:
            return None
        now, timeout = self._clock.monotonic(), self._options.in_sync_timeout
        lagging = [
            one.member
            for one in state.in_sync
            if one.member != self._own and (one.member not in self._alive or self._lag_ms(one, now) > timeout)
        ]
        if lagging and (less := shrunk(state, lagging, self._options.min_in_sync_replicas)) is not None:
            return less
        if (joining := self._joining) is not None:
            one = self._followers[joining.place.member]
            has_tables = self.tables is None or self.tables.has(joining.place, joining.tables)
            if (
                one.place == joining.place
                and has_tables
                and caught_up(one.copied, self._epoch_start, joining.acknowledged)
            ):
                return grown(state, joining.place)
        return None

    def _look_for_joining(self, now: float) -> None:
        """Choose a follower that is near enough to come into the set, one at a time, or give up one that does not catch up."""
        state, joining = self.state, self._joining
        if joining is not None:
            is_in = state is not None and joining.place in state.in_sync
            is_late = now - joining.since > JOIN_SECONDS and not self._attempts
            if is_in or is_late or state is None:
                self._joining = None
                self._require()
            return
        if state is None or not self.lease.valid or self._attempts:
            return
        connected = {id(one) for one in self.connected}
        for one in self._followers.values():
            if (
                one.place not in state.in_sync
                and one.place.member in self._alive
                and id(one.replica) in connected
                and one.copied >= self._epoch_start
                and self.behind_ms(one.copied, now) <= NEAR_MS
            ):
                self._joining = Joining(
                    one.place, self.copied, now, NO_CHANGES if self.tables is None else self.tables.mark
                )
                self._require()
                return

    def _lag_ms(self, place: Place, now: float) -> float:
        """How long a member has lacked something, ms. One that was never here since this epoch began lacks all of it."""
        one = self._followers.get(place.member)
        if one is None or one.place != place:
            return (now - self._since) * 1000
        if any(replica is one.replica for replica in self.connected):
            return self.behind_ms(one.copied, now)
        return (now - one.seen) * 1000

    @property
    def present(self) -> frozenset[int]:
        """Members that copy this log now, and have reported in this epoch."""
        connected = {id(one) for one in self.connected}
        return frozenset(
            number for number, one in self._followers.items() if one.copied != NOT_YET and id(one.replica) in connected
        )

    @property
    def followers(self) -> dict[int, int]:
        """Member → LogOffset up to which it has the log, of those that have reported in this epoch."""
        return {number: one.copied for number, one in self._followers.items() if one.copied != NOT_YET}


def _fault(place: Place) -> str:
    """Return why there cannot be such a place; "": there can."""
    if not 1 <= place.member <= MEMBERS_MAX:
        return f"members have numbers from 1 to {MEMBERS_MAX}"
    return (
        ""
        if 0 < len(place.store) <= TOKEN_CHARS_MAX
        else f"its store has no token of 1 to {TOKEN_CHARS_MAX} characters"
    )
