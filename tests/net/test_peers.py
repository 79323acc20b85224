"""Connections within limits: large frames, slow readers, idle peers, greedy peers, and neighbours who do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from metaq.errors import ConfigError, ConnectionFailed, RemoteProtocolError, RequestTimeout
from metaq.net.address import is_loopback, split_address
from metaq.net.blocking import dial_blocking
from metaq.net.budget import ListenLimits
from metaq.net.dialer import dial
from metaq.net.listener import Listener, SecondPort, listen
from metaq.net.peer import Peer
from metaq.net.stream import SHARED_BYTES
from metaq.wire.command import frame_bytes
from tests.support import PATIENCE

TIMEOUT = PATIENCE


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    """Runs a coroutine on each kind of loop, never for longer than TIMEOUT."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run_it(body: Awaitable[None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(body, TIMEOUT))

    return run_it


class Frames:
    """A session that collects whole frames and answers through a function."""

    def __init__(self, peer: Peer, answer: Callable[[bytes], bytes | None] = lambda frame: frame) -> None:
        self.peer = peer
        self.answer = answer
        self.frames: list[bytes] = []
        self.events: list[int] = []
        self.needed = 0
        self.lost: str | None = None
        self.changed = asyncio.Event()

    def data_received(self, data: memoryview) -> int:
        self.events.append(len(data))
        position = 0
        while not self.peer.congested:
            self.needed = frame_bytes(data, position, len(data))
            if not self.needed or position + self.needed > len(data):
                break
            self.frames.append(bytes(data[position : position + self.needed]))
            position += self.needed
            answer = self.answer(self.frames[-1])
            if answer:
                self.peer.write(answer)
        self.changed.set()
        return position

    def frame_needed(self) -> int:
        return self.needed

    def connection_lost(self, why: str) -> None:
        self.lost = why
        self.changed.set()

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self.changed.clear()
            await self.changed.wait()


class Server:
    """A listener that remembers its sessions."""

    def __init__(self, answer: Callable[[bytes], bytes | None] = lambda frame: frame) -> None:
        self.answer = answer
        self.sessions: list[Frames] = []
        self.listener: Listener

    async def start(self, limits: ListenLimits | None = None) -> Server:
        self.listener = await listen("127.0.0.1", 0, self.make, limits)
        return self

    def make(self, peer: Peer) -> Frames:
        self.sessions.append(Frames(peer, self.answer))
        return self.sessions[-1]

    async def client(self, answer: Callable[[bytes], bytes | None] = lambda frame: None) -> Frames:
        made: list[Frames] = []

        def make(peer: Peer) -> Frames:
            made.append(Frames(peer, answer))
            return made[0]

        await dial(f"127.0.0.1:{self.listener.port}", make, 5)
        return made[0]


async def soon(true: Callable[[], object]) -> None:
    """Let the loop run until a state is reached that nobody signals."""
    while not true():
        await asyncio.sleep(0.001)


def frame(size: int, fill: bytes = b"x") -> bytes:
    """A frame with a body of `size` bytes."""
    return (size + 6).to_bytes(4, "big") + b"\x00\x00\x00\x02{}" + fill * size


def test_frames_of_every_size_are_echoed_in_order(run) -> None:
    """Small, split, beyond the shared buffer and of several MiB: each comes back whole and in order."""

    async def body() -> None:
        server = await Server().start()
        client = await server.client()
        sizes = [0, 1, 100, 20_000, 70_000, SHARED_BYTES - 10, SHARED_BYTES, 3 * SHARED_BYTES, 5, 9_000_000, 17, 0]
        sent = [frame(size, bytes([65 + place])) for place, size in enumerate(sizes)]
        client.peer.write(b"".join(sent))
        await client.until(lambda: len(client.frames) == len(sent))
        assert client.frames == sent
        assert server.listener._group.budget.half_read_bytes == 0
        await server.listener.close()

    run(body())


def test_frames_cut_at_every_byte_are_whole_again(run) -> None:
    """A peer that sends one byte at a time is served like any other."""

    async def body() -> None:
        server = await Server().start()
        client = await server.client()
        sent = frame(3) + frame(0) + frame(20)
        for position in range(len(sent)):
            client.peer.write(sent[position : position + 1])
            await asyncio.sleep(0)
        await client.until(lambda: len(client.frames) == 3)
        assert b"".join(client.frames) == sent
        await server.listener.close()

    run(body())


