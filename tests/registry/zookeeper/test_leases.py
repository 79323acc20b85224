"""How long a renewal holds, and that a broker keeps its lease, at a real ensemble whose parts fail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.registry.zookeeper.ensemble import SERVERS, Ensemble
from tests.registry.zookeeper.group_support import a_member, group, run, until

from metaq.broker.failover.lease import LEASE_SHARE, RENEWALS
from metaq.clock import SYSTEM
from metaq.errors import ConnectionFailed, NotOurs
from metaq.registry.zookeeper.group import GIVE_UP_SHARE, GroupNodes

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.xdist_group("zookeeper")]

ROUNDS = 20
"""Renewals whose time is taken."""
SESSION_SECONDS = 3.0
LEASE_SECONDS = 10.0
"""The longest session that a tick of half a second allows, so that a starved machine finds another server in time, too."""


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("ensemble")) as running:
        yield running


class Renewed:
    """A live node that is renewed as a leader does, until its session has ended."""

    def __init__(self, nodes: GroupNodes, number: int) -> None:
        self.nodes, self.own = nodes, a_member(number)
        self.sent: list[float] = []
        """When each renewal that was answered was sent."""
        self.failed = 0

    async def keep(self) -> None:
        # Each begins at another moment of the interval.
        await asyncio.sleep(self.own.member / ROUNDS * self.nodes.session_timeout / RENEWALS)
        while True:
            try:
                self.sent.append(await self.nodes.renew(self.own))
            except NotOurs:
                return
            except ConnectionFailed:
                self.failed += 1
            await asyncio.sleep(self.nodes.session_timeout / RENEWALS)


@contextlib.asynccontextmanager
async def renewed(connect: str, name: str, count: int, seconds: float) -> AsyncIterator[list[Renewed]]:
    """Members of a group, each in a session of its own, renewed all the time."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for number in range(1, count + 1):
            one = Renewed((await stack.enter_async_context(group(connect, name, seconds=seconds))).nodes, number)
            assert await one.nodes.announce(one.own) is None
            found.append(one)
        tasks = [asyncio.create_task(one.keep()) for one in found]
        try:
            await until(lambda: all(len(one.sent) > 2 for one in found))
            yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def gone(nodes: GroupNodes, found: list[Renewed]) -> dict[int, float]:
    """Return member → when another client has seen that its node is gone, once all are."""
    when: dict[int, float] = {}
    while len(when) < len(found):
        now = SYSTEM.elapsed()
        live = (await nodes.look()).live
        when |= {one.own.member: now for one in found if one.own.member not in live and one.own.member not in when}
        await asyncio.sleep(0.02)
    return when


def test_a_renewal_holds_for_longer_than_its_lease_when_its_server_is_cut_off(ensemble):
    """A follower that no longer hears the leader stops answering renewals long before the others end the sessions of its clients."""

    async def work() -> None:
        leader = ensemble.leader()
        follower, witness = (number for number in SERVERS if number != leader)
        async with (
            group(ensemble.servers[witness].listens, "cut-off") as other,
            renewed(ensemble.servers[follower].listens, "cut-off", ROUNDS, SESSION_SECONDS) as all_of_them,
        ):
            await other.nodes.look()
            with ensemble.apart(leader, follower):
                cut = SYSTEM.elapsed()
                when = await gone(other.nodes, all_of_them)
                last = {one.own.member: one.sent[-1] for one in all_of_them}
            shares = {number: (when[number] - last[number]) / SESSION_SECONDS for number in when}
            print(f"from the last renewal to the end of the session, in time-outs: {sorted(shares.values())}")
            assert all(sent < cut + 0.5 * SESSION_SECONDS for sent in last.values())
            assert all(one.failed for one in all_of_them)
            assert min(shares.values()) > LEASE_SHARE, shares
            # No renewal was answered once somebody else could know that the session has ended.
            assert all(one.sent[-1] == last[one.own.member] for one in all_of_them)

    run(work())
    ensemble.serve()


@pytest.mark.all
def test_a_renewal_holds_for_longer_than_its_lease_when_the_leader_stands_still(ensemble):
    """The new leader of the ensemble begins all sessions' times anew."""

    async def work() -> None:
        leader = ensemble.leader()
        witness = next(number for number in SERVERS if number != leader)
        async with (
            group(ensemble.servers[witness].listens, "still") as other,
            renewed(ensemble.servers[leader].listens, "still", 5, SESSION_SECONDS) as all_of_them,
        ):
            await other.nodes.look()
            ensemble.servers[leader].pause()
            try:
                when: dict[int, float] = {}
                while not when:
                    with contextlib.suppress(ConnectionFailed):
                        when = await gone(other.nodes, all_of_them)
                last = {one.own.member: one.sent[-1] for one in all_of_them}
            finally:
                ensemble.servers[leader].resume()
            shares = {number: (when[number] - last[number]) / SESSION_SECONDS for number in when}
            print(f"from the last renewal to the end of the session, in time-outs: {sorted(shares.values())}")
            assert min(shares.values()) > LEASE_SHARE, shares

    run(work())
    ensemble.serve()


def test_a_renewal_is_given_up_when_its_lease_has_ended():
    assert GIVE_UP_SHARE == LEASE_SHARE


@pytest.mark.parametrize(
    "fault", ["stopped", *(pytest.param(one, marks=pytest.mark.all) for one in ("cut off", "killed"))]
)
def test_a_broker_keeps_its_lease_while_its_server_is_away(ensemble, fault):
    """It goes to another server of the ensemble in time."""

    async def work() -> None:
        leader = ensemble.leader()
        follower = next(number for number in SERVERS if number != leader)
        server = ensemble.servers[follower]
        async with contextlib.AsyncExitStack() as stack:
            # The order of the servers is of chance: most likely one of these begins at that one.
            members = await stack.enter_async_context(
                renewed(ensemble.address, fault.replace(" ", "-"), 8, LEASE_SECONDS)
            )
            sessions = [one.nodes.session for one in members]
            if fault == "cut off":
                stack.enter_context(ensemble.apart(leader, follower))
            elif fault == "stopped":
                server.pause()
                stack.callback(server.resume)
            else:
                server.kill()
            began = SYSTEM.elapsed()
            await until(lambda: all(one.sent[-1] > began + LEASE_SECONDS * LEASE_SHARE for one in members))
            gaps = [max(later - sent for sent, later in zip(one.sent, one.sent[1:], strict=False)) for one in members]
            print(f"{fault}: longest times between two renewals, in time-outs: {[gap / LEASE_SECONDS for gap in gaps]}")
            assert max(gaps) < LEASE_SECONDS * LEASE_SHARE
            assert [one.nodes.session for one in members] == sessions

    try:
        run(work())
    finally:
        if fault == "killed":
            next(server for server in ensemble.servers if not server.launched).start()
        ensemble.serve()
