"""A direct link with TLS: a thread writes and waits as on a plain one, and its waits end in time."""

from __future__ import annotations

import asyncio
import time

import pytest

from metaq.clock import SYSTEM
from metaq.errors import ConnectionFailed, RequestTimeout
from metaq.net.direct import DirectStream, dial_direct
from metaq.net.tls.settings import TlsSettings
from tests.net.test_now import Quiet
from tests.net.tls.support import Running, serving
from tests.support import PATIENCE


async def dialled(running: Running, authority, host: str = "localhost") -> DirectStream:
    tls = TlsSettings(ca=str(authority.cert)).open()
    port = running.listener.port
    return await dial_direct(("127.0.0.1", port), f"{host}:{port}", PATIENCE, SYSTEM, tls)


def later(seconds: float = PATIENCE) -> float:
    return SYSTEM.monotonic() + seconds


@pytest.mark.parametrize("size", [1, 100, 20_000, 3_000_000])
def test_what_is_written_comes_back(size, authority, issued) -> None:
    """Also what the kernel does not take at once: the rest follows, encrypted once."""

    async def act() -> None:
        async with serving(issued) as running:
            stream = await dialled(running, authority)
            data = bytes(range(250)) * (size // 250 + 1)

            def exchange() -> bytes:
                got = stream.exchange(data, PATIENCE, later())
                while len(got) < len(data):
                    got += stream.receive(later())
                return got

            for _ in range(3):
                assert await asyncio.to_thread(exchange) == data
                assert not stream.stale, "session tickets are no data"
            running.sessions[0].peer.write(b"unasked")
            while not stream.stale:
                await asyncio.sleep(0.001)
            stream.close()

    asyncio.run(asyncio.wait_for(act(), PATIENCE))


def test_waits_end_in_time(authority, issued) -> None:
    """At a server that answers nothing, in less than the second of a look, and beyond it."""

    async def act() -> None:
        async with serving(issued) as running:
            running.listener._make_session = Quiet  # answers nothing
            for seconds in (0.05, 1.2):
                stream = await dialled(running, authority)
                began = time.monotonic()
                with pytest.raises(RequestTimeout):
                    await asyncio.to_thread(stream.exchange, b"question", seconds, later(seconds))
                assert time.monotonic() - began >= seconds
                stream.close()

    asyncio.run(asyncio.wait_for(act(), PATIENCE))


def test_its_end_and_a_cut_are_told(authority, issued) -> None:
    async def act() -> None:
        async with serving(issued) as running:
            stream, other = await dialled(running, authority), await dialled(running, authority)
            while len(running.sessions) < 2:
                await asyncio.sleep(0)
            for session in running.sessions:
                session.peer.close("over")
            while not stream.stale:
                await asyncio.sleep(0.001)
            with pytest.raises(ConnectionFailed, match="broke"):
                await asyncio.to_thread(stream.exchange, b"question", PATIENCE, later())
            stream.close()
            other.cut()
            with pytest.raises(ConnectionFailed, match="broke"):
                await asyncio.to_thread(other.exchange, b"question", PATIENCE, later())
            other.close()

    asyncio.run(asyncio.wait_for(act(), PATIENCE))


def test_the_name_of_the_address_is_verified(authority, issued) -> None:
    """Not the number that it was found to have."""

    async def act() -> None:
        async with serving(issued) as running:
            with pytest.raises(ConnectionFailed, match="Hostname mismatch"):
                await dialled(running, authority, "elsewhere.example.com")

    asyncio.run(asyncio.wait_for(act(), PATIENCE))