def test_a_promise_of_16_mib_takes_no_memory(run) -> None:
    """Eight bytes that announce a large frame hold eight bytes; the buffer grows with what really comes."""

    async def body() -> None:
        server = await Server().start()
        client = await server.client()
        client.peer.write(frame(16_000_000)[:8])
        await soon(lambda: server.sessions and server.sessions[0].events)
        assert server.listener._group.budget.half_read_bytes <= 64 * 1024
        client.peer.write(bytes(100_000))
        await soon(lambda: server.listener._group.budget.half_read_bytes > 90_000)
        assert server.listener._group.budget.half_read_bytes < 500_000
        client.peer.close()
        await server.sessions[0].until(lambda: server.sessions[0].lost is not None)
        assert server.listener._group.budget.half_read_bytes == 0
        await server.listener.close()

    run(body())


def test_frame_above_the_limit_closes_its_connection_alone(run) -> None:
    """A peer that sends garbage is closed with the reason logged; its neighbour goes on working."""

    async def body() -> None:
        server = await Server().start()
        good, bad = await server.client(), await server.client()
        for garbage in (b"\xff" * 100, ((1 << 24) - 3).to_bytes(4, "big"), b"GET / HTTP/1.1\r\n\r\n"):
            bad = await server.client()
            bad.peer.write(garbage)
            await bad.until(lambda bad=bad: bad.lost is not None)
            good.peer.write(frame(10))
            await good.until(lambda: len(good.frames) > 0)
            good.frames.clear()
        assert sum("the limit is" in (session.lost or "") for session in server.sessions) == 2
        await server.listener.close()

    run(body())


def test_failing_session_closes_its_connection_alone(run, caplog) -> None:
    """An unexpected exception is logged with its traceback; the next peer is served."""

    def answer(data: bytes) -> bytes:
        if len(data) > 20:
            raise ZeroDivisionError
        return data

    async def body() -> None:
        server = await Server(answer).start()
        bad, good = await server.client(), await server.client()
        bad.peer.write(frame(50))
        await bad.until(lambda: bad.lost is not None)
        good.peer.write(frame(1))
        await good.until(lambda: len(good.frames) == 1)
        await server.listener.close()

    run(body())
    assert "ZeroDivisionError" in caplog.text


def raw_connection(server: Server) -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", server.listener.port))
    raw.setblocking(False)
    return raw


def test_peer_that_does_not_read_its_answers_is_not_read(run) -> None:
    """It gets back-pressure: memory stays flat, and when it reads at last all answers come, none lost."""

    async def body() -> None:
        server = await Server(lambda data: frame(200_000)).start(ListenLimits(unanswered_bytes_max=4 << 20))
        loop = asyncio.get_running_loop()
        raw = raw_connection(server)
        requests = 400
        await loop.sock_sendall(raw, frame(2000) * requests)
        await soon(lambda: server.sessions and server.sessions[0].peer.congested)
        stream = server.sessions[0].peer
        assert stream._transport.get_write_buffer_size() < 2 << 20
        assert len(server.sessions[0].frames) < requests
        received, expected = 0, requests * len(frame(200_000))
        while received < expected:
            received += len(await loop.sock_recv(raw, 1 << 20))
        assert len(server.sessions[0].frames) == requests
        assert not stream.congested
        raw.close()
        await server.listener.close()

    run(body())


def test_peer_above_its_unanswered_bytes_is_closed_and_others_are_not(run, caplog) -> None:
    """Pushes to a peer that never reads end at the limit, with the reason in the log."""
    caplog.set_level(logging.INFO, "metaq.net")

    async def body() -> None:
        server = await Server(lambda data: data).start(ListenLimits(unanswered_bytes_max=2 << 20))
        raw = raw_connection(server)
        good = await server.client()
        await soon(lambda: len(server.sessions) == 2)
        stuck = server.sessions[0]
        for _ in range(200):
            stuck.peer.write(bytes(100_000))
            if stuck.peer.closed:
                break
        await stuck.until(lambda: stuck.lost is not None)
        assert "unread, the limit is 2097152" in stuck.lost
        good.peer.write(frame(10))
        await good.until(lambda: len(good.frames) == 1)
        raw.close()
        await server.listener.close()

    run(body())
    assert "unread" in caplog.text


