"""A gateway that answers as a test tells it: late, wrongly, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Self

Answering = Callable[["StubGateway", str, bytes, asyncio.StreamWriter], Awaitable[None]]


def answered(status: int, body: bytes, fields: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{fields}\r\n".encode() + body


class StubGateway:
    """`async with StubGateway(answering) as stub`. `requests`: the lines of the requests, and their header fields."""

    def __init__(self, answering: Answering, tls: ssl.SSLContext | None = None) -> None:
        self.answering, self._tls = answering, tls
        self.requests: list[str] = []
        self.fields: list[dict[str, str]] = []
        self.connections = self.open = self.open_max = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                self.requests.append(head[0])
                self.fields.append(fields)
                await self.answering(self, head[0].split(" ")[1], body, writer)
                await writer.drain()
        self.open -= 1
        writer.close()
