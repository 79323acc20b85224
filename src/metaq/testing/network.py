"""A network between client and server that can be cut, stalled, delayed, narrowed, torn inside a frame, or half open.

A `FlakyNetwork` accepts connections on a port of this machine and forwards each to its target. What it does to the bytes
is set for each direction, holds for all its connections together, and may be changed at any time. Bytes under way keep
their order, whatever happens to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from metaq.address import join_address, split_address
from metaq.errors import ConfigError
from metaq.testing.listening import NO_GOODBYE, Listener, refuse

Direction = Literal["both", "to server", "to client"]
"""Which bytes a fault concerns: those from client to server, those from server to client, or both."""

Result = TypeVar("Result")

CONNECTIONS_MAX: Final = 1000
"""Connections of one network; more are refused."""
HELD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of one connection and direction that are held back; then nothing more is read, as a full window would do."""
CALL_SECONDS: Final = 60.0
_CHUNK: Final = 64 * 1024
_PACE_SECONDS: Final = 0.02
"""What a throttled direction sends in one piece is at most what it may send in this time."""


class NetworkThread:
    """A thread with an event loop on which any number of `FlakyNetwork`s run."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="flaky-network", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` there and return its result. Raises what it raises; TimeoutError after a minute."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)

    def close(self) -> None:
        """End the thread. Its networks must be closed."""
        if not self._loop.is_closed():
            # `stop` of a loop is not thread-safe.
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class FlakyNetwork:
    """Forwards a port of this machine to `target` (`host:port`), and does harm on the way when it is told to.

    Give its `address` to the program under test instead of the target's. All methods may be called from any thread.

        with FlakyNetwork(broker.namesrv) as network:
            producer = metaq.Producer(network.address)
            network.cut()       # open connections break, new ones are refused
            network.mend()      # all is well again

    Args:
        target: where to.
        listen: where from; port 0 takes a free one. "": it is handed its connections by a `SharedPort`.
        thread: to share one among several networks; by default it has one of its own.
    """

    def __init__(self, target: str, *, listen: str = "127.0.0.1:0", thread: NetworkThread | None = None) -> None:
        self.target = target
        self.address = ""
        """`host:port` to connect to, once it is started."""
        self.connections = 0
        """Connections accepted so far."""
        self._where = split_address(listen) if listen else None
        self._target = split_address(target)
        self._shared_thread = thread
        self._thread: NetworkThread | None = None
        self._to_server, self._to_client = _Way(), _Way()
        self._open: set[_Connection] = set()
        self._cut = self._refusing = self._half_open = False
        self._listener: Listener | None = None

    def start(self) -> Self:
        """Begin to forward. Raises OSError: its port is taken; ConfigError: it is started already."""
        if self._thread is not None:
            raise ConfigError(f"the network to {self.target} is started already")
        if self._where is not None:
            self._listener = Listener(*self._where, self.take)
            self.address = join_address(self._where[0], self._listener.port)
        self._thread = self._shared_thread or NetworkThread()
        self._thread.call(self._begin())
        return self

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._open)

    def cut(self) -> None:
        """Break all connections and refuse new ones."""
        self._do(self._set_cut)

    def cut_after(self, count: int) -> None:
        """Break everything once `count` more bytes went from client to server: inside a frame, if you like."""

        def act() -> None:
            self._to_server.bytes_left = count

        self._do(act)

    def stall(self, direction: Direction = "both") -> None:
        """Forward nothing more that way; connections stay open, as through a firewall that forgot them.

        What comes in the meantime is held and goes on after `resume` or `mend`, as what TCP repeats would.
        """
        self._change(direction, stalled=True)

    def resume(self, direction: Direction = "both") -> None:
        """Forward again, what was held back first."""
        self._change(direction, stalled=False)

    def delay(self, seconds: float, direction: Direction = "both") -> None:
        """Let everything arrive `seconds` later than it was sent; 0 ends it. Nothing gets narrower by it.

        Raises ConfigError: below 0.
        """
        if seconds < 0:
            raise ConfigError(f"a delay of {seconds} s: need a number of seconds, 0 for none")
        self._change(direction, delay=seconds)

    def throttle(self, bytes_per_second: float, direction: Direction = "both") -> None:
        """Let no more than this through in a second, over all connections together; 0 ends it. Raises ConfigError: below 0."""
        if bytes_per_second < 0:
            raise ConfigError(f"a throttle of {bytes_per_second} bytes/s: need a positive rate, 0 for no limit")
        self._change(direction, rate=bytes_per_second)

    def half_open(self) -> None:
        """The server is gone and the clients have not heard of it: connections look open, nothing is ever answered.

        The server sees its ends break. New connections are accepted and lead nowhere. `mend` breaks all these.
        """
        self._do(self._set_half_open)

    def mend(self) -> None:
        """End every fault: accept, and forward at once, what was held back first."""
        self._do(self._mend)

    def refuse(self) -> None:
        """Refuse new connections, as a machine on which nothing listens. `mend` does not end it, `accept` does."""
        self._do(lambda: self._set_refusing(on=True))

    def accept(self) -> None:
        """Accept connections again, if nothing else forbids it."""
        self._do(lambda: self._set_refusing(on=False))

    def close(self) -> None:
        """Break all connections and give the port back."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.call(self._end())
            if thread is not self._shared_thread:
                thread.close()

    # ---- on the thread ------------------------------------------------------------------------------------------

    def _do(self, act: Callable[[], object]) -> None:
        async def work() -> None:
            act()

        if self._thread is None:
            raise ConfigError("the network is not started, or closed")
        self._thread.call(work())

    def _change(self, direction: Direction, **faults: Any) -> None:
        ways = {"both": (self._to_server, self._to_client), "to server": (self._to_server,)}
        ways["to client"] = (self._to_client,)
        if direction not in ways:
            raise ConfigError(f"direction {direction!r}: need one of {', '.join(map(repr, ways))}")

        def act() -> None:
            for way in ways[direction]:
                way.change(**faults)

        self._do(act)

    def _set_cut(self) -> None:
        self._cut, self._to_server.bytes_left = True, None
        self._listen_or_not()
        self._break(self._open)

    def _set_refusing(self, *, on: bool) -> None:
        self._refusing = on
        self._listen_or_not()

    def _set_half_open(self) -> None:
        self._half_open = True
        for connection in self._open:
            connection.forget_server()

    def _mend(self) -> None:
        self._cut = self._half_open = False
        for way in (self._to_server, self._to_client):
            way.bytes_left = None
            way.change(**dataclasses.asdict(_Faults()))
        self._break(connection for connection in self._open if connection.is_half)
        self._listen_or_not()

    @staticmethod
    def _break(connections: Iterable[_Connection]) -> None:
        for connection in list(connections):
            connection.abort()

    @property
    def _deaf(self) -> bool:
        return self._cut or self._refusing

    def _listen_or_not(self) -> None:
        if self._listener is not None:
            self._listener.set_deaf(on=self._deaf)

    async def _begin(self) -> None:
        if self._listener is not None:
            self._listener.begin()

    async def _end(self) -> None:
        if self._listener is not None:
            await self._listener.end()
        connections = list(self._open)
        self._break(connections)
        await asyncio.gather(*(connection.ended() for connection in connections))

    async def take(self, accepted: socket.socket) -> None:
        """Forward a connection that was accepted. On the thread's loop."""
        self.connections += 1
        if self._deaf or len(self._open) >= CONNECTIONS_MAX:
            refuse(accepted)
            return
        try:
            client = _End(*await asyncio.open_connection(sock=accepted))
        except BaseException as error:
            accepted.close()
            if not isinstance(error, OSError):  # the network is closed
                raise
            return
        if self._deaf:  # since a moment ago
            client.abort()
            return
        connection = _Connection(client, self._target, self._to_server, self._to_client, self._set_cut)
        if self._half_open:
            connection.forget_server()
        self._open.add(connection)
        connection.start(self._open.discard)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SharedPort:
    """One port for several networks to one server: which of them a connection goes through depends on who connects.

    Args:
        listen: where from.
        route: returns the network of a connection that was accepted, on the thread's loop.
        thread: that of the networks.
    """

    def __init__(self, listen: str, route: Callable[[socket.socket], FlakyNetwork], thread: NetworkThread) -> None:
        self._where = split_address(listen)
        self._route, self._thread = route, thread
        self._listener: Listener | None = None
        self.address = ""

    def start(self) -> Self:
        """Begin to accept. Raises OSError: the port is taken."""
        self._listener = Listener(*self._where, self._take)
        self.address = join_address(self._where[0], self._listener.port)
        self._thread.call(self._begin(self._listener))
        return self

    def refuse(self) -> None:
        """Refuse new connections, as a machine on which nothing listens."""
        self._set_deaf(on=True)

    def accept(self) -> None:
        """Accept connections again."""
        self._set_deaf(on=False)

    def close(self) -> None:
        """Accept nothing more. The networks are closed by themselves."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._thread.call(listener.end())

    def _set_deaf(self, *, on: bool) -> None:
        async def act(listener: Listener) -> None:
            listener.set_deaf(on=on)

        if self._listener is not None:
            self._thread.call(act(self._listener))

    @staticmethod
    async def _begin(listener: Listener) -> None:
        listener.begin()

    async def _take(self, accepted: socket.socket) -> None:
        await self._route(accepted).take(accepted)


class NetworkLink:
    """Several networks that fail together: the way between two programs that have more than one port for each other.

    Made by `Cluster.link`. The calls are those of `FlakyNetwork`.
    """

    def __init__(self, networks: Iterable[FlakyNetwork]) -> None:
        self.networks = tuple(networks)
        """Those of the way, one for each port."""

    def cut(self) -> None:
        """Break all connections and refuse new ones."""
        for network in self.networks:
            network.cut()

    def cut_after(self, count: int) -> None:
        """Break everything once `count` more bytes went to the server over one of them."""
        for network in self.networks:
            network.cut_after(count)

    def stall(self, direction: Direction = "both") -> None:
        """Forward nothing more that way. As `FlakyNetwork.stall`."""
        for network in self.networks:
            network.stall(direction)

    def resume(self, direction: Direction = "both") -> None:
        """Forward again, what was held back first."""
        for network in self.networks:
            network.resume(direction)

    def delay(self, seconds: float, direction: Direction = "both") -> None:
        """Let everything arrive `seconds` later than it was sent. As `FlakyNetwork.delay`."""
        for network in self.networks:
            network.delay(seconds, direction)

    def throttle(self, bytes_per_second: float, direction: Direction = "both") -> None:
        """Let no more than this through in a second, over each of them; 0 ends it. As `FlakyNetwork.throttle`."""
        for network in self.networks:
            network.throttle(bytes_per_second, direction)

    def half_open(self) -> None:
        """Let the server be gone without the clients hearing of it. As `FlakyNetwork.half_open`."""
        for network in self.networks:
            network.half_open()

    def mend(self) -> None:
        """End all faults."""
        for network in self.networks:
            network.mend()


@dataclasses.dataclass(frozen=True, slots=True)
class _Faults:
    """What is done to bytes: held back, made late by seconds, narrowed to bytes a second (0: no limit)."""

    stalled: bool = False
    delay: float = 0.0
    rate: float = 0.0


class _Way:
    """One direction of all connections of a network."""

    def __init__(self) -> None:
        self.faults = _Faults()
        self.bytes_left: int | None = None
        """Bytes that may still pass before all connections break; None: no limit."""
        self._free_at = 0.0
        self._changed = asyncio.Event()

    def change(self, **faults: Any) -> None:
        self.faults = dataclasses.replace(self.faults, **faults)
        self._changed.set()
        # A new event for later waiters: those of the old one are awake for good, and need not clear it.
        self._changed = asyncio.Event()

    async def turn(self, came: float, waiting: int) -> int:
        """Wait until some of the `waiting` bytes that came at `came` (loop time) may go on. Returns how many."""
        loop = asyncio.get_running_loop()
        while True:
            faults, now = self.faults, loop.time()
            seconds = max(came + faults.delay, self._free_at if faults.rate else now) - now
            if not faults.stalled and seconds <= 0:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if faults.stalled else seconds):
                    await self._changed.wait()
        if not faults.rate:
            return waiting
        size = min(waiting, max(1, int(faults.rate * _PACE_SECONDS)))
        # The time is shared by all connections of this direction, so that they divide the rate.
        self._free_at = now + size / faults.rate
        return size


class _End:
    """One of the two TCP connections that make a connection through the network."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def abort(self) -> None:
        if not self.writer.transport.is_closing():
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_GOODBYE)
        self.writer.transport.abort()


