"""A listener that speaks the lines of MetaQ 1.x and answers as a test tells it: late, wrongly, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Self

from metaq.wire.metaq1.commands import Line, Reader, ResultLine, VersionLine, encode

Answering = Callable[["StubConnection", Line], None]


def versions(connection: StubConnection, line: Line) -> None:
    """Answer heartbeats alone."""
    if isinstance(line, VersionLine):
        connection.answer(200, b"1.4.6.2", line.opaque)


def nothing(connection: StubConnection, line: Line) -> None:
    """Answer nothing."""


class StubConnection:
    def __init__(self, stub: Stub, writer: asyncio.StreamWriter) -> None:
        self.stub, self.writer = stub, writer
        self.lines: list[Line] = []

    def answer(self, code: int, body: bytes, opaque: int) -> None:
        self.writer.write(encode(ResultLine(code, body, opaque)))

    def cut(self) -> None:
        self.writer.transport.abort()


class Stub:
    """`async with Stub() as stub`; `stub.answering` may be replaced at any time."""

    def __init__(self, answering: Answering = versions) -> None:
        self.answering = answering
        self.connections: list[StubConnection] = []
        self.address = ""
        self._port = 0
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def listen(self) -> None:
        """Begin, or begin again at the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"

    async def __aexit__(self, *_: object) -> None:
        self.deaf()
        for connection in self.connections:
            connection.cut()

    def deaf(self) -> None:
        """Take no more connections."""
        self._server.close()

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until something that lines or connections change is so."""
        async with self._changed:
            await self._changed.wait_for(ready)

    @property
    def lines(self) -> list[Line]:
        """Of all connections."""
        return [line for connection in self.connections for line in connection.lines]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = StubConnection(self, writer)
        self.connections.append(connection)
        await self._tell()
        parser, kept = Reader(1 << 20), b""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                kept += data
                while kept:
                    line, used = parser.next(kept)
                    kept = kept[used:]
                    if line is None:
                        break
                    connection.lines.append(line)
                    self.answering(connection, line)
                await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