def test_connections_above_the_limit_are_closed_at_once(run) -> None:
    """The limit counts what is open: a place that becomes free can be taken."""

    async def body() -> None:
        server = await Server().start(ListenLimits(connections_max=2))
        first, second = await server.client(), await server.client()
        third = await server.client()
        await third.until(lambda: third.lost is not None)
        assert server.listener.connections == 2
        for client in (first, second):
            client.peer.write(frame(1))
            await client.until(lambda client=client: len(client.frames) == 1)
        first.peer.close()
        await server.sessions[0].until(lambda: server.sessions[0].lost is not None)
        fourth = await server.client()
        fourth.peer.write(frame(1))
        await fourth.until(lambda: len(fourth.frames) == 1)
        await server.listener.close()

    run(body())


def test_limits_hold_over_both_ports_of_a_listener(run) -> None:
    """A second port is no second budget; and both are closed together."""

    async def body() -> None:
        made: list[Frames] = []

        def session(peer: Peer) -> Frames:
            made.append(Frames(peer))
            return made[-1]

        second = SecondPort(-2, "the other port")
        listener = await listen("127.0.0.1", 0, session, ListenLimits(connections_max=2), second)
        clients = []
        for port in (listener.port, listener.port - 2, listener.port - 2, listener.port):
            client: list[Frames] = []

            def make(peer: Peer, client: list[Frames] = client) -> Frames:
                client.append(Frames(peer))
                return client[0]

            await dial(f"127.0.0.1:{port}", make, 5)
            clients += client
        for client_over in clients[2:]:
            await client_over.until(lambda one=client_over: one.lost is not None)
        assert listener.connections == 2
        for served in clients[:2]:
            served.peer.write(frame(1))
            await served.until(lambda one=served: len(one.frames) == 1)
        await listener.close()
        for port in (listener.port, listener.port - 2):
            with pytest.raises(ConnectionFailed):
                await dial(f"127.0.0.1:{port}", Frames, 5)

    run(body())


def test_greediest_half_read_peer_is_closed_when_all_hold_too_much(run) -> None:
    """The one with the largest unfinished frame pays, not the one that came last."""

    async def body() -> None:
        server = await Server().start(ListenLimits(half_read_bytes_max=4 << 20))
        greedy, modest = await server.client(), await server.client()
        greedy.peer.write(frame(16_000_000)[:3_000_000])
        await soon(lambda: server.sessions and server.sessions[0].peer.held > 2_000_000)
        half = frame(3_000_000)
        modest.peer.write(half[:2_000_000])
        await greedy.until(lambda: greedy.lost is not None)
        modest.peer.write(half[2_000_000:])
        await modest.until(lambda: len(modest.frames) == 1)
        assert "unfinished frame" in server.sessions[0].lost
        await server.listener.close()

    run(body())


def test_idle_connection_is_closed_and_busy_one_kept(run) -> None:
    """Silence for the idle time closes; a byte now and then does not."""

    async def body() -> None:
        server = await Server().start(ListenLimits(idle_seconds=0.2))
        idle, busy = await server.client(), await server.client()
        while idle.lost is None:
            busy.peer.write(frame(1))
            await asyncio.sleep(0.02)
        assert busy.lost is None
        assert "nothing was read or written" in server.sessions[0].lost
        await server.listener.close()

    run(body())


def test_close_lets_written_answers_out(run) -> None:
    """A server that stops still delivers what it answered, then both sides know."""

    async def body() -> None:
        server = await Server(lambda data: frame(3_000_000)).start()
        client = await server.client()
        client.peer.write(frame(1))
        await soon(lambda: server.sessions and server.sessions[0].frames)
        await server.listener.close(timeout=PATIENCE)
        await client.until(lambda: client.lost is not None)
        assert client.frames == [frame(3_000_000)]
        assert server.listener.connections == 0

    run(body())


def test_client_goes_on_reading_while_it_is_congested(run) -> None:
    """Two ends that both wait to write would wait for ever; the client is told when it may write again."""

    async def body() -> None:
        server = await Server(lambda data: frame(1000)).start()
        client = await server.client()
        told = asyncio.Event()
        client.peer.on_writable = told.set
        count = 0
        while not client.peer.congested:
            client.peer.write(frame(500_000))
            count += 1
        await told.wait()
        await client.until(lambda: len(client.frames) == count)
        await server.listener.close()

    run(body())


def test_taken_port_is_told_by_name(run) -> None:
    """The error says which address and what to do."""

    async def body() -> None:
        server = await Server().start()
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{server.listener.port}.*choose another"):
            await listen("127.0.0.1", server.listener.port, server.make)
        await server.listener.close()

    run(body())


