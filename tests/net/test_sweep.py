"""Connections that a sweep reads: nothing is lost, doubled or out of order, whatever ends or stops one of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from metaq.net import sweep as sweeps
from metaq.net.budget import ListenLimits
from metaq.net.listener import Listener, listen
from metaq.net.peer import Peer
from metaq.net.sweep import COLUMNS, PART_BYTES, PARTS_MAX, Sweep
from tests.support import PATIENCE

pytestmark = pytest.mark.skipif(not sweeps.available(), reason="the compiled module is not built, or this is no Linux")

PLAIN, SLOW = b"p", b"s"


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    """Runs a coroutine on each kind of loop, never for longer than PATIENCE."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run_it(body: Awaitable[None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(body, PATIENCE))

    return run_it


class Lines:
    """A session of lines. It echoes each; it joins the sweep at its first, and stays as long as it may."""

    def __init__(self, peer: Peer, server: Server) -> None:
        self.peer, self.server = peer, server
        self.lost: str | None = None

    def data_received(self, data: memoryview) -> int:
        self.server.by_session += 1
        whole = bytes(data).rfind(b"\n") + 1
        for line in bytes(data[:whole]).splitlines(keepends=True):
            if line == b"close\n":
                self.peer.close("asked to")
            elif line == b"halt\n":
                self.peer.pause()
                asyncio.get_running_loop().call_soon(self.peer.resume)
            else:
                self.peer.write(line)
        if self.server.sweeping and not self.peer.swept and not self.peer.closed:  # also with half a line left
            self.server.joined += self.peer.join(self.server.sweep, self)
        return whole

    def frame_needed(self) -> int:
        return 0

    def connection_lost(self, why: str) -> None:
        self.lost = why


