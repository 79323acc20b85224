"""Coroutines as tests, and a client that writes the bytes of requests itself."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from tests.support import PATIENCE

P = ParamSpec("P")
T = TypeVar("T")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in a loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def eventually(value: Callable[[], T], good: Callable[[T], object] = bool) -> T:
    """Wait until a value is good, and return it."""
    async with asyncio.timeout(PATIENCE):
        while not good(found := value()):
            await asyncio.sleep(0.001)
    return found


class Dialed:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
        """Write a request and read its answer: status, header fields, body."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(PATIENCE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            fields = dict(line.split(": ", 1) for line in head[1:] if line)
            return int(head[0].split()[1]), fields, await self.reader.readexactly(int(fields["content-length"]))

    async def is_closed(self) -> bool:
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True


async def dial(port: int) -> Dialed:
    return Dialed(*await asyncio.open_connection("127.0.0.1", port))
