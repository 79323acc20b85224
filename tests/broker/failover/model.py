"""A group of brokers with failover as a value, and every step that can change it: what `search.py` looks through.

Decisions are taken by the functions that the broker itself uses: `metaq.broker.failover.protocol` and `parting`. What is around them
is made of plain values: logs, what ZooKeeper has, changes on their way to it. docs/failover-protocol.md says what is left out, and why
nothing is missed by that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct, structs

from metaq.broker.failover import protocol
from metaq.model import leadership
from metaq.model.failover import NOBODY, GroupState, Member, Membership, Place

Record: TypeAlias = tuple[int, str, int]
"""(epoch, incarnation of the leader that wrote it, number in the epoch). Number 0 is the record with which the epoch begins."""
Log: TypeAlias = tuple[Record, ...]

IDLE, FOLLOWS, LEADS, HANDS_OVER = range(4)


class Violation(AssertionError):
    """A promise is broken."""


class Budget(Struct, frozen=True, gc=False):
    """How often something may happen yet."""

    elections: int = 2
    """Applied ones."""
    appends: int = 2
    kills: int = 1
    powers: int = 1
    """Power cuts."""
    cuts: int = 2
    """Connections between brokers that end, and sessions at ZooKeeper that end while the process runs."""
    changes: int = 2
    """Changes of the set that a leader sends."""
    hand_overs: int = 0
    wipes: int = 0
    """Folders that are replaced by empty ones; each may be put back."""


class Disk(Struct, frozen=True, gc=False):
    """What outlives a process."""

    kept: Membership
    log: Log = ()
    lost_power: bool = False
    """The next start finds that the power was cut."""

    @property
    def whole(self) -> bool:
        return self.kept.whole and not self.lost_power


class Report(Struct, frozen=True, gc=False):
    """What a follower has said to a leader, on a connection with a ticket."""

    place: Place
    epoch: int
    """Of the ticket."""
    end: int


class Broker(Struct, frozen=True, gc=False):
    disk: Disk
    shelf: Disk | None = None
    """A folder of this broker that lies somewhere else."""
    start: int = 0
    """Starts so far: they make the incarnation."""
    runs: bool = True
    seen: GroupState | None = None
    """State of the group as this broker knows it; None: it has not looked, or what it knows lets it do nothing."""
    role: int = IDLE
    epoch_start: int = 0
    """Of a leader."""
    acknowledged: int = 0
    """By a leader."""
    whole_from: int = -1
    """Of a follower that is not whole: from which end of its log on it is; -1: of others."""
    told: int = 0
    """Of a follower: up to where its leader has acknowledged, as it has heard."""
    reports: tuple[Report, ...] = ()
    attempts: frozenset[GroupState] = frozenset()
    """Changes that were sent to ZooKeeper, and of which is not known what has become."""


class World(Struct, frozen=True, gc=False):
    state: GroupState | None
    """In ZooKeeper."""
    live: tuple[Member | None, ...]
    net: frozenset[GroupState]
    """Changes that were sent and may be made: who sent them saw the state that is there now."""
    brokers: tuple[Broker, ...]
    acknowledged: Log
    """Longest log that was acknowledged, and could be read: what must not be lost."""
    lost: int = 0
    """The newest epoch that began when every member of the set had lost its power. Leaders before it may acknowledge what is lost
    since: they could have done so in time. (It takes a lease to keep them from it.)"""


Step: TypeAlias = tuple[str, World, Budget]


def incarnation(number: int, start: int) -> str:
    return f"{number}.{start}"


@functools.lru_cache(maxsize=100_000)
def epochs(log: Log) -> tuple[leadership.Epoch, ...]:
    """The epochs of a log, as its records say them."""
    return tuple(leadership.Epoch(one[0], at, one[1], 0) for at, one in enumerate(log) if one[2] == 0)


def common(one: Log, other: Log) -> int:
    """How many records two logs have in common from their begin."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(at for at in range(shorter) if one[at] != other[at])


