"""Long answers in pieces: fair among connections, whole for each, small in memory; and limits over all peers together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

import pytest

from metaq.net.budget import BEHIND_BYTES, CONGESTED_BYTES, ListenLimits
from metaq.net.stream import TURNS_MAX
from metaq.net.turns import TURN_BYTES, Turns
from tests.net.test_peers import Server, frame, raw_connection, run, soon  # noqa: F401  `run` is a fixture
from tests.support import PATIENCE

MIB = 1 << 20
PIECE = 128 * 1024


class Frame:
    """A source: one frame of `size` body bytes, its head apart."""

    def __init__(self, size: int, *, slow: bool = False, fails_after: int = 1 << 60) -> None:
        self.whole = frame(size)
        self.head, self.rest = self.whole[:10], memoryview(self.whole)[10:]
        self.taken, self.slow, self.waits, self.fails_after = 0, slow, False, fails_after
        self.log: list[Frame] = []

    def take(self, ready: Callable[[], None]) -> memoryview | None:
        if self.slow and not self.waits:
            self.waits = True
            asyncio.get_running_loop().call_later(0.001, ready)
            return None
        self.waits = False
        if self.taken >= self.fails_after:
            raise OSError(5, "Input/output error")
        piece = self.rest[self.taken : self.taken + PIECE]
        self.taken += len(piece)
        self.log.append(self)
        return piece


def narrow_connection(server: Server) -> socket.socket:
    """A peer whose kernel takes little before it is read."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    raw.connect(("127.0.0.1", server.listener.port))
    raw.setblocking(False)
    return raw


async def connected(server: Server, count: int) -> None:
    await soon(lambda: len(server.sessions) == count)


@pytest.mark.parametrize("slow", [False, True], ids=["at once", "from a thread"])
def test_long_answers_come_whole_and_others_are_served_between(run, slow: bool) -> None:  # noqa: F811
    """Each of ten gets its own in turn, and what was written meanwhile after it; a small request waits for none."""

    async def body() -> None:
        server = await Server().start()
        clients = [await server.client() for _ in range(10)]
        other = await server.client()
        await connected(server, 11)
        sources = [Frame(3 * MIB + number, slow=slow) for number in range(10)]
        log: list[Frame] = []
        for source, session in zip(sources, server.sessions, strict=False):
            source.log = log
            session.peer.write_from(source.head, source)
        other.peer.write(frame(5))
        await other.until(lambda: len(other.frames) == 1)
        assert not all(source.taken == len(source.rest) for source in sources)
        for session in server.sessions[:10]:
            session.peer.write(frame(7, b"y"))
        for client, source in zip(clients, sources, strict=True):
            await client.until(lambda client=client: len(client.frames) == 2)
            assert sorted(client.frames) == sorted([source.whole, frame(7, b"y")])
        seen = [log.index(source) for source in sources]
        assert max(seen) < 3 * len(sources)  # nobody's first piece came after the end of another's
        assert server.listener._group.turns.free
        assert not server.listener._group.budget.behind
        assert server.listener._group.budget.unanswered_bytes == 0
        await server.listener.close()

    run(body())


def test_peer_that_does_not_read_costs_a_piece(run) -> None:  # noqa: F811
    """Not its answer; and it gets all of it when it reads at last."""

    async def body() -> None:
        server = await Server().start()
        raw = raw_connection(server)
        await connected(server, 1)
        peer, source = server.sessions[0].peer, Frame(40 * MIB)
        peer.write_from(source.head, source)
        await soon(lambda: peer.waiting)
        for _ in range(50):
            await asyncio.sleep(0)
        assert source.taken < 20 * MIB
        assert peer.waiting <= BEHIND_BYTES + PIECE
        got, loop = 0, asyncio.get_running_loop()
        while got < len(source.whole):
            got += len(await loop.sock_recv(raw, MIB))
        await soon(lambda: not server.listener._group.budget.behind)
        assert server.listener._group.budget.unanswered_bytes == 0
        raw.close()
        await server.listener.close()

    run(body())


def test_answer_that_cannot_be_read_on_closes_its_connection_alone(run) -> None:  # noqa: F811
    """The peer was promised so many bytes: it must not take the next answer for them."""

    async def body() -> None:
        server = await Server().start()
        bad, good = await server.client(), await server.client()
        await connected(server, 2)
        for session, source in zip(server.sessions, (Frame(MIB, fails_after=2 * PIECE), Frame(MIB)), strict=True):
            session.peer.write_from(source.head, source)
        await bad.until(lambda: bad.lost is not None)
        await good.until(lambda: len(good.frames) == 1)
        assert bad.frames == []
        assert "cannot be read: [Errno 5] Input/output error" in server.sessions[0].lost
        await server.listener.close()

    run(body())


@pytest.mark.parametrize("slow", [False, True], ids=["at once", "from a thread"])
def test_close_lets_a_long_answer_out(run, slow: bool) -> None:  # noqa: F811
    """A server that stops still delivers what it has begun and what waits behind it."""

    async def body() -> None:
        server = await Server().start()
        client = await server.client()
        await connected(server, 1)
        first, second = Frame(4 * MIB, slow=slow), Frame(MIB, slow=slow)
        peer = server.sessions[0].peer
        peer.write_from(first.head, first)
        peer.write_from(second.head, second)
        await soon(lambda: first.taken)
        await server.listener.close(timeout=PATIENCE)
        await client.until(lambda: client.lost is not None)
        assert client.frames == [first.whole, second.whole]

    run(body())


