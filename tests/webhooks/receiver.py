"""A target on 127.0.0.1, in a thread of its own: it keeps what is posted, and answers as a test wants, faults too."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from tests.support import PATIENCE


@dataclass
class Posted:
    """One request."""

    target: str
    fields: dict[str, str]
    body: bytes
    when: float
    """Monotonic seconds of the receiver's loop."""


Answers = Callable[[Posted, asyncio.StreamWriter], Awaitable[None]]


def status(code: int, body: bytes = b"", **fields: str) -> Answers:
    """Answer with a status."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    head = f"HTTP/1.1 {code} X\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode()

    async def answer(_posted: Posted, writer: asyncio.StreamWriter) -> None:
        writer.write(head + body)

    return answer


def raw(data: bytes, *, then_close: bool = True) -> Answers:
    """Answer with these bytes."""

    async def answer(_posted: Posted, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if then_close:
            writer.close()

    return answer


OK = status(200)


class Receiver:
    """`answers`: what the next requests get; a test sets it at any time."""

    def __init__(self, answers: Answers = OK, port: int = 0, tls=None) -> None:
        self.answers = answers
        self.posted: list[Posted] = []
        self.at_once = 0
        """Most requests that were under way together."""
        self.connections = 0
        self.port = port
        self._under_way = 0
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/hook"

    @property
    def bodies(self) -> list[bytes]:
        return [one.body for one in self.posted]

    def __enter__(self) -> Self:
        self._thread.start()
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def open(self) -> None:
        """Listen, at the same port if it did before."""
        self._call(self._open())

    def shut(self) -> None:
        """Take no connection any more, and end all: as a process that dies."""
        self._call(self._shut())

    def _call(self, work) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _open(self) -> None:
        self._tasks: set[asyncio.Task] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        self.connections += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while not writer.is_closing():
                    await self._one(reader, writer)
        finally:
            self._tasks.discard(asyncio.current_task())
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *rest = head.strip().split("\r\n")
        fields = {name.lower(): value for name, _, value in (one.partition(": ") for one in rest)}
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        posted = Posted(line.split(" ")[1], fields, body, self._loop.time())
        self.posted.append(posted)
        self._under_way += 1
        self.at_once = max(self.at_once, self._under_way)
        try:
            await self.answers(posted, writer)
            await writer.drain()
        finally:
            self._under_way -= 1
