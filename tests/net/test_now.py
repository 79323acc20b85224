"""What is written at once, past the loop: it never overtakes what was written before it."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest
import uvloop

from metaq.net.listener import listen
from metaq.net.peer import Peer
from metaq.net.sweep import send_now
from tests.support import PATIENCE


class Quiet:
    """A session that answers nothing by itself."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def data_received(self, data: memoryview) -> int:
        return len(data)

    def frame_needed(self) -> int:
        return 0

    def connection_lost(self, why: str) -> None: ...


@pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("seed", range(4))
def test_the_peer_reads_all_in_the_order_of_the_writes(make_loop, seed: int) -> None:
    """Short and long ones, at once and not, also when the peer leaves much unread."""
    chance = random.Random(seed)
    sessions: list[Quiet] = []

    async def run() -> None:
        def make(peer: Peer) -> Quiet:
            sessions.append(Quiet(peer))
            return sessions[-1]

        listener = await listen("127.0.0.1", 0, make)
        host, port = listener.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
        while not sessions:
            await asyncio.sleep(0)
        peer, expected, got = sessions[0].peer, bytearray(), bytearray()
        for number in range(300):
            data = b"%d," % number * chance.choice((1, 3, 50_000 if number % 10 == 0 else 10))
            expected += data
            peer.write_now(data) if chance.random() < 0.6 else peer.write(data)
            if chance.random() < 0.3:
                await asyncio.sleep(0)
            if chance.random() < 0.2:
                got += await reader.read(1 << 16)
        async with asyncio.timeout(PATIENCE):
            while len(got) < len(expected):
                got += await reader.read(1 << 20)
        assert got == expected
        writer.close()
        peer.close("done")
        peer.write_now(b"nobody is there")
        await listener.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(run())


@pytest.mark.skipif(send_now is None, reason="the compiled module is not built, or this is no Linux")
def test_sending_now_does_not_wait_and_raises_nothing() -> None:
    """What does not fit is left; a peer that is gone takes nothing, and whoever writes the rest hears of it."""
    one, other = socket.socketpair()
    one.setblocking(False)
    sent = 0
    while more := send_now(one.fileno(), bytes(1 << 16)):
        sent += more
    assert sent > 0
    other.close()
    assert send_now(one.fileno(), b"x") == 0
    one.close()
    assert send_now(-1, b"x") == 0
