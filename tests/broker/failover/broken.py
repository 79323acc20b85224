"""Rules and steps that are wrong: a search that does not find out is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import structs

from metaq.broker.failover import protocol
from metaq.model.failover import Live, Member
from tests.broker.failover.model import Broker, Budget, Model, Report, Step, World

elect, may_report, must_have = protocol.elect, protocol.may_report, protocol.must_have
acknowledged, following = protocol.acknowledged, protocol.following

# ---------------------------------------------------------------------- rules


def elect_with_the_set(own: Member, state: Any, live: Live, in_sync: Any, options: Any) -> protocol.Outcome:
    """Elect as if the set were another one, and leave it as it is."""
    outcome = elect(own, structs.replace(state, in_sync=in_sync), live, **options)
    if isinstance(outcome, protocol.Waiting):
        return outcome
    return protocol.Election(
        structs.replace(outcome.state, in_sync=(own.place, *(one for one in state.in_sync if one != own.place)))
    )


def elect_outside(own: Member, state: Any, live: Live, **options: Any) -> protocol.Outcome:
    """Whoever is there may lead."""
    return elect_with_the_set(
        own, state, live, (*(one for one in state.in_sync if one != own.place), own.place), options
    )


def elect_whoever_is_here(own: Member, state: Any, live: Live, **options: Any) -> protocol.Outcome:
    """None that is here is whole: the others are not waited for."""
    here = tuple(
        one for one in state.in_sync if one == own.place or (one.member in live and live[one.member].place == one)
    )
    return elect_with_the_set(own, state, live, here, options)


def elect_in_the_same_epoch(own: Member, state: Any, live: Live, **options: Any) -> protocol.Outcome:
    outcome = elect(own, state, live, **options)
    if isinstance(outcome, protocol.Waiting):
        return outcome
    return protocol.Election(structs.replace(outcome.state, epoch=state.epoch))


def elect_by_number(own: Member, state: Any, live: Live, **options: Any) -> protocol.Outcome:
    """Whatever folder a member has."""

    def in_set(member: Member) -> Member:
        place = state.place_of(member.member)
        return structs.replace(member, store=place.store) if place is not None else member

    return elect(in_set(own), state, {number: in_set(one) for number, one in live.items()}, **options)


def acknowledged_by_number(log_end: int, copied: Any, required: Any) -> int:
    """Whatever folder a member has."""
    numbers = {one.member: end for one, end in copied.items()}
    return min([log_end, *(numbers.get(one.member, -1) for one in required)])


RULES: dict[str, dict[str, Callable[..., Any]]] = {
    "only what is known to be in ZooKeeper is waited for": {
        "must_have": lambda own, *states: must_have(own, states[0])
    },
    "only what was sent to ZooKeeper is waited for": {"must_have": lambda own, *states: must_have(own, states[-1])},
    "outside the set": {"elect": elect_outside},
    "not whole, and a whole one is away": {"elect": elect_whoever_is_here},
    "the epoch is not raised": {"elect": elect_in_the_same_epoch},
    "an empty folder is elected by its number": {"elect": elect_by_number},
    "an empty folder reports by its number": {"acknowledged": acknowledged_by_number},
    "reports of an old epoch": {
        "may_report": lambda state, follower, _epoch, own: may_report(state, follower, state.epoch, own)
    },
    "the end of a log as it was": {"following": lambda own: own},
    "caught up with the leader before": {"caught_up": lambda copied, epoch_start, _acknowledged: copied >= epoch_start},
    "caught up with what this leader has acknowledged": {
        "caught_up": lambda copied, _start, acknowledged: copied >= acknowledged
    },
}

# ---------------------------------------------------------------------- steps


class GrowsAfter(Model):
    """The leader waits for a follower once it knows that it is in the set."""

    def grow(self, world: World, budget: Budget, number: int, broker: Broker, report: Report) -> Iterator[Step]:
        for label, new, left in super().grow(world, budget, number, broker, report):
            yield label, self.put(new, number, broker), left


class ShrinksByItself(Model):
    """The leader leaves a member out, and asks nobody."""

    def shrink(self, world: World, budget: Budget, number: int, broker: Broker, lagging: int) -> Iterator[Step]:
        assert broker.seen is not None
        change = protocol.shrunk(broker.seen, (lagging,), self.minimum)
        if change is not None:
            yield (
                f"{number} waits no more for {lagging}",
                self.put(world, number, structs.replace(broker, seen=change)),
                budget,
            )


class GivesUp(Model):
    """The leader takes a change without an answer for one that is not made."""

    def answer(self, world: World, budget: Budget, number: int, broker: Broker) -> Iterator[Step]:
        for label, new, left in super().answer(world, budget, number, broker):
            yield label, structs.replace(new, net=world.net), left


class ForgetsThatItIsNotWhole(Model):
    """Nothing is saved of it: the next start takes its log for whole."""

    def crash(self, world: World, budget: Budget, number: int, broker: Broker) -> Iterator[Step]:
        for label, new, left in super().crash(world, budget, number, broker):
            crashed = new.brokers[number - 1]
            if not crashed.runs:
                disk = structs.replace(crashed.disk, kept=structs.replace(crashed.disk.kept, whole=True))
                new = self.put(new, number, structs.replace(crashed, disk=disk))
            yield label, new, left


class KeepsWhatItWasTold(Model):
    """A follower whose log was cut goes on from what was acknowledged before."""

    def join(self, world: World, budget: Budget, number: int, broker: Broker, at: int) -> Iterator[Step]:
        for label, new, left in super().join(world, budget, number, broker, at):
            yield label, self.put(new, number, structs.replace(new.brokers[number - 1], told=broker.told)), left
