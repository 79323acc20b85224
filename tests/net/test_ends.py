"""A connection is never ended inside a callback of its own transport: uvloop's memory is gone when the callback returns.

Every callback of a connection is called here with a session that ends it there, or with a limit that does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from metaq.errors import RemoteProtocolError
from metaq.net.budget import ListenLimits
from metaq.net.group import Group
from metaq.net.peer import Peer
from metaq.net.stream import Stream

MIB = 1024 * 1024


class StrictTransport(asyncio.Transport):
    """Fails the test when it is ended while one of its callbacks runs."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", 10911)})
        self.callback = ""
        self.ended = ""
        self.waiting = 0

    def _end(self, how: str) -> None:
        assert not self.callback, f"{how}() inside {self.callback}()"
        self.ended = how

    def abort(self) -> None:
        self._end("abort")

    def close(self) -> None:
        self._end("close")

    def is_closing(self) -> bool:
        return bool(self.ended)

    def write(self, data: Any) -> None:
        assert not self.ended
        self.waiting += len(data)

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Ending:
    """A session that ends its connection when `at` is what happens to it."""

    def __init__(self, peer: Peer, at: str) -> None:
        self.peer, self.at = peer, at
        self.received = 0
        self.needed = 0
        self.lost: str | None = None
        peer.on_writable = lambda: self.maybe("on_writable")
        self.maybe("made")

    def maybe(self, where: str) -> None:
        if where == self.at:
            self.peer.close("enough")
            assert self.peer.closed

    def data_received(self, data: memoryview) -> int:
        assert not self.peer.closed, "data after the end"
        self.received += len(data)
        self.maybe("data_received")
        if self.at == "garbage":
            raise RemoteProtocolError("garbage")
        if self.at == "fault":
            raise ZeroDivisionError
        if self.at == "unread":
            self.peer.write(bytes(4 * MIB))
        return 0 if self.needed else len(data)

    def frame_needed(self) -> int:
        return self.needed

    def connection_lost(self, why: str) -> None:
        self.lost = why


class Driven:
    """One connection, its callbacks called by hand, each marked at its transport."""

    def __init__(self, group: Group, at: str) -> None:
        self.transport = StrictTransport()
        self.sessions: list[Ending] = []

        def make(peer: Peer) -> Ending:
            self.sessions.append(Ending(peer, at))
            return self.sessions[-1]

        self.stream = Stream(group, make)
        self.call("connection_made", self.transport)

    def call(self, name: str, *args: object) -> Any:
        self.transport.callback = name
        try:
            return getattr(self.stream, name)(*args)
        finally:
            self.transport.callback = ""

    def receive(self, size: int) -> None:
        """One read event."""
        buffer = self.call("get_buffer", -1)
        assert len(buffer), "an empty buffer is an error of the transport"
        self.call("buffer_updated", min(size, len(buffer)))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def run(loop: asyncio.AbstractEventLoop, body: Callable[[], None]) -> None:
    async def main() -> None:
        body()
        await asyncio.sleep(0)  # what was put off happens

    loop.run_until_complete(main())


@pytest.mark.parametrize(
    ("at", "ended", "server"),
    [(at, "close", server)
     for at in ("made", "data_received", "on_writable", "garbage", "fault") for server in (True, False)]
    + [("unread", "abort", True)],
)  # fmt: skip
def test_session_that_ends_its_connection_is_obeyed_after_the_callback(loop, server: bool, at: str, ended: str) -> None:
    """At once for the session, which gets nothing more; for the transport when its callback has returned."""
    driven: list[Driven] = []

    def body() -> None:
        one = Driven(Group(ListenLimits(unanswered_bytes_max=3 * MIB), server=server), at)
        driven.append(one)
        one.receive(100)
        if not one.stream.closed:
            one.transport.waiting += 2 * MIB
            one.call("pause_writing")
        if at == "on_writable":
            one.transport.waiting = 0
            one.call("resume_writing")
        assert one.stream.closed
        assert not one.transport.ended
        one.receive(100)  # what the loop read before it learns of the end
        one.stream.write(b"nobody gets this")

    run(loop, body)
    assert driven[0].transport.ended == ended
    assert driven[0].stream.held == 0


def test_connection_above_the_limit_ends_after_it_was_made(loop) -> None:
    """Not inside `connection_made`."""
    driven: list[Driven] = []

    def body() -> None:
        group = Group(ListenLimits(connections_max=1), server=True)
        driven.extend([Driven(group, ""), Driven(group, "")])
        driven[1].receive(10)
        assert not driven[1].transport.ended

    run(loop, body)
    assert [one.transport.ended for one in driven] == ["", "abort"]


@pytest.mark.parametrize("greediest_is", ["itself", "another"])
def test_greedy_peer_ends_after_the_callback_that_found_it(loop, greediest_is: str) -> None:
    """The buffer that its transport asked for is still one, its bytes are free at once, and one peer is enough."""
    driven: list[Driven] = []

    def body() -> None:
        group = Group(ListenLimits(half_read_bytes_max=4 * MIB), server=True)
        driven.extend(Driven(group, "") for _ in range(3))
        for one in driven:
            one.sessions[0].needed = 16_000_000
        greedy = driven[0] if greediest_is == "itself" else driven[1]
        rounds = 0
        while group.budget.half_read_bytes < 3 * MIB and not greedy.stream.closed:
            greedy.receive(MIB)
        while not greedy.stream.closed:
            rounds += 1
            assert rounds < 10_000
            driven[0].receive(64 * 1024)
        greedy.receive(100)
        assert group.budget.half_read_bytes <= 4 * MIB
        assert group.budget.half_read_bytes == sum(one.stream.held for one in driven)

    run(loop, body)
    ended = [one.transport.ended for one in driven]
    assert ended == (["abort", "", ""] if greediest_is == "itself" else ["", "abort", ""])


def test_no_memory_for_an_unfinished_frame_ends_its_connection_alone(loop, monkeypatch) -> None:
    """It is told why, and the transport still gets a buffer."""
    driven: list[Driven] = []

    def refuse(self: Stream, size: int) -> int:
        raise MemoryError

    def body() -> None:
        group = Group(ListenLimits(), server=True)
        one = Driven(group, "")
        driven.append(one)
        one.sessions[0].needed = 16_000_000
        one.receive(100_000)
        monkeypatch.setattr(Stream, "_room", refuse)
        while not one.stream.closed:
            one.receive(100_000)
        one.receive(100_000)
        assert group.budget.half_read_bytes == 0

    run(loop, body)
    one = driven[0]
    assert one.transport.ended == "abort"
    one.stream.connection_lost(None)
    assert "no memory" in (one.sessions[0].lost or "")


def test_end_that_takes_too_long_can_be_cut_short(loop) -> None:
    """Abort after close, as a server does that stops; and both after the connection is lost do nothing."""
    driven: list[Driven] = []

    def body() -> None:
        driven.append(Driven(Group(ListenLimits(), server=True), ""))
        driven[0].stream.close("bye")

    run(loop, body)
    assert driven[0].transport.ended == "close"
    run(loop, lambda: driven[0].stream.abort("too slow"))
    assert driven[0].transport.ended == "abort"
    driven[0].stream.connection_lost(None)
    assert driven[0].sessions[0].lost == "bye"
    run(loop, lambda: (driven[0].stream.abort("again"), driven[0].stream.close("again"))[0])
