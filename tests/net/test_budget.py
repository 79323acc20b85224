"""What all peers of a process make it keep: counted exactly, over all listeners; above the limit the greediest goes."""

from __future__ import annotations

import random

import pytest

from metaq.kept import SLACK_BYTES, STEP_BYTES, Kept
from metaq.net.budget import BEHIND_BYTES, CONGESTED_BYTES, Budget, ListenLimits
from metaq.net.listener import Listener
from tests.net.test_peers import Server, frame, run, soon  # noqa: F401  `run` is a fixture

MIB = 1 << 20


class FakeStream:
    """A connection that gives everything back when it is aborted, as a real one."""

    def __init__(self, budget: Budget) -> None:
        self.budget, self.held, self.waiting, self.kept, self.why = budget, 0, 0, 0, ""

    def abort(self, why: str) -> None:
        self.why = why
        self.end()

    def end(self) -> None:
        self.budget.hold(self, 0)
        self.budget.leave_unread(self, 0)
        self.budget.forget(self)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_counted_is_what_is_held(seed: int) -> None:
    """Whatever comes and goes, and whoever is cut: the total is the sum, within the limit, and 0 when all have ended."""
    chance = random.Random(seed)
    budget = Budget(ListenLimits(half_read_bytes_max=60, unanswered_bytes_max_total=60, peer_bytes_max=100))
    streams = [FakeStream(budget) for _ in range(6)]
    for _ in range(500):
        stream = chance.choice(streams)
        match chance.randrange(3):
            case 0:
                budget.hold(stream, chance.randrange(20))
            case 1:
                budget.leave_unread(stream, chance.randrange(20))
            case 2:
                budget.keep(stream, chance.randrange(-stream.kept, 20))
        streams = [FakeStream(budget) if one.why else one for one in streams]
        assert budget.bytes == sum(one.held + one.waiting + one.kept for one in streams) <= 100
        assert budget.half_read_bytes == sum(one.held for one in streams) <= 60
        assert budget.unanswered_bytes == sum(one.waiting for one in streams) <= 60
    for stream in streams:
        stream.end()
    assert (budget.bytes, budget.half_read_bytes, budget.unanswered_bytes, budget.behind) == (0, 0, 0, set())


def test_the_one_that_holds_the_most_is_cut_not_the_one_that_came_last() -> None:
    """Of whatever kind it is; the log says what it held."""
    budget = Budget(ListenLimits(peer_bytes_max=100))
    modest, greedy, last = (FakeStream(budget) for _ in range(3))
    budget.keep(modest, 30)
    budget.hold(greedy, 25)
    budget.leave_unread(greedy, 30)
    assert budget.may_keep(last, 15)
    assert budget.may_keep(last, 30)  # above the limit, but another would go
    assert not budget.may_keep(greedy, 30)
    budget.keep(last, 20)
    assert (modest.why, last.why) == ("", "")
    assert "keep 55 bytes, 25 of an unfinished frame, 30 of answers" in greedy.why
    assert "(peerBytesMax)" in greedy.why
    assert budget.bytes == 50


def test_without_limits_everything_is_counted_and_nobody_cut() -> None:
    """As for a client's own connections."""
    budget = Budget(ListenLimits(half_read_bytes_max=0, unanswered_bytes_max_total=0, peer_bytes_max=0))
    stream = FakeStream(budget)
    budget.hold(stream, 1 << 40)
    budget.keep(stream, 1 << 40)
    assert budget.may_keep(stream, 1 << 40)
    assert (stream.why, budget.bytes, budget.share) == ("", 1 << 41, CONGESTED_BYTES)
    assert budget.behind_bytes(10_000) == BEHIND_BYTES


def test_what_is_below_the_high_water_marks_is_a_part_of_the_whole() -> None:
    """However many connections there are."""
    budget = Budget(ListenLimits(peer_bytes_max=64 * MIB))
    assert budget.behind_bytes(1) == BEHIND_BYTES
    assert sum(budget.behind_bytes(number) for number in range(10_000)) < 64 * MIB // 2


def test_listeners_of_a_process_share_one_budget(run) -> None:  # noqa: F811
    """One peer of each; what the first makes its session keep counts for the second, and ends with the connection."""

    async def body() -> None:
        limits = ListenLimits(peer_bytes_max=16 * MIB)
        budget = Budget(limits)
        one, other = Server(), Server()
        for server in (one, other):
            server.listener = Listener(limits, budget=budget)
            await server.listener.bind("127.0.0.1", 0, None)
            await server.listener.start(server.make)
        greedy, modest = await one.client(), await other.client()
        await soon(lambda: one.sessions and other.sessions)
        one.sessions[0].peer.keep(10 * MIB)
        modest.peer.write(frame(4_000_000)[:-1])
        await soon(lambda: budget.half_read_bytes > 3_000_000)
        other.sessions[0].peer.keep(4 * MIB)
        await greedy.until(lambda: greedy.lost is not None)
        assert "(peerBytesMax)" in str(one.sessions[0].lost)
        one.sessions[0].peer.keep(MIB)  # it is over: nothing is counted for it
        modest.peer.write(b"x")
        await modest.until(lambda: len(modest.frames) == 1)
        assert budget.bytes == 4 * MIB
        modest.peer.close()
        await soon(lambda: other.sessions[0].lost is not None)
        assert budget.bytes == 0
        await one.listener.close()
        await other.listener.close()

    run(body())


def test_kept_bytes_are_told_in_steps() -> None:
    """Never less than there is, and little more; what comes and goes within a step costs no call."""
    told: list[int] = []
    kept = Kept(told.append)
    for _ in range(100):
        kept.add(500)
        kept.add(-500)
    assert told == [STEP_BYTES]
    chance, held = random.Random(5), 0
    for _ in range(1000):
        more = chance.randrange(-held, 30_000)
        held += more
        kept.add(more)
        assert held <= sum(told) == kept.told <= held + SLACK_BYTES + STEP_BYTES
    kept.clear()
    assert (sum(told), kept.bytes) == (0, 0)