class Server:
    """Echoes lines: runs of those that begin with PLAIN by the sweep, all else by the session."""

    def __init__(self, *, hold: bool = False) -> None:
        self.sweep = Sweep(self.handle)
        self.sweeping, self.hold = True, hold
        self.joined = self.by_session = self.by_sweep = self.passes = self.most = 0
        self.held: list[tuple[bytes, memoryview]] = []
        self.sessions: list[Lines] = []

    def session(self, peer: Peer) -> Lines:
        self.sessions.append(Lines(peer, self))
        return self.sessions[-1]

    def handle(self, sweep: Sweep) -> None:
        parts = sweep.read()
        answers = bytearray()
        self.passes, self.most = self.passes + 1, max(self.most, len(parts) // COLUMNS)
        for place in range(0, len(parts), COLUMNS):
            _, _, start, end = parts[place : place + 4]
            for line in bytes(sweep.buffer[start:end]).splitlines(keepends=True):
                if not (line.startswith(PLAIN) and line.endswith(b"\n")):
                    break
                answers += line
                parts[place + 4] += len(line)
                self.by_sweep += 1
            parts[place + 5] = len(answers)
        left = sweep.left(parts)
        if self.hold:
            self.held.append((bytes(answers), memoryview(bytearray(parts)).cast("i")))
        else:
            sweep.write(bytes(answers), parts)
        for member, data in left:
            member.take(data)

    async def listen(self, **limits: float) -> Listener:
        return await listen("127.0.0.1", 0, self.session, ListenLimits(**limits))


async def connect(listener: Listener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1 << 26)
    writer.write(PLAIN + b"first\n")
    assert await reader.readline() == PLAIN + b"first\n"
    return reader, writer


def test_every_line_comes_back_once_and_in_order(run) -> None:
    """Many connections, each with lines of both kinds, cut anywhere; some leave in the middle."""

    async def act() -> None:
        server = Server()
        listener = await server.listen()
        chance = random.Random(7)

        async def talk(number: int) -> None:
            reader, writer = await connect(listener)
            for turn in range(30):
                lines = [
                    (PLAIN if chance.random() < 0.9 else SLOW)
                    + b"%d-%d-%d" % (number, turn, n)
                    + b"x" * chance.choice([0, 9, 5000])
                    + b"\n"
                    for n in range(chance.choice([1, 1, 1, 3]))
                ]
                text = b"".join(lines)
                cut = chance.choice([0, 0, 0, chance.randrange(len(text))])
                writer.write(text[:cut])
                if cut:
                    await asyncio.sleep(0)
                writer.write(text[cut:])
                assert await reader.readexactly(len(text)) == text
                if number % 7 == 3 and turn == 11:
                    break
            writer.close()

        await asyncio.gather(*(talk(number) for number in range(PARTS_MAX + 30)))
        assert server.joined >= PARTS_MAX + 30
        assert server.by_sweep > 1000
        assert server.most > 1
        await listener.close()
        assert len(server.sweep) == 0

    run(act())


def test_half_a_line_that_is_left_when_it_joins_is_not_forgotten(run) -> None:
    """The sweep would read on behind it."""

    async def act() -> None:
        server = Server()
        listener = await server.listen()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(PLAIN + b"1\n" + PLAIN + b"half")
        assert await reader.readline() == PLAIN + b"1\n"
        writer.write(b" and half\n")
        assert await reader.readline() == PLAIN + b"half and half\n"
        writer.close()
        await listener.close()

    run(act())


def test_an_end_reaches_the_session(run) -> None:
    """Also an end that comes with the last line, and a peer that is gone without a word."""

    async def act() -> None:
        server = Server()
        listener = await server.listen()
        _, writer = await connect(listener)
        writer.write(PLAIN + b"last\n")
        writer.write_eof()
        _, torn = await connect(listener)
        raw = torn.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        torn.transport.abort()
        while any(session.lost is None for session in server.sessions):
            await asyncio.sleep(0)
        assert len(server.sweep) == 0
        writer.close()
        await listener.close()

    run(act())


@pytest.mark.parametrize("order", [b"close\n", b"halt\n"])
def test_a_session_may_end_or_wait_in_the_middle(run, order) -> None:
    """What comes behind a close is nobody's; what comes behind a pause is presented after it, in order."""

    async def act() -> None:
        server = Server()
        listener = await server.listen()
        reader, writer = await connect(listener)
        writer.write(PLAIN + b"1\n" + order + PLAIN + b"2\n")
        if order == b"close\n":
            assert await reader.read() in (PLAIN + b"1\n", PLAIN + b"1\n" + PLAIN + b"2\n")
        else:
            assert await reader.readexactly(6) == PLAIN + b"1\n" + PLAIN + b"2\n"
            writer.write(PLAIN + b"3\n")
            assert await reader.readline() == PLAIN + b"3\n"
        writer.close()
        await listener.close()

    run(act())


def test_a_peer_that_does_not_read_gets_all_in_order_when_it_does(run) -> None:
    """The kernel takes a part of an answer: the rest waits, and nothing is written past it."""

    async def act() -> None:
        server = Server()
        listener = await server.listen()
        reader, writer = await connect(listener)
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        writer.transport.pause_reading()
        line = PLAIN + b"%06d" + b"y" * 4000 + b"\n"
        for number in range(1500):
            writer.write(line % number)
            await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.2)
        writer.transport.resume_reading()
        for number in range(1500):
            assert await reader.readexactly(len(line % number)) == line % number
        writer.close()
        await listener.close()

    run(act())


def test_held_answers_go_to_who_asked_and_to_nobody_else(run) -> None:
    """A slot that has another member meanwhile does not get the earlier one's answers."""

    async def act() -> None:
        server = Server(hold=True)
        listener = await server.listen()
        first_reader, first = await connect(listener)
        other_reader, other = await connect(listener)
        first.write(PLAIN + b"mine\n")
        other.write(PLAIN + b"yours\n")
        while server.by_sweep < 2:
            await asyncio.sleep(0)
        first.close()
        while len(server.sweep) > 1:
            await asyncio.sleep(0)
        third_reader, third = await connect(listener)
        third.write(SLOW + b"\n")  # lets it be seen that nothing came before
        for answers, parts in server.held:
            server.sweep.write(answers, parts, server.sweep.answered(parts))
        assert await other_reader.readline() == PLAIN + b"yours\n"
        assert await third_reader.readline() == SLOW + b"\n"
        assert await first_reader.read() == b""
        other.close()
        third.close()
        await listener.close()

    run(act())