def in_sync_group(size: int, *, members: int = 0, records: int = 0) -> World:
    """A group whose member 1 leads in epoch 1. Args: members: of the set, from 1 on; 0: all."""
    log: Log = ((1, "1.0", 0), *((1, "1.0", 1 + at) for at in range(records)))
    stores = [f"store {number}" for number in range(1, size + 1)]
    inside = members or size
    state = GroupState("h", 1, 1, "1.0", tuple(Place(at + 1, stores[at]) for at in range(inside)))
    disks = [Disk(Membership(stores[at], at + 1, "h", 1), log if at < inside else ()) for at in range(size)]
    reports = tuple(Report(one, 1, len(log)) for one in state.in_sync[1:])
    first = Broker(disks[0], seen=state, role=LEADS, acknowledged=len(log), reports=reports)
    others = [Broker(disk, seen=state, role=FOLLOWS if disk.log else IDLE) for disk in disks[1:]]
    live = tuple(Member(at + 1, incarnation(at + 1, 0), stores[at], "", True, 0, 0) for at in range(size))
    return World(state, live, frozenset(), (first, *others), log)


def no_group(size: int) -> World:
    """Brokers with empty folders, and a ZooKeeper that knows nothing."""
    brokers = tuple(Broker(Disk(Membership(f"store {number}", number))) for number in range(1, size + 1))
    return World(None, (None,) * size, frozenset(), brokers, ())