def test_refused_connection_is_connection_failed(run) -> None:
    """The address is named, for both kinds of dialing."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"  # bound, not listening

        async def body() -> None:
            with pytest.raises(ConnectionFailed, match=address):
                await dial(address, Frames, 5)

        run(body())
        with pytest.raises(ConnectionFailed, match=address):
            dial_blocking(address, 5)


def test_blocking_stream_sends_receives_and_tells_its_end() -> None:
    """A thread without a loop talks to an ordinary peer; silence and the end have errors of their own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            raw, _ = server.accept()
            with raw:
                raw.sendall(raw.recv(100).upper())
                raw.recv(100)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with dial_blocking(f"127.0.0.1:{port}", 0.2) as stream:
            stream.send(b"hello")
            buffer = bytearray(10)
            assert buffer[: stream.receive_into(buffer)] == b"HELLO"
            with pytest.raises(RequestTimeout, match="did nothing for"):
                stream.receive_into(buffer)
            stream.send(b"bye")
            thread.join(PATIENCE)
            with pytest.raises(ConnectionFailed):
                stream.receive_into(buffer)
                stream.receive_into(buffer)


@pytest.mark.parametrize(
    ("text", "parts"), [("a:1", ("a", 1)), (" 127.0.0.1:9876 ", ("127.0.0.1", 9876)), ("[::1]:80", ("::1", 80))]
)
def test_addresses_are_split(text: str, parts: tuple[str, int]) -> None:
    """host:port, with brackets around IPv6."""
    assert split_address(text) == parts


@pytest.mark.parametrize("text", ["", "a", ":1", "a:", "a:b", "a:65536", "a:-1", "a:" + "9" * 5000, "a:1²"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """The text is quoted in the error."""
    with pytest.raises(ConfigError, match="is not host:port"):
        split_address(text)


@pytest.mark.parametrize(
    ("host", "ours"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False),
     ("::ffff:10.0.0.1", False), ("localhost", False), ("", False)],
)  # fmt: skip
def test_loopback_is_judged_by_number(host: str, ours: bool) -> None:
    """Also when IPv4 comes wrapped in IPv6."""
    assert is_loopback(host) is ours


def test_protocol_error_of_a_session_reaches_its_connection_lost(run) -> None:
    """A session learns why it ended."""

    class Broken(Frames):
        def data_received(self, data: memoryview) -> int:
            raise RemoteProtocolError("no good")

    async def body() -> None:
        sessions: list[Broken] = []

        def make(peer: Peer) -> Broken:
            sessions.append(Broken(peer))
            return sessions[-1]

        listener = await listen("127.0.0.1", 0, make)
        server = Server()
        server.listener = listener
        client = await server.client()
        client.peer.write(b"x")
        await client.until(lambda: client.lost is not None)
        assert sessions[0].lost == "no good"
        with contextlib.suppress(Exception):
            client.peer.write(b"after the end")
        await listener.close()

    run(body())


def test_answers_of_crowded_connections_come_whole_and_in_order(run) -> None:
    """While connections take turns, answers wait for the end of the loop's turn; none is lost, reordered or forgotten."""

    async def body() -> None:
        server = await Server().start()
        clients = [await server.client(), await server.client()]
        expected: list[list[bytes]] = [[], []]
        long = frame(3 * SHARED_BYTES)
        for number in range(60):
            for client, sent in zip(clients, expected, strict=True):
                burst = [frame(number), long, frame(300)] if number == 40 else [frame(number), frame(300)]
                sent += burst
                client.peer.write(b"".join(burst))
            await asyncio.sleep(0)
        for client, sent in zip(clients, expected, strict=True):
            await client.until(lambda client=client, sent=sent: len(client.frames) == len(sent))
            assert client.frames == sent
        await server.listener.close()

    run(body())


def test_close_lets_gathered_answers_out(run) -> None:
    """An answer that waits for the end of the turn goes out although its session closes the connection at once."""

    async def body() -> None:
        server = await Server().start()
        first, second = await server.client(), await server.client()
        for number in range(5):
            for client in (first, second):
                client.peer.write(frame(1))
                await client.until(lambda client=client, number=number: len(client.frames) == number + 1)
        session = server.sessions[1]

        def answer_and_close(data: bytes) -> bytes | None:
            session.peer.write(data)
            session.peer.close("said all")
            return None

        session.answer = answer_and_close
        first.peer.write(frame(1))
        await first.until(lambda: len(first.frames) == 6)
        second.peer.write(frame(77))
        await second.until(lambda: second.lost is not None)
        assert second.frames[-1] == frame(77)
        await server.listener.close()

    run(body())
