"""One connection to a broker, for benches that write requests of their own."""

import asyncio
from typing import Self

from metaq.wire.command import Command, encode
from metaq.wire.connection import Connection


class Conversation:
    """Requests that are written without waiting, and their answers in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._answers, self._opaque = Connection(), 0

    @classmethod
    async def open(cls, address: str) -> Self:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def write(self, command: Command) -> None:
        self._opaque += 1
        command.opaque = self._opaque
        self._writer.write(encode(command))

    async def answer(self) -> Command:
        """Return the next answer. Raises RuntimeError: the request is refused."""
        while (command := self._answers.next_command()) is None:
            data = await self._reader.read(1 << 16)
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self._answers.receive_data(data)
        if command.code != 0:
            raise RuntimeError(f"code {command.code}: {command.remark}")
        return command