class _Connection:
    """A client's connection and, as long as it has one, the server's end of it."""

    def __init__(
        self, client: _End, target: tuple[str, int], to_server: _Way, to_client: _Way, cut: Callable[[], None]
    ) -> None:
        self._client, self._target = client, target
        self._to_server, self._to_client, self._cut = to_server, to_client, cut
        self._server: _End | None = None
        self.is_half = False
        """The server's end is gone, and the client is not to know it."""
        self._task: asyncio.Task[None] | None = None
        self._forwarding: asyncio.Task[None] | None = None

    def start(self, when_ended: Callable[[_Connection], None]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._give_back)  # not by the task itself: it may be ended before it has begun
        self._task.add_done_callback(lambda _: when_ended(self))

    def forget_server(self) -> None:
        self.is_half = True
        if self._forwarding is not None:
            self._forwarding.cancel()

    def abort(self) -> None:
        """Break both ends."""
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Wait until both ends are given back."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def _give_back(self, _ended: asyncio.Task[None]) -> None:
        if self._forwarding is not None:
            self._forwarding.cancel()
        for end in (self._client, self._server):
            if end is not None:
                end.abort()

    async def _run(self) -> None:
        if not self.is_half:
            self._forwarding = asyncio.get_running_loop().create_task(self._forward())
            await asyncio.wait({self._forwarding})
        if self.is_half:
            if self._server is not None:
                self._server.abort()
            with contextlib.suppress(OSError):
                while await self._client.reader.read(_CHUNK):
                    pass  # nobody is there to hear it

    async def _forward(self) -> None:
        with contextlib.suppress(OSError):  # no such server, or one end broke: so will the other
            server = self._server = _End(*await asyncio.open_connection(*self._target))
            pipes = (
                _Pipe(self._client, server, self._to_server, self._cut),
                _Pipe(server, self._client, self._to_client, self._cut),
            )
            tasks = [asyncio.get_running_loop().create_task(pipe.run()) for pipe in pipes]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
            for end in (self._client, server):  # both have said good-bye
                end.writer.close()
                await end.writer.wait_closed()


