"""Busy polling under TLS: for the next request of a connection that is alone, and never so long that others wait."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable

import pytest

from metaq.net import sweep
from metaq.net.tls.server import ServerTls
from tests.net.tls.support import LOOPS, connected, echoed, run, serving, trusting, until
from tests.support import PATIENCE

LONG_MICROS = 1_000_000
"""Longer than any answer takes: what does not come in a pass comes late, and shows."""
pytestmark = pytest.mark.skipif(sweep.receive_awake is None, reason="the compiled module is not there")


class Talking:
    """A client in a thread that sends a byte, reads the answer, and again."""

    def __init__(self, port: int, context: ssl.SSLContext, most: int) -> None:
        self.answered, self.stop = 0, threading.Event()
        self._port, self._context, self._most = port, context, most
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def _talk(self) -> None:
        with (
            socket.create_connection(("127.0.0.1", self._port), PATIENCE) as raw,
            self._context.wrap_socket(raw, server_hostname="localhost") as link,
        ):
            while self.answered < self._most and not self.stop.is_set():
                link.sendall(b"x")
                assert link.recv(1) == b"x"
                self.answered += 1

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()


def counted(tls: ServerTls) -> Callable[[], int]:
    """Returns how many requests have come by busy polls so far."""
    came, read_on = [0], tls.read_on

    def count(*arguments) -> int:
        size = read_on(*arguments)
        came[0] += size > 0
        return size

    tls.read_on = count
    return lambda: came[0]


@LOOPS
def test_requests_that_follow_each_other_are_read_without_the_loop(make_loop, authority, issued) -> None:
    """All are answered, those behind the last pass of a turn too, and the connection ends as any other."""

    async def act() -> None:
        async with serving(issued) as running:
            running.tls.stay_awake(LONG_MICROS)
            came, number = counted(running.tls), 5 * sweep.PASSES_MAX + 3
            client = Talking(running.listener.port, trusting(authority), number)
            await until(lambda: client.over and running.listener.connections == 0)
            assert client.answered == number
            assert came() > number // 2

    run(make_loop, act())


@LOOPS
def test_another_connection_has_its_turn(make_loop, authority, issued) -> None:
    """While one goes on and on."""

    async def act() -> None:
        async with serving(issued) as running:
            running.tls.stay_awake(LONG_MICROS)
            client = Talking(running.listener.port, trusting(authority), 1 << 40)
            await until(lambda: client.answered > 100)
            for context in (None, trusting(authority)):
                reader, writer = await connected(running, context)
                for _ in range(3):
                    await echoed(reader, writer, b"hello")
                writer.close()
            client.stop.set()
            await until(lambda: client.over)

    run(make_loop, act())


@LOOPS
@pytest.mark.parametrize("micros", [0, 50])
def test_a_client_that_is_slow_costs_no_core(make_loop, micros, authority, issued) -> None:
    """Polls in vain are given up, and without the option there are none."""

    async def act() -> None:
        async with serving(issued) as running:
            running.tls.stay_awake(micros)
            came = counted(running.tls)
            reader, writer = await connected(running, trusting(authority))
            for _ in range(50):  # this client runs on the server's loop: it sends nothing while that polls
                await echoed(reader, writer, b"hello")
            assert not came()
            assert running.tls._vigil.worth_it() is (micros == 0)
            writer.close()

    run(make_loop, act())


@LOOPS
def test_answers_that_come_later_are_not_polled_for(make_loop, authority, issued) -> None:
    """A request whose answer is still to come, as one that waits for the disk."""

    async def act() -> None:
        async with serving(issued) as running:
            running.tls.stay_awake(LONG_MICROS)
            came = counted(running.tls)
            reader, writer = await connected(running, trusting(authority))
            await until(lambda: bool(running.sessions))
            running.sessions[0].peer.write, now = lambda _data: None, running.sessions[0].peer.write
            writer.write(b"hello")
            await until(lambda: running.sessions[0].got == 5)
            asyncio.get_running_loop().call_soon(now, b"later")
            assert await reader.readexactly(5) == b"later"
            assert not came()
            writer.close()

    run(make_loop, act())
