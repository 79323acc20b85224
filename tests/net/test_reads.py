"""Reading: a peer that sends without a pause has one long read a turn of the loop, as everybody else has."""

from __future__ import annotations

import asyncio

import pytest

from metaq.net import stream as stream_module
from metaq.net.budget import ListenLimits
from metaq.net.group import Group
from metaq.net.stream import SHARED_BYTES, Stream
from tests.net.test_ends import Ending, StrictTransport


class Reading(StrictTransport):
    """Knows whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.ended
        self.reads = True


@pytest.mark.parametrize(
    ("size", "seconds", "goes_on"),
    [(SHARED_BYTES, -1, False), (SHARED_BYTES // 2, -1, False), (1000, -1, True), (SHARED_BYTES, 1e9, True)],
)
def test_a_long_read_lets_the_other_connections_have_their_turn(monkeypatch, size, seconds, goes_on) -> None:
    """libuv would read the same connection up to 32 times in a row: a flood of small requests stopped everybody for seconds."""

    monkeypatch.setattr(stream_module, "LONG_READ_SECONDS", seconds)

    async def act() -> None:
        transport = Reading()
        stream = Stream(Group(ListenLimits(), server=True), lambda peer: Ending(peer, ""))
        stream.connection_made(transport)
        stream.get_buffer(-1)[:size] = bytes(size)
        stream.buffer_updated(size)
        assert transport.reads is goes_on
        await asyncio.sleep(0)
        assert transport.reads

    asyncio.run(act())


def test_a_connection_that_ends_meanwhile_is_not_read_any_more(monkeypatch) -> None:
    """Its transport would fail."""
    monkeypatch.setattr(stream_module, "LONG_READ_SECONDS", -1)

    async def act() -> None:
        transport = Reading()
        stream = Stream(Group(ListenLimits(), server=True), lambda peer: Ending(peer, ""))
        stream.connection_made(transport)
        stream.get_buffer(-1)[:] = bytes(SHARED_BYTES)
        stream.buffer_updated(SHARED_BYTES)
        transport.close()
        await asyncio.sleep(0)
        assert not transport.reads

    asyncio.run(act())


class Waiting(Ending):
    """A session that takes one byte at a time, and waits before each but the first."""

    def __init__(self, peer) -> None:
        super().__init__(peer, "")
        self.taken = b""
        self.waits = False

    def data_received(self, data) -> int:
        if self.waits:
            self.peer.pause()
            return 0
        self.taken += data[:1]
        self.waits = True
        if len(data) > 1:
            self.peer.pause()
        return 1

    def go_on(self) -> None:
        self.waits = False
        self.peer.resume()


def test_a_session_that_waits_is_given_what_it_left_when_it_goes_on() -> None:
    """It is not read meanwhile, neither when the peer takes bytes again nor behind a long read; then nothing is missing."""

    async def act() -> None:
        transport, sessions = Reading(), []

        def make(peer):
            sessions.append(Waiting(peer))
            return sessions[0]

        stream = Stream(Group(ListenLimits(), server=True), make)
        stream.connection_made(transport)
        (session,) = sessions
        stream.get_buffer(-1)[:3] = b"abc"
        stream.buffer_updated(3)
        assert (session.taken, transport.reads) == (b"a", False)
        stream.pause_writing()
        stream.resume_writing()
        await asyncio.sleep(0)
        assert (session.taken, transport.reads) == (b"a", False)
        session.go_on()
        assert session.taken == b"a", "in another turn of the loop"
        await asyncio.sleep(0)
        assert (session.taken, transport.reads) == (b"ab", False)
        session.go_on()
        session.peer.resume()
        await asyncio.sleep(0)
        assert (session.taken, transport.reads, stream.held) == (b"abc", True, 0)
        stream.get_buffer(-1)[:2] = b"de"
        stream.buffer_updated(2)
        transport.close()
        session.go_on()
        await asyncio.sleep(0)
        assert session.taken == b"abc", "a connection that has ended is given nothing"

    asyncio.run(act())