def test_server_that_stops_does_not_wait_for_who_does_not_read(run) -> None:  # noqa: F811
    """A long answer that nobody takes is cut off when the time is up."""

    async def body() -> None:
        server = await Server().start()
        raw = raw_connection(server)
        await connected(server, 1)
        source = Frame(40 * MIB)
        server.sessions[0].peer.write_from(source.head, source)
        await soon(lambda: server.sessions[0].peer.waiting)
        await server.listener.close(timeout=0.05)
        assert "does not read" in server.sessions[0].lost or "the server stops" in server.sessions[0].lost
        raw.close()

    run(body())


def test_jobs_take_turns_and_wait_for_earlier_answers(run) -> None:  # noqa: F811
    """One connection's hundred jobs do not come before another's first; too many of one are refused."""

    async def body() -> None:
        server = await Server().start()
        _one, _other = await server.client(), await server.client()
        await connected(server, 2)
        order: list[int] = []
        greedy, modest = (session.peer for session in server.sessions)
        assert greedy.turn_is_free
        for _ in range(TURNS_MAX):
            assert greedy.when_its_turn(lambda: order.append(0))
        assert not greedy.when_its_turn(lambda: order.append(0))
        assert modest.when_its_turn(lambda: order.append(1))
        assert not modest.turn_is_free
        await soon(lambda: len(order) == TURNS_MAX + 1)
        assert order.index(1) <= 2
        await soon(lambda: modest.turn_is_free)
        source = Frame(3 * MIB)
        greedy.write_from(source.head, source)
        greedy.when_its_turn(lambda: order.append(source.taken))
        await soon(lambda: len(order) == TURNS_MAX + 2)
        assert order[-1] == len(source.rest)
        await server.listener.close()

    run(body())


def test_turn_of_the_loop_does_bounded_work(run) -> None:  # noqa: F811
    """Whatever waits, others are looked at after about a megabyte."""

    async def body() -> None:
        turns, done = Turns(), [0]

        class Greedy:
            def take_turn(self) -> int:
                done[0] += PIECE
                turns.want(self)
                return PIECE

        for _ in range(100):
            turns.want(Greedy())
        for turn in range(1, 20):
            await asyncio.sleep(0)
            assert done[0] <= (turn + 1) * (TURN_BYTES + PIECE)

    run(body())


def test_one_that_fails_in_its_turn_does_not_end_the_turns(run) -> None:  # noqa: F811
    """The loop reports it, the others go on."""

    async def body() -> None:
        turns, served, reported = Turns(), asyncio.Event(), []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

        class Taker:
            def __init__(self, act: Callable[[], None]) -> None:
                self.act = act

            def take_turn(self) -> int:
                self.act()
                return 1

        def fail() -> None:
            raise ZeroDivisionError

        turns.want(Taker(fail))
        turns.want(Taker(served.set))
        await served.wait()
        assert [type(error) for error in reported] == [ZeroDivisionError]

    run(body())


def test_peer_that_leaves_the_most_is_closed_when_all_leave_too_much(run, caplog) -> None:  # noqa: F811
    """Not the one that came last, and nobody who reads."""
    caplog.set_level(logging.INFO, "metaq.net")

    async def body() -> None:
        server = await Server().start(ListenLimits(unanswered_bytes_max_total=8 * MIB))
        raws = [raw_connection(server) for _ in range(3)]
        await connected(server, 3)
        good = await server.client()
        greedy = server.sessions[1]
        group = server.listener._group
        with contextlib.suppress(AssertionError):
            for _ in range(400):
                for session in server.sessions[:3]:
                    session.peer.write(bytes(100_000))
                greedy.peer.write(bytes(200_000))
                assert group.budget.unanswered_bytes <= 8 * MIB
                assert not greedy.peer.closed
        await greedy.until(lambda: greedy.lost is not None)
        assert "when all peers together left" in greedy.lost
        assert group.budget.unanswered_bytes <= 8 * MIB
        assert not server.sessions[0].peer.closed
        good.peer.write(frame(10))
        await good.until(lambda: len(good.frames) == 1)
        for raw in raws:
            raw.close()
        await server.listener.close()

    run(body())


def test_more_peers_that_are_behind_get_less_each(run) -> None:  # noqa: F811
    """So that together they stay below what all may leave; none of them is closed for it."""

    async def body() -> None:
        limit = 32 * MIB
        server = await Server(lambda data: frame(60_000)).start(ListenLimits(unanswered_bytes_max_total=limit))
        group, loop = server.listener._group, asyncio.get_running_loop()
        assert group.budget.share == CONGESTED_BYTES
        raws = [narrow_connection(server) for _ in range(40)]
        for raw in raws:
            await loop.sock_sendall(raw, frame(1) * 200)
        await soon(
            lambda: len(group.budget.behind) == 40 and all(session.peer.congested for session in server.sessions)
        )
        assert group.budget.share <= limit // 80
        assert group.budget.unanswered_bytes <= limit
        assert not any(session.peer.closed for session in server.sessions)
        for raw in raws:
            raw.close()
        await server.listener.close()

    run(body())
