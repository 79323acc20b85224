"""A server with TLS that echoes, and clients of every manner."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from metaq.net.budget import ListenLimits
from metaq.net.listener import Listener, listen
from metaq.net.peer import Peer
from metaq.net.tls.contexts import ServerFiles, server_context
from metaq.net.tls.server import Mode, ServerTls
from tests.certificates import Authority, Issued
from tests.support import PATIENCE

LOOPS = pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])


class Echo:
    """A session that sends back what comes."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.got = 0

    def data_received(self, data: memoryview) -> int:
        self.got += len(data)
        self.peer.write(bytes(data))
        return len(data)

    def frame_needed(self) -> int:
        return 0

    def connection_lost(self, why: str) -> None: ...


def files(issued: Issued, **more: str) -> ServerFiles:
    return ServerFiles(str(issued.cert), str(issued.key), **more)


class Running:
    """The server of a test: its listener, its TLS, and the sessions that were made."""

    def __init__(self, tls: ServerTls) -> None:
        self.tls, self.sessions = tls, list[Echo]()
        self.listener: Listener

    def make(self, peer: Peer) -> Echo:
        self.sessions.append(Echo(peer))
        return self.sessions[-1]


@contextlib.asynccontextmanager
async def serving(
    issued: Issued, mode: Mode = Mode.PERMISSIVE, limits: ListenLimits | None = None, seconds: float = PATIENCE,
    most: int = 500, **more: str,
) -> AsyncIterator[Running]:  # fmt: skip
    running = Running(ServerTls(mode, server_context(files(issued, **more)), seconds, most))
    running.listener = await listen("127.0.0.1", 0, running.make, limits, tls=running.tls)
    try:
        yield running
    finally:
        await running.listener.close()
        running.tls.close()


def trusting(
    authority: Authority, *, shows: Issued | None = None, version: ssl.TLSVersion | None = None
) -> ssl.SSLContext:
    """A context of Python's own client."""
    context = ssl.create_default_context(cafile=str(authority.cert))
    if shows is not None:
        context.load_cert_chain(shows.cert, shows.key)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


async def connected(
    running: Running, context: ssl.SSLContext | None, host: str = "localhost"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    more = {"ssl": context, "server_hostname": host} if context is not None else {}
    return await asyncio.open_connection("127.0.0.1", running.listener.port, **more)


async def echoed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    assert await reader.readexactly(len(data)) == data


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


def run(make_loop, work) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(asyncio.wait_for(work, PATIENCE))