class Model:
    """The steps. Tests replace single ones by broken ones.

    Args:
        minimum: members that the set keeps at least.
        tells: leaders tell followers up to where they have acknowledged, and who leads next begins with that.
        reduced: states that differ in nothing that matters are one, see `settled`.
    """

    def __init__(self, minimum: int, *, tells: bool = False, reduced: bool = True) -> None:
        self.minimum, self.tells, self.reduced = minimum, tells, reduced

    # ------------------------------------------------------------------ the pieces

    def member(self, broker: Broker, number: int) -> Member:
        """What a broker says of itself now. The end of a log says nothing of one that is whole."""
        kept, log = broker.disk.kept, broker.disk.log
        end, epoch = (0, 0) if kept.whole else (len(log), epochs(log)[-1].number if epochs(log) else 0)
        return Member(number, incarnation(number, broker.start), kept.store, "", kept.whole, end, epoch)

    def may_follow(self, world: World, number: int) -> bool:
        """Whether the leader that a broker knows is there, and would give it a ticket."""
        seen = world.brokers[number - 1].seen
        if seen is None or seen.leader in {NOBODY, number}:
            return False
        leader = world.brokers[seen.leader - 1]
        if not leader.runs or leader.role not in {LEADS, HANDS_OVER} or leader.seen is None:
            return False
        own = incarnation(seen.leader, leader.start)
        place = Place(number, world.brokers[number - 1].disk.kept.store)
        return own == seen.incarnation and not protocol.may_report(leader.seen, place, seen.epoch, own)

    def required(self, number: int, broker: Broker) -> frozenset[Place]:
        return protocol.must_have(number, broker.seen, *broker.attempts)

    def may_acknowledge(self, number: int, broker: Broker) -> int:
        """Up to where a leader may acknowledge."""
        assert broker.seen is not None
        own = incarnation(number, broker.start)
        copied = {
            one.place: one.end
            for one in broker.reports
            if not protocol.may_report(broker.seen, one.place, one.epoch, own)
        }
        return protocol.acknowledged(len(broker.disk.log), copied, self.required(number, broker))

    # ------------------------------------------------------------------ what is promised

    def check(self, world: World) -> None:
        """Raises Violation."""
        state = world.state
        if state is None:
            return
        for place in state.in_sync:
            broker = world.brokers[place.member - 1]
            for disk in (broker.disk, broker.shelf):
                if disk is not None and disk.kept.store == place.store and disk.whole:
                    have = common(disk.log, world.acknowledged)
                    if have < len(world.acknowledged):
                        raise Violation(
                            f"member {place.member} is in the in-sync set and whole, and has {have} of {len(world.acknowledged)} "
                            "acknowledged records"
                        )
        leaders: dict[int, str] = {}
        for broker in world.brokers:
            for one in epochs(broker.disk.log):
                if leaders.setdefault(one.number, one.leader) != one.leader:
                    raise Violation(f"epoch {one.number} has two leaders: {leaders[one.number]} and {one.leader}")

    def check_change(self, before: GroupState | None, after: GroupState) -> None:
        if before is None:
            return
        if len(after.in_sync) < min(self.minimum, len(before.in_sync)):
            raise Violation(
                f"the set falls from {len(before.in_sync)} members to {len(after.in_sync)}, minimum {self.minimum}"
            )
        if after.leader and (after.leader, after.incarnation) != (before.leader, before.incarnation):
            return
        if after.epoch != before.epoch:
            raise Violation("the epoch changes, and the leader does not")

    def acknowledge(self, world: World, number: int, end: int) -> World:
        """A leader acknowledges, and lets clients read, up to there. Raises Violation."""
        log, known = world.brokers[number - 1].disk.log[:end], world.acknowledged
        seen = world.brokers[number - 1].seen
        assert seen is not None
        if seen.epoch < world.lost:
            return world
        if common(log, known) < min(len(log), len(known)):
            raise Violation(
                f"member {number} acknowledges another record where one was acknowledged, and could be read"
            )
        for at, other in enumerate(world.brokers):
            replaced = other.runs and other.role == LEADS and other.seen is not None and other.seen.epoch > seen.epoch
            if replaced and other.disk.log[:end] != log:
                raise Violation(
                    f"member {number} was replaced and acknowledges what its successor, member {at + 1}, does not have"
                )
        return structs.replace(world, acknowledged=log) if len(log) > len(known) else world

    def check_leader(self, world: World, number: int) -> World:
        """Return the state with what of the acknowledged log is left at a new leader. Raises Violation: it lost what it may not lose.

        It may lose what every member of the set has lost with its power before it was on a disk.
        """
        state, disk = world.state, world.brokers[number - 1].disk
        assert state is not None
        left = common(disk.log, world.acknowledged)
        if disk.whole and left == len(world.acknowledged):
            return world
        folders = [
            one
            for place in state.in_sync
            for one in (world.brokers[place.member - 1].disk, world.brokers[place.member - 1].shelf)
            if one is not None and one.kept.store == place.store
        ]
        best = max(common(one.log, world.acknowledged) for one in folders)
        if disk.whole or left < best:
            raise Violation(
                f"member {number} leads with {left} of {len(world.acknowledged)} acknowledged records, and a member of the set has {best}"
            )
        if any(one.whole for one in folders):
            raise Violation(f"member {number} leads, its log is not whole, and that of a member of the set is")
        return structs.replace(world, acknowledged=world.acknowledged[:left], lost=state.epoch)

    # ------------------------------------------------------------------ the steps

    def steps(self, world: World, budget: Budget) -> Iterator[Step]:
        """Every step that may come next. Raises Violation."""
        for change in world.net:
            yield from self.apply(world, budget, change)
        for at, broker in enumerate(world.brokers):
            number = at + 1
            if not broker.runs:
                yield from self.down(world, budget, number, broker)
                continue
            if broker.seen != world.state:
                yield from self.look(world, budget, number, broker)
            elif broker.attempts:
                yield from self.answer(world, budget, number, broker)
            yield from self.announce(world, budget, number, broker)
            if broker.role == LEADS:
                yield from self.lead(world, budget, number, broker)
            else:
                if world.state is None:
                    yield from self.create(world, budget, number, broker)
                elif broker.role != HANDS_OVER and broker.seen == world.state and budget.elections:
                    yield from self.elect(world, budget, number, broker)
                if broker.role != HANDS_OVER:
                    yield from self.follow(world, budget, number, broker)
            yield from self.crash(world, budget, number, broker)

    def put(self, world: World, number: int, broker: Broker) -> World:
        brokers = world.brokers
        return structs.replace(world, brokers=(*brokers[: number - 1], broker, *brokers[number:]))

    # ZooKeeper

    def apply(self, world: World, budget: Budget, change: GroupState) -> Iterator[Step]:
        """ZooKeeper makes a change. The others that are on their way are refused from now on."""
        before = world.state
        elects = (
            before is None
            or change.epoch != before.epoch
            or (change.leader, change.incarnation) != (before.leader, before.incarnation)
        )
        if elects and change.leader != NOBODY:
            if not budget.elections:
                return
            budget = structs.replace(budget, elections=budget.elections - 1)
        self.check_change(before, change)
        yield f"ZooKeeper takes {told(change)}", structs.replace(world, state=change, net=frozenset()), budget

    def look(self, world: World, budget: Budget, number: int, broker: Broker) -> Iterator[Step]:
        state = world.state
        if state is None:
            return
        kept = structs.replace(broker.disk.kept, history=state.history, epoch=max(state.epoch, broker.disk.kept.epoch))
        disk = structs.replace(broker.disk, kept=kept)
        new = structs.replace(broker, seen=state, attempts=frozenset(), disk=disk)
        if state.incarnation != incarnation(number, broker.start):
            if broker.role != FOLLOWS or broker.seen is None or broker.seen.epoch != state.epoch:
                new = structs.replace(new, role=IDLE, whole_from=-1, acknowledged=0, epoch_start=0)
            yield f"{number} looks, and does not lead", self.put(world, number, new), budget
        elif broker.role in {LEADS, HANDS_OVER} and broker.seen is not None and broker.seen.epoch == state.epoch:
            yield f"{number} looks, and still leads", self.put(world, number, structs.replace(new, role=LEADS)), budget
        else:
            yield f"{number} looks, and leads", self.begin(world, number, new, state), budget

    def begin(self, world: World, number: int, broker: Broker, state: GroupState) -> World:
        """The epoch of a new leader begins."""
        world = self.check_leader(world, number)
        log = broker.disk.log
        disk = structs.replace(
            broker.disk,
            kept=structs.replace(broker.disk.kept, whole=True),
            log=(*log, (state.epoch, state.incarnation, 0)),
        )
        new = structs.replace(
            broker, disk=disk, role=LEADS, epoch_start=len(log), acknowledged=broker.told, told=0, whole_from=-1,
            reports=(),
        )  # fmt: skip
        return self.acknowledge(self.put(world, number, new), number, broker.told)

    def answer(self, world: World, budget: Budget, number: int, broker: Broker) -> Iterator[Step]:
        """A broker learns that its changes were not made, and will not be."""
        new = structs.replace(broker, attempts=frozenset(), role=LEADS if broker.role == HANDS_OVER else broker.role)
        world = structs.replace(world, net=world.net - broker.attempts)
        yield f"{number} learns that what it sent is lost", self.put(world, number, new), budget

    def send(self, world: World, number: int, broker: Broker, change: GroupState) -> World:
        world = structs.replace(world, net=world.net | {change})
        return self.put(world, number, structs.replace(broker, attempts=broker.attempts | {change}))

    def announce(self, world: World, budget: Budget, number: int, broker: Broker) -> Iterator[Step]:
        own = self.member(broker, number)
        if broker.role == FOLLOWS:
            own = protocol.following(own)
        if world.live[number - 1] != own:
            yield f"{number} says that it is there", self.say(world, number, own), budget

    def say(self, world: World, number: int, own: Member | None) -> World:
        return structs.replace(world, live=(*world.live[: number - 1], own, *world.live[number:]))

    # Who leads

    def create(self, world: World, budget: Budget, number: int, broker: Broker) -> Iterator[Step]:
        if broker.attempts or not budget.elections:
            return
        change = protocol.created(self.member(broker, number), f"h{number}")
        yield f"{number} sends {told(change)}", self.send(world, number, broker, change), budget

    def elect(self, world: World, budget: Budget, number: int, broker: Broker) -> Iterator[Step]:
        assert world.state is not None
        if broker.attempts:
            return
        live = {at + 1: one for at, one in enumerate(world.live) if one is not None}
        own = self.member(broker, number)
        outcome = protocol.elect(own, world.state, live, minimum=self.minimum, patient=False)
        if isinstance(outcome, protocol.Election):
            new = structs.replace(broker, role=IDLE, whole_from=-1)  # it takes nothing from the leader before any more
            yield f"{number} sends {told(outcome.state)}", self.send(world, number, new, outcome.state), budget

    # A leader

    def lead(self, world: World, budget: Budget, number: int, broker: Broker) -> Iterator[Step]:
        seen, log = broker.seen, broker.disk.log
        assert seen is not None
        end = self.may_acknowledge(number, broker)
        if end > broker.acknowledged:
            new = self.put(world, number, structs.replace(broker, acknowledged=end))
            yield f"{number} acknowledges up to {end}", self.acknowledge(new, number, end), budget
        if budget.appends:
            record = seen.epoch, incarnation(number, broker.start), log[-1][2] + 1
            disk = structs.replace(broker.disk, log=(*log, record))
            new = self.put(world, number, structs.replace(broker, disk=disk))
            yield f"{number} appends", new, structs.replace(budget, appends=budget.appends - 1)
        if seen != world.state or broker.attempts:
            return
        if budget.changes:
            less = structs.replace(budget, changes=budget.changes - 1)
            for place in seen.in_sync:
                if place.member != number:
                    yield from self.shrink(world, less, number, broker, place.member)
            for report in broker.reports:
                if not protocol.may_report(seen, report.place, report.epoch, incarnation(number, broker.start)):
                    yield from self.grow(world, less, number, broker, report)
        if budget.hand_overs:
            change = protocol.handed_over(seen, NOBODY)
            new = self.send(world, number, structs.replace(broker, role=HANDS_OVER), change)
            yield f"{number} hands over", new, structs.replace(budget, hand_overs=budget.hand_overs - 1)

    def shrink(self, world: World, budget: Budget, number: int, broker: Broker, lagging: int) -> Iterator[Step]:
        assert broker.seen is not None
        change = protocol.shrunk(broker.seen, (lagging,), self.minimum)
        if change is not None:
            yield f"{number} sends {told(change)}", self.send(world, number, broker, change), budget

    def grow(self, world: World, budget: Budget, number: int, broker: Broker, report: Report) -> Iterator[Step]:
        assert broker.seen is not None
        if protocol.caught_up(report.end, broker.epoch_start, broker.acknowledged):
            change = protocol.grown(broker.seen, report.place)
            if change is not None:
                yield f"{number} sends {told(change)}", self.send(world, number, broker, change), budget

    # A follower

    def follow(self, world: World, budget: Budget, number: int, broker: Broker) -> Iterator[Step]:
        if not self.may_follow(world, number):
            return
        assert broker.seen is not None
        at = broker.seen.leader
        leader = world.brokers[at - 1]
        log, theirs = broker.disk.log, leader.disk.log
        if broker.role != FOLLOWS:
            yield from self.join(world, budget, number, broker, at)
            return
        place = Place(number, broker.disk.kept.store)
        new = broker
        if self.tells:
            new = structs.replace(broker, told=max(broker.told, min(leader.acknowledged, len(log))))
        if Report(place, broker.seen.epoch, len(log)) not in leader.reports or new != broker:
            yield f"{number} reports {len(log)} to {at}", self.report(self.put(world, number, new), number, at), budget
        if len(log) < len(theirs):
            # A report on its way makes no difference: the leader may acknowledge later, too.
            new = structs.replace(new, disk=structs.replace(broker.disk, log=(*log, theirs[len(log)])))
            yield f"{number} copies from {at}", self.report(self.put(world, number, new), number, at), budget
        if 0 <= broker.whole_from <= len(log):
            kept = structs.replace(broker.disk.kept, whole=True)
            new = structs.replace(broker, whole_from=-1, disk=structs.replace(broker.disk, kept=kept))
            yield f"{number} is whole", self.put(world, number, new), budget
        if budget.cuts:
            new = structs.replace(broker, role=IDLE, whole_from=-1)
            yield f"{number} loses {at}", self.put(world, number, new), structs.replace(budget, cuts=budget.cuts - 1)

    def join(self, world: World, budget: Budget, number: int, broker: Broker, at: int) -> Iterator[Step]:
        """Cut off what the leader does not have, and get a ticket."""
        own, known = protocol.following(self.member(broker, number)), world.live[number - 1]
        if known not in {None, own} and not broker.disk.kept.whole:
            if known.incarnation != own.incarnation:
                return  # its last process: it says that it is there first
            world = self.say(world, number, own)
        log, theirs = broker.disk.log, world.brokers[at - 1].disk.log
        kept = leadership.parting(epochs(log), len(log), epochs(theirs), len(theirs))
        if kept > common(log, theirs):
            raise Violation(
                f"{number} keeps {kept} records of its log, and has {common(log, theirs)} in common with its leader"
            )
        if kept < common(log, world.acknowledged):
            raise Violation(
                f"{number} cuts its log to {kept} records, and {common(log, world.acknowledged)} are acknowledged"
            )
        new = structs.replace(
            broker, role=FOLLOWS, disk=structs.replace(broker.disk, log=log[:kept]), told=min(broker.told, kept),
            whole_from=-1 if broker.disk.kept.whole else len(theirs),
        )  # fmt: skip
        yield (
            f"{number} follows {at} from {kept} on",
            self.put(world, number, new),
            budget,
        )

    def report(self, world: World, number: int, at: int) -> World:
        broker, leader = world.brokers[number - 1], world.brokers[at - 1]
        assert broker.seen is not None
        place = Place(number, broker.disk.kept.store)
        others = [one for one in leader.reports if one.place.member != number]
        reports = (*others, Report(place, broker.seen.epoch, len(broker.disk.log)))
        return self.put(
            world, at, structs.replace(leader, reports=tuple(sorted(reports, key=lambda one: one.place.member)))
        )

    # What goes wrong

    def crash(self, world: World, budget: Budget, number: int, broker: Broker) -> Iterator[Step]:
        disk = broker.disk
        if budget.kills:
            new = self.put(world, number, Broker(disk, broker.shelf, broker.start, runs=False))
            yield f"{number} is killed", new, structs.replace(budget, kills=budget.kills - 1)
        if budget.powers:
            less = structs.replace(budget, powers=budget.powers - 1)
            for end in range(len(disk.log) + 1):
                lost = structs.replace(disk, log=disk.log[:end], lost_power=True)
                yield (
                    f"{number} loses its power, and its log from {end} on",
                    self.put(world, number, Broker(lost, broker.shelf, broker.start, runs=False)),
                    less,
                )
        if budget.cuts and world.live[number - 1] is not None:
            less = structs.replace(budget, cuts=budget.cuts - 1)
            yield f"the session of {number} ends", self.say(world, number, None), less

    def down(self, world: World, budget: Budget, number: int, broker: Broker) -> Iterator[Step]:
        if world.live[number - 1] is not None:
            yield f"the session of {number} ends", self.say(world, number, None), budget
        yield f"{number} starts", self.put(world, number, self.started(broker)), budget
        if budget.wipes and broker.shelf is None:
            empty = Disk(Membership(f"other store {number}", number))
            new = self.put(world, number, structs.replace(broker, disk=empty, shelf=broker.disk))
            yield f"{number} gets an empty folder", new, structs.replace(budget, wipes=budget.wipes - 1)
        elif broker.shelf is not None:
            new = self.put(world, number, structs.replace(broker, disk=broker.shelf, shelf=broker.disk))
            yield f"{number} gets its other folder back", new, budget

    def started(self, broker: Broker) -> Broker:
        """A new process. That the log is not whole is saved before anybody is told."""
        kept = structs.replace(broker.disk.kept, whole=broker.disk.whole)
        return Broker(structs.replace(broker.disk, kept=kept, lost_power=False), broker.shelf, broker.start + 1)

    # ------------------------------------------------------------------ states that are the same

    def settled(self, world: World) -> World:
        """The same state, without what makes no difference any more.

        A broker that follows nobody and whose knowledge is old can do nothing but look; what it learns only lets it do more. So it looks.
        """
        if not self.reduced:
            return world
        for at, broker in enumerate(world.brokers):
            new = broker
            if broker.runs and world.state is not None and broker.seen != world.state:
                elected = world.state.incarnation == incarnation(at + 1, broker.start)
                same = broker.seen is not None and broker.seen.epoch == world.state.epoch and broker.role == FOLLOWS
                if not elected and (same or (broker.role in {IDLE, FOLLOWS} and not self.may_follow(world, at + 1))):
                    ((_, looked, _),) = self.look(world, Budget(), at + 1, broker)
                    new = looked.brokers[at]
            if new.role == FOLLOWS and not self.may_follow(world, at + 1):
                new = structs.replace(new, role=IDLE, whole_from=-1)
            if new.role in {IDLE, FOLLOWS} and new.reports:
                new = structs.replace(new, reports=())
            if new is not broker:
                world = self.put(world, at + 1, new)
        return world


def told(state: GroupState) -> str:
    places = ", ".join(
        f"{one.member}{'' if one.store[0] == 's' else ' with the other folder'}" for one in state.in_sync
    )
    return f"epoch {state.epoch}, leader {state.incarnation or 'nobody'}, set {{{places}}}"