def test_held_answers_reach_who_has_left_the_sweep(run) -> None:
    """By the way that all its answers go then, in their order; not who is gone, nor who has its slot now."""

    async def act() -> None:
        server = Server(hold=True)
        listener = await server.listen()
        reader, writer = await connect(listener)
        gone_reader, gone = await connect(listener)
        other_reader, other = await connect(listener)
        for each, text in ((writer, b"mine\n"), (gone, b"his\n"), (other, b"yours\n")):
            each.write(PLAIN + text)
        while server.by_sweep < 3:
            await asyncio.sleep(0)
        held = [(answers, parts, server.sweep.answered(parts)) for answers, parts in server.held]
        server.sessions[0].peer.leave()
        gone.transport.abort()
        while len(server.sweep) > 1:
            await asyncio.sleep(0)
        third_reader, third = await connect(listener)
        for answers, parts, members in held:
            server.sweep.write(answers, parts, members)
        third.write(SLOW + b"third\n")
        writer.write(SLOW + b"after\n")
        assert [await reader.readline(), await reader.readline()] == [PLAIN + b"mine\n", SLOW + b"after\n"]
        assert await other_reader.readline() == PLAIN + b"yours\n"
        assert await third_reader.readline() == SLOW + b"third\n"
        assert await gone_reader.read() == b""
        for each in (writer, other, third):
            each.close()
        await listener.close()

    run(act())


def test_who_is_swept_is_not_idle(run, monkeypatch) -> None:
    """The idle limit looks at what the sweep has read; who is silent is closed as before."""

    async def act() -> None:
        server = Server()
        listener = await server.listen(idle_seconds=0.4)
        reader, writer = await connect(listener)
        silent_reader, silent = await connect(listener)
        ended = asyncio.create_task(silent_reader.read())
        while not ended.done():  # four ticks at least
            writer.write(PLAIN + b"here\n")
            assert await reader.readline() == PLAIN + b"here\n"
        writer.write(PLAIN + b"still\n")
        assert await reader.readline() == PLAIN + b"still\n"
        silent.close()
        writer.close()
        await listener.close()

    run(act())


def test_one_with_much_to_read_or_little_for_the_sweep_leaves_it(run) -> None:
    """A half line and sixteen reads that were not for the sweep: it would read for nothing."""

    async def act() -> None:
        server = Server()
        listener = await server.listen()
        reader, writer = await connect(listener)
        server.sweeping = False  # who leaves stays out
        assert len(server.sweep) == 1
        long = PLAIN + b"z" * (3 * PART_BYTES) + b"\n"
        writer.write(long)
        assert await reader.readline() == long
        assert len(server.sweep) == 0
        server.sweeping = True
        writer.write(SLOW + b"\n")
        assert await reader.readline() == SLOW + b"\n"
        server.sweeping = False
        assert len(server.sweep) == 1
        for _ in range(16):
            writer.write(SLOW + b"\n")
            assert await reader.readline() == SLOW + b"\n"
        assert len(server.sweep) == 0
        writer.close()
        await listener.close()

    run(act())


def test_slots_are_checked() -> None:
    """Nobody's slot is refused, in whichever state the sweep is."""
    sweep = Sweep(lambda _: None)
    for slot in (-1, 0, 63, 64, 1 << 30):
        for act in (
            sweep.was_read,
            sweep.remove,
            lambda slot: sweep.send(slot, b""),
            lambda slot: sweep.set_behind(slot, behind=True),
        ):
            with pytest.raises(LookupError):
                act(slot)
    with pytest.raises(OSError, match="epoll_ctl"):
        asyncio.run(_add(sweep, -1))
    strange = memoryview(bytearray(4 * COLUMNS)).cast("i")
    strange[0], strange[5] = 1 << 20, 3
    sweep.write(b"abc", strange)
    assert sweep.left(strange) == []
    with pytest.raises(ValueError, match="ends at"):
        sweep.write(b"ab", strange)


async def _add(sweep: Sweep, fd: int) -> None:
    sweep.add(fd, None, None)


def test_waiting_awake_ends_where_it_does_not_pay_and_is_tried_again():
    """Some waits in vain among others cost nothing; many end it; after a rest one wait shows whether it pays again."""
    vigil = sweeps.Vigil()
    for came in (True, False, True, True, True) * 20:
        assert vigil.worth_it()
        vigil.count(came=came)
    tried = 0
    while vigil.worth_it():
        vigil.count(came=False)
        tried += 1
    assert 1 <= tried <= 3
    rests = 1
    while not vigil.worth_it():
        rests += 1
    assert 50 <= rests <= 100
    vigil.count(came=True)
    assert vigil.worth_it()
