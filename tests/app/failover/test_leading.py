"""A leader's begin and its hand-over, with a ZooKeeper that answers what the test says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from metaq.app.failover.group import Group
from metaq.app.failover.leading import TABLES_SECONDS, Leading
from metaq.app.failover.membership import MEMBERSHIP, KeptMembership
from metaq.broker.broker import Broker
from metaq.broker.failover.epochs import epochs_in
from metaq.errors import ConfigError, ConnectionFailed, Refused, UnknownOutcome
from metaq.in_pieces import finish
from metaq.log import RateLimitedLog
from metaq.model.failover import NOBODY, GroupState, Place
from metaq.model.leadership import Epoch, rank
from metaq.saved_file import TextFile
from tests.broker.support import MemoryFile, open_broker
from tests.store.support import message
from tests.support import PATIENCE

TWO = Place(2, "two")


class Nodes:
    """What stands for the group's nodes. `error`: what the next call raises."""

    session_timeout, connected = 60.0, True

    def __init__(self, elapsed: Callable[[], float]) -> None:
        self._elapsed = elapsed
        self.error: Exception | None = None
        self.version: int | None = 1
        self.states: list[GroupState] = []

    def _fail(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error

    async def renew(self, _own: object) -> float:
        self._fail()
        return self._elapsed()

    async def announce(self, _own: object) -> None: ...

    async def swap(self, state: GroupState, _version: int) -> int | None:
        self._fail()
        if self.version is not None:
            self.states.append(state)
        return self.version


class Leader:
    """Member 1, and what it tells."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.in_sync, self.nodes = broker, broker.in_sync, Nodes(broker.clock.elapsed)
        membership = KeptMembership(broker, TextFile(MemoryFile(), MEMBERSHIP), lambda act: act(), "10.0.0.1:10911")
        wake = asyncio.Event()
        self.wake = wake
        faults = RateLimitedLog(logging.getLogger(__name__), broker.clock)

        def call_soon(act: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(act)

        loop = asyncio.get_running_loop()
        group = Group("broker-a", 1, broker, broker.in_sync, self.nodes, membership, call_soon, wake, faults)
        self.handed: list[int] = []
        self.resigned: list[str] = []
        self.leading = Leading(group, self.resigned.append, self.handed.append)
        self.own = membership.member()
        self.state = GroupState("history", 3, 1, self.own.incarnation, (self.own.place, TWO))

    async def begin(self) -> None:
        await self.leading.begin(self.state, 0)

    def follower(self) -> Any:
        """Member 2 follows and has all."""
        link = self.in_sync.connect("10.0.0.2:1")
        assert self.in_sync.identify(link, self.in_sync.ticket(TWO, 3))
        self.in_sync.report(link, self.broker.store.log.end)
        return link

    @property
    def leads(self) -> bool:
        """Whether it takes messages, and acknowledges them."""
        return self.broker.appender.refusal() is None and self.in_sync.enough


@pytest.fixture
def broker(tmp_path) -> Iterator[Broker]:
    with open_broker(tmp_path, leading=False, broker_id=1, failover="zookeeper") as opened:
        yield opened


def run(work: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await work()

    asyncio.run(bounded())


def test_an_epoch_begins_once_though_zookeeper_confirms_it_at_the_second_try(broker):
    async def work() -> None:
        leader = Leader(broker)
        leader.nodes.error = ConnectionFailed("away")
        with pytest.raises(ConnectionFailed):
            await leader.begin()
        assert leader.leading.epoch is None
        assert not leader.leads
        broker.clock.advance(1)
        await leader.begin()
        assert leader.leads
        (epoch,) = broker.roles.kept.epochs
        assert (epoch.number, epoch.start, epoch.leader, epoch.broker_id) == (3, 0, leader.own.incarnation, 1)
        assert epochs_in(broker.store) == (epoch,)

    run(work)


def test_an_epoch_ranks_above_those_that_its_leader_has_not_heard_of(broker):
    """Others may have begun epochs, and ended before their records were copied: they follow this leader all the same."""

    async def work() -> None:
        leader = Leader(broker)
        await leader.begin()
        unheard = tuple(Epoch(number, 0, f"other {number}", 2**50, 2, number) for number in (1, 2))
        assert broker.roles.kept.rank > rank(unheard)

    run(work)


def test_an_older_state_of_its_epoch_is_replaced_by_its_own(broker, caplog):
    """A ZooKeeper that was restored within an epoch names members that have left the set since, and lack what was acknowledged."""

    async def work() -> None:
        leader = Leader(broker)
        await leader.begin()
        alone = GroupState("history", 3, 1, leader.own.incarnation, (leader.own.place,))
        leader.nodes.version = 6
        await leader.leading.go_on(alone, 5)
        leader.nodes.states.clear()
        await leader.leading.go_on(leader.state, 2)
        assert (leader.nodes.states, leader.in_sync.state) == ([alone], alone)
        assert "restored from a backup" in caplog.text
        await leader.leading.go_on(alone, 6)
        assert leader.nodes.states == [alone]

    run(work)


def test_it_hands_over_when_its_successor_has_all(broker):
    async def work() -> None:
        leader = Leader(broker)
        await leader.begin()
        link = leader.follower()
        broker.appender.put([message("orders", 0, b"x")])
        handing = asyncio.ensure_future(leader.leading.hand_over(NOBODY, "by hand"))
        await asyncio.sleep(0.02)
        assert not handing.done() and leader.nodes.states == []
        assert not leader.leads  # it takes nothing more
        leader.in_sync.report(link, broker.store.log.end)
        assert await handing == 2
        (state,) = leader.nodes.states
        assert (state.leader, state.incarnation, state.hand_to, state.epoch) == (NOBODY, "", 2, 3)
        assert (leader.handed, leader.leading.epoch, leader.in_sync.in_doubt) == ([2], None, True)
        with pytest.raises(Refused, match="is not led by this broker"):
            await leader.leading.hand_over(NOBODY, "by hand")

    run(work)


def test_its_successor_has_the_progress_of_the_last_moment(broker):
    """Tables are not in the log, and follow a moment behind it."""

    async def work() -> None:
        leader = Leader(broker)
        await leader.begin()
        leader.follower()
        finish(broker.feed.changes(0, 0))
        broker.table_acks.taken(TWO, *broker.feed.mark)
        broker.offsets.put("g", "orders", 0, 5)
        handing = asyncio.ensure_future(leader.leading.hand_over(NOBODY, "by hand"))
        await asyncio.sleep(0.05)
        assert not handing.done() and leader.nodes.states == []
        broker.table_acks.taken(TWO, *broker.feed.mark)
        assert await handing == 2

    run(work)


def test_a_successor_whose_tables_do_not_come_leads_without_the_last_changes(broker, caplog):
    async def work() -> None:
        leader = Leader(broker)
        await leader.begin()
        leader.follower()
        finish(broker.feed.changes(0, 0))
        handing = asyncio.ensure_future(leader.leading.hand_over(NOBODY, "by hand"))
        await asyncio.sleep(0.05)
        assert not handing.done()
        broker.clock.advance(TABLES_SECONDS)
        broker.table_acks.tick()
        assert await handing == 2

    run(work)
    assert "member 2 has not taken the last changes of tables" in caplog.text


@pytest.mark.parametrize(
    "why", [ConfigError("no access"), ConnectionFailed("away"), "changed", "no such member", "nobody is here"]
)
def test_a_leader_that_could_not_hand_over_leads_on(broker, why):
    async def work() -> None:
        leader = Leader(broker)
        await leader.begin()
        link = leader.follower()
        to = NOBODY
        if isinstance(why, Exception):
            leader.nodes.error = why
        elif why == "changed":
            leader.nodes.version = None
        elif why == "no such member":
            to = 9
        else:
            leader.in_sync.disconnect(link)
            leader.in_sync.settle(GroupState("history", 3, 1, leader.own.incarnation, (leader.own.place,)))
        with pytest.raises(type(why) if isinstance(why, Exception) else Refused):
            await leader.leading.hand_over(to, "by hand")
        assert leader.leads and leader.leading.epoch == 3 and leader.handed == []
        broker.appender.put([message("orders", 0, b"x")])

    run(work)


def test_a_leader_that_does_not_know_whether_it_has_handed_over_acknowledges_nothing(broker):
    async def work() -> None:
        leader = Leader(broker)
        await leader.begin()
        leader.follower()
        leader.nodes.error = UnknownOutcome("no answer")
        with pytest.raises(UnknownOutcome):
            await leader.leading.hand_over(NOBODY, "by hand")
        assert leader.in_sync.in_doubt and not leader.leads
        assert leader.wake.is_set()
        # The next look says that nothing was made: it leads on, and takes messages again, once its lease is renewed.
        await leader.leading.go_on(leader.state, 0)
        for _ in range(6):
            leader.in_sync.renewed(broker.clock.elapsed(), 60.0)
            broker.clock.advance(10)
        leader.in_sync.renewed(broker.clock.elapsed(), 60.0)
        assert leader.leads
        broker.appender.put([message("orders", 0, b"x")])

    run(work)


def test_a_change_of_the_set_without_an_answer_counts_as_made_and_as_not_made(broker):
    async def work() -> None:
        leader = Leader(broker)
        await leader.begin()
        leader.in_sync.alive({1})  # the session of member 2 is over
        leader.nodes.error = UnknownOutcome("no answer")
        with pytest.raises(UnknownOutcome):
            await leader.leading.go_on(leader.state, 0)
        end = broker.store.log.end
        assert leader.in_sync.copied < end  # member 2 may still be in it
        await leader.leading.go_on(leader.nodes.states[-1] if leader.nodes.states else leader.state, 1)
        assert leader.nodes.states[-1].in_sync == (leader.own.place,)
        assert leader.in_sync.copied == end

    run(work)