class _Pipe:
    """Carries what one end receives to the other."""

    def __init__(self, source: _End, sink: _End, way: _Way, cut: Callable[[], None]) -> None:
        self._source, self._sink, self._way, self._cut = source.reader, sink.writer, way, cut
        self._held: deque[tuple[float, bytes | None]] = deque()
        """When it came and what: empty bytes for the source's good-bye, None if it broke."""
        self._held_bytes = 0
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Forward until the source has said good-bye. Raises OSError: a side broke."""
        receiving = asyncio.get_running_loop().create_task(self._receive())
        try:
            await self._deliver()
        finally:
            receiving.cancel()

    async def _receive(self) -> None:
        data: bytes | None = b"-"
        while data:
            try:
                data = await self._source.read(_CHUNK)
            except OSError:
                # The break waits in line behind the bytes before it, as it does on a real way.
                data = None
            self._held.append((asyncio.get_running_loop().time(), data))
            self._held_bytes += len(data or b"")
            self._moved.set()
            # Nothing is read while this much is held, so the sender's window fills as on a slow network.
            while self._held_bytes > HELD_BYTES_MAX:
                await self._move()

    async def _deliver(self) -> None:
        while True:
            while not self._held:
                await self._move()
            came, data = self._held[0]
            size = await self._way.turn(came, len(data or b""))
            if data is None:
                raise ConnectionResetError
            if not data:
                self._sink.write_eof()
                return
            self._held[0] = (came, data[size:])
            if size == len(data):
                self._held.popleft()
            self._held_bytes -= size
            self._moved.set()
            await self._write(data[:size])

    async def _write(self, data: bytes) -> None:
        left = self._way.bytes_left
        if left is None:
            self._sink.write(data)
            await self._sink.drain()
            return
        self._way.bytes_left = max(0, left - len(data))
        # Part of a frame goes out before the break: receivers must cope with half a frame.
        self._sink.write(data[:left])
        await self._sink.drain()
        if len(data) >= left:
            self._cut()

    async def _move(self) -> None:
        """Wait until something came in or went out."""
        self._moved.clear()
        await self._moved.wait()
