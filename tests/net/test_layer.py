"""A layer between socket and stream: whatever way bytes are written, none of them goes past it."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable

import pytest
import uvloop

from metaq.net import sweep as sweeps
from metaq.net.blocking import BlockingStream, dial_blocking
from metaq.net.dialer import dial
from metaq.net.listener import listen
from metaq.net.peer import Peer
from metaq.net.sweep import Sweep
from tests.net.layers import ChangingLayer, ChangingSocket, changed
from tests.net.test_now import Quiet
from tests.support import PATIENCE

LOOPS = pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])


class Pieces:
    """A long answer."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, ready: Callable[[], None]) -> bytes:
        piece, self.data = self.data[:5000], self.data[5000:]
        return piece


@LOOPS
@pytest.mark.parametrize("side", ["server", "client"])
@pytest.mark.parametrize("seed", range(3))
def test_every_way_of_writing_goes_through_the_layer(make_loop, side: str, seed: int) -> None:
    """Writes, those at once, long answers in pieces, and what is gathered while others are read: in order, all changed."""
    chance = random.Random(seed)

    async def run() -> None:
        wires: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        peers: list[Peer] = []

        def make(peer: Peer) -> Quiet:
            peers.append(peer)
            return Quiet(peer)

        if side == "server":
            listener = await listen("127.0.0.1", 0, make, layer=ChangingLayer)
            wires += [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(2)]
        else:
            server = await asyncio.start_server(lambda *wire: wires.append(wire), "127.0.0.1", 0)
            for _ in range(2):
                await dial(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", make, PATIENCE, ChangingLayer)
        while len(peers) < 2 or len(wires) < 2:
            await asyncio.sleep(0)
        assert not any(peer.plain for peer in peers)
        if sweeps.available():
            sweep = Sweep(lambda _: None)
            assert not any(peer.join(sweep, None) for peer in peers)
            assert len(sweep) == 0
        peer, expected, got = peers[0], bytearray(), bytearray()
        reader = wires[0][0]
        if side == "client":  # either one was accepted first
            peer.write(b"?")
            expected += b"?"
            first = [asyncio.create_task(wire[0].read(1)) for wire in wires]
            done, _ = await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            reader = wires[first.index(done.pop())][0]
            got += changed(b"?")
            for task in first:
                task.cancel()
        for number in range(200):
            data = b"%d," % number * chance.choice((1, 3, 20_000 if number % 20 == 0 else 10))
            expected += data
            way = chance.random()
            if way < 0.4:
                peer.write_now(data)
            elif way < 0.8:
                peer.write(data)
            else:
                peer.write_from(data[:2], Pieces(data[2:]))
                await asyncio.sleep(0)  # writes before its turn overtake it
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                for _, writer in wires:
                    writer.write(b"read both: the server is crowded")
                await asyncio.sleep(0)
            if chance.random() < 0.2:
                got += await reader.read(1 << 16)
        async with asyncio.timeout(PATIENCE):
            while len(got) < len(expected):
                got += await reader.read(1 << 20)
        assert changed(got) == expected
        for _, writer in wires:
            writer.close()
        for each in peers:
            each.close("done")
        if side == "server":
            await listener.close()
        else:
            server.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(asyncio.wait_for(run(), PATIENCE))


@LOOPS
def test_without_a_layer_a_connection_is_plain(make_loop) -> None:
    """On both sides, before its session is made."""

    async def run() -> None:
        plain: list[bool] = []

        def make(peer: Peer) -> Quiet:
            plain.append(peer.plain)
            return Quiet(peer)

        listener = await listen("127.0.0.1", 0, make)
        client = await dial(listener.address, make, PATIENCE)
        while len(plain) < 2:
            await asyncio.sleep(0)
        assert plain == [True, True]
        client.close("done")
        await listener.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(asyncio.wait_for(run(), PATIENCE))


def test_a_blocking_stream_goes_through_its_layer() -> None:
    """Both ways; and it does not wait for the kernel to have what the layer has taken from it already."""
    size = 200_000
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = dial_blocking(f"127.0.0.1:{listener.getsockname()[1]}", PATIENCE, ChangingSocket)
        far, _ = listener.accept()
        with stream, far:
            stream.send(b"question")
            wire = b""
            while len(wire) < 8:
                wire += far.recv(100)
            assert changed(wire) == b"question"
            answer = bytes(index % 251 for index in range(size))
            sender = threading.Thread(target=far.sendall, args=(changed(answer),), daemon=True)
            sender.start()
            buffer, got = bytearray(size), 0
            while got < size:
                got += stream.receive_into(memoryview(buffer)[got:], size - got)
            assert buffer == answer
            assert stream._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
            sender.join(PATIENCE)


def test_a_blocking_stream_is_plain_unless_it_is_wrapped() -> None:
    """Then large answers wake it once, as before."""
    one, other = socket.socketpair()
    with other, BlockingStream(one, "far:1", PATIENCE) as stream:
        other.sendall(b"x" * 70_000)
        assert stream.receive_into(bytearray(70_000), 70_000) == 70_000
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 70_000
