"""Accepting: in bounded batches, so that those who are connected are served in between; and who may not is closed at once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket

import pytest

from metaq.net.listener import ACCEPTED_PER_TURN, Listener, listen
from metaq.net.peer import Peer
from tests.support import PATIENCE


class Echo:
    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def data_received(self, data: memoryview) -> int:
        self.peer.write(bytes(data))
        return len(data)

    def frame_needed(self) -> int:
        return 0

    def connection_lost(self, why: str) -> None: ...


async def flood(listener: Listener, count: int) -> list[socket.socket]:
    """Connections that wait in the kernel: nothing is accepted meanwhile, since the loop does not turn."""
    return [socket.create_connection((listener.host, listener.port), PATIENCE) for _ in range(count)]


async def until(condition, what: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)
    assert condition(), what


def test_a_turn_of_the_loop_accepts_so_many_and_the_others_follow() -> None:
    async def run() -> None:
        accepted, turns = 0, 0

        def make(peer: Peer) -> Echo:
            nonlocal accepted
            accepted += 1
            return Echo(peer)

        listener = await listen("127.0.0.1", 0, make)
        with contextlib.ExitStack() as stack:
            for raw in await flood(listener, 5 * ACCEPTED_PER_TURN):
                stack.enter_context(contextlib.closing(raw))
            seen = [0]
            while accepted < 5 * ACCEPTED_PER_TURN:
                await asyncio.sleep(0)
                seen.append(accepted)
                turns += 1
                assert turns < 100_000
            assert max(after - before for before, after in itertools.pairwise(seen)) <= 2 * ACCEPTED_PER_TURN
            await listener.close()

    asyncio.run(run())


def test_who_may_not_arrive_is_closed_and_nothing_is_made_for_it() -> None:
    async def run() -> None:
        made = list[Peer]()

        def make(peer: Peer) -> Echo:
            made.append(peer)
            return Echo(peer)

        listener = await listen("127.0.0.1", 0, make)
        left = 2

        def may_arrive(address: str) -> str:
            nonlocal left
            assert address == "127.0.0.1"
            left -= 1
            return "" if left >= 0 else "too many"

        listener.admit_by(may_arrive, lambda _address: "")
        with contextlib.ExitStack() as stack:
            raws = [stack.enter_context(contextlib.closing(raw)) for raw in await flood(listener, 5)]
            await until(lambda: left == -3 and len(made) == 2, "all are judged")
            for raw in raws[2:]:
                raw.settimeout(PATIENCE)
                with contextlib.suppress(ConnectionResetError):
                    assert raw.recv(1) == b""
            raws[0].sendall(b"still here")
            raws[0].setblocking(False)
            loop = asyncio.get_running_loop()
            assert await asyncio.wait_for(loop.sock_recv(raws[0], 100), PATIENCE) == b"still here"
            assert listener.connections == 2
            await listener.close()

    asyncio.run(run())


def test_a_listener_that_is_closed_accepts_nobody_and_frees_its_port() -> None:
    async def run() -> None:
        listener = await listen("127.0.0.1", 0, Echo)
        port = listener.port
        raws = await flood(listener, 3)
        await listener.close()
        for raw in raws:
            raw.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), PATIENCE)
        again = await listen("127.0.0.1", port, Echo)
        await again.close()

    asyncio.run(run())
