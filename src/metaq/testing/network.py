"""A network between client and server that can be cut, stalled and torn in the middle of a frame."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Self

_CHUNK = 64 * 1024


class FlakyNetwork:
    """Forwards a port of 127.0.0.1 to `target` (`host:port`), until it is told not to.

    Give its `address` to the program under test instead of the target's. All methods may be called from any thread.

        with FlakyNetwork(broker.namesrv) as network:
            producer = metaq.Producer(network.address)
            network.cut()       # open connections break, new ones are refused
            network.mend()
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.address = ""
        self.connections = 0
        """Connections accepted so far."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="flaky-network", daemon=True)
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._flowing = asyncio.Event()
        self._refusing = False
        self._bytes_left: int | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> Self:
        """Begin to forward."""
        self._thread.start()
        self._call(self._open())
        return self

    def cut(self) -> None:
        """Break all connections and refuse new ones."""
        self._call(self._set(refusing=True))

    def mend(self) -> None:
        """Accept and forward again."""
        self._call(self._set(refusing=False))

    def stall(self) -> None:
        """Forward nothing more; connections stay open, as through a firewall that forgot them."""
        self._call(self._flow(on=False))

    def resume(self) -> None:
        """Forward again, what was held back first."""
        self._call(self._flow(on=True))

    def cut_after(self, count: int) -> None:
        """Break everything once `count` more bytes went from client to server: inside a frame, if you like."""
        self._call(self._limit(count))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _open(self) -> None:
        self._flowing.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"

    async def _shut(self) -> None:
        assert self._server is not None
        self._server.close()
        self._break()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _set(self, *, refusing: bool) -> None:
        self._refusing, self._bytes_left = refusing, None
        if refusing:
            self._break()

    async def _flow(self, *, on: bool) -> None:
        (self._flowing.set if on else self._flowing.clear)()

    async def _limit(self, count: int) -> None:
        self._bytes_left = count

    def _break(self) -> None:
        for pair in self._pairs:
            for writer in pair:
                writer.transport.abort()
        self._pairs.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._refusing:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        if self._refusing:  # it was cut meanwhile
            writer.transport.abort()
            far_writer.transport.abort()
            return
        self._pairs.add((writer, far_writer))
        for source, sink, counted in ((reader, far_writer, True), (far_reader, writer, False)):
            task = self._loop.create_task(self._forward(source, sink, counted=counted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK):
                await self._flowing.wait()
                if counted and self._bytes_left is not None:
                    data, over = data[: self._bytes_left], len(data) >= self._bytes_left
                    self._bytes_left -= len(data)
                    if over:
                        sink.write(data)
                        await sink.drain()
                        self._refusing = True
                        self._break()
                        return
                sink.write(data)
                await sink.drain()
        sink.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
