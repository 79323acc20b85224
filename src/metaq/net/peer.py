"""One TCP connection: bytes between the event loop and a session, within limits.

Reading. All connections of a thread receive into one shared buffer, because most hold nothing between two events. The
unfinished frame that an event leaves behind is kept by its connection: a short one is put in front of the next read, a
long one gets a private buffer, which grows with the bytes that really came and never on a mere promise of them.

Writing. What the kernel does not take waits in the transport. Above `_CONGESTED_BYTES` a server's connection stops
reading: who does not read its answers gets no more of them. Above `unanswered_bytes_max` it is closed.

A server whose connections take turns writes their answers at the end of the loop's turn, all connections after each
other: a peer that is woken by the first answer does not preempt us before the others are written (64 connections with
one request each: p50 1.38 ms by immediate writes, 1.09 ms so). A connection that is alone is answered at once, which
saves it 1.3 us.

Ending. A connection that is to end takes and gives no data from that moment on, and holds none. Its transport is ended by
the next turn of the loop, never inside one of the transport's own callbacks: uvloop and libuv go on with what they then
have freed (in get_buffer the process is gone).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from metaq.errors import ConfigError, RemoteProtocolError
from metaq.log import RateLimitedLog

log = logging.getLogger("metaq.net")

KIB, MIB = 1024, 1024 * 1024
SHARED_BYTES = 512 * KIB
_PREFIX_BYTES_MAX = 16 * KIB
"""A longer rest would be copied again for each small packet of a slow peer."""
_PRIVATE_BYTES_MIN = 64 * KIB
_CONGESTED_BYTES = 1 * MIB
_JOINED_BYTES_MAX = 64 * KIB
"""Longer writes go out at once: they are views of the log, which nobody wants copied."""
_TICKS_IDLE = 4
"""The idle time is measured in quarters: an event only notes the number of the running quarter."""


class Peer(Protocol):
    """The other end of a connection, as a session sees it. Not thread-safe: use it on its event loop only."""

    address: tuple[str, int]
    local: tuple[str, int]
    on_writable: Callable[[], None] | None
    """Called when a congested peer takes bytes again."""

    @property
    def congested(self) -> bool:
        """The peer does not read what we wrote. A session may stop early; the rest of its input comes again later."""
        ...

    @property
    def closed(self) -> bool: ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, or keep until the peer reads. Does nothing on a closed connection."""
        ...

    def close(self, why: str = "") -> None:
        """Close after what is written has gone out."""
        ...


class Session(Protocol):
    """What a door or a client makes for each connection."""

    def data_received(self, data: memoryview) -> int:
        """Take what is whole and return its bytes; the rest is presented again with more behind it.

        `data` is valid during the call only. Raises RemoteProtocolError: closes this connection.
        """
        ...

    def frame_needed(self) -> int:
        """Bytes of the unfinished frame, its length field included, if it is known; else 0."""
        ...

    def connection_lost(self, why: str) -> None:
        """The last call. `why` is empty if the peer just left."""
        ...


@dataclass(frozen=True, slots=True)
class ListenLimits:
    """What peers may take of us. 0 is no limit."""

    connections_max: int = 10_000
    unanswered_bytes_max: int = 64 * MIB
    half_read_bytes_max: int = 256 * MIB
    """Bytes held for unfinished frames, all peers together, above which the peer with the most is closed."""
    idle_seconds: float = 120


class Group:
    """The connections that share limits: those of one listener, or of one client."""

    def __init__(self, limits: ListenLimits, *, server: bool) -> None:
        self.limits = limits
        self.server = server
        self.streams: set[Stream] = set()
        self.half_read_bytes = 0
        self.tick = 0
        self.crowded = False
        """Whether the last two reads came from different connections."""
        self.faults = RateLimitedLog(log)
        self._last_read: Stream | None = None
        self._unsent: list[Stream] = []
        self._timer: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    def add(self, stream: Stream) -> bool:
        """Count a connection in; False if there are as many as may be."""
        limit = self.limits.connections_max
        if limit and len(self.streams) >= limit:
            return False
        self.streams.add(stream)
        return True

    def remove(self, stream: Stream) -> None:
        self.streams.discard(stream)
        if self._last_read is stream:
            self._last_read = None
        if not self.streams:
            self._emptied.set()

    async def emptied(self) -> None:
        """Wait until no connection is left."""
        while self.streams:
            self._emptied.clear()
            await self._emptied.wait()

    def start(self) -> None:
        """Begin to look for idle connections."""
        if self.limits.idle_seconds:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.limits.idle_seconds / _TICKS_IDLE, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self.tick += 1
        for stream in [stream for stream in self.streams if self.tick - stream.seen > _TICKS_IDLE]:
            stream.abort(f"nothing was read or written for {self.limits.idle_seconds:g} s")
        self.faults.tick()
        self.start()

    def was_read(self, stream: Stream) -> None:
        self.crowded = stream is not self._last_read
        self._last_read = stream

    def send_later(self, stream: Stream) -> None:
        """Let `stream` write what it has gathered when this turn of the loop is over."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send)
        self._unsent.append(stream)

    def _send(self) -> None:
        streams, self._unsent = self._unsent, []
        for stream in streams:
            stream.send_unsent()

    def hold(self, more: int) -> None:
        """Account for bytes of unfinished frames; close the greediest peers above the limit."""
        self.half_read_bytes += more
        limit = self.limits.half_read_bytes_max
        while more > 0 and limit and self.half_read_bytes > limit:
            greediest = max(self.streams, key=lambda stream: stream.held)
            if not greediest.held:
                break
            greediest.abort(
                f"it held {greediest.held} bytes of an unfinished frame when all peers together held "
                f"{self.half_read_bytes}, above the limit of {limit}"
            )


class _SharedBuffer(threading.local):
    """One receive buffer per thread: between filling it and emptying it no other connection of its loop runs."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(SHARED_BYTES))


_shared = _SharedBuffer()


class Stream(asyncio.BufferedProtocol):
    """A connection: the asyncio protocol towards the loop, the `Peer` towards the session."""

    def __init__(self, group: Group, make_session: Callable[[Peer], Session]) -> None:
        self.address: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.on_writable: Callable[[], None] | None = None
        self.seen = group.tick
        self.held = 0
        """Bytes that this connection takes for an unfinished frame."""
        self._group = group
        self._make_session = make_session
        self._session: Session | None = None
        self._transport: asyncio.Transport | None = None
        """None before the connection is made, and from the moment on that it is to end."""
        self._ending: asyncio.Transport | None = None
        """The transport of a connection that is to end."""
        self._congested = False
        self._unsent = b""
        self._why = ""
        self._shared = _shared.view
        self._rest = b""  # A short unfinished frame...
        self._private: bytearray | None = None  # ...or the buffer of a long one, filled up to _filled.
        self._filled = 0
        self._needed = 0

    # -------------------------------------------------------------- Peer

    @property
    def congested(self) -> bool:
        return self._congested

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._group.server and self._group.crowded and len(data) <= _JOINED_BYTES_MAX:
            if not self._unsent:
                self._group.send_later(self)
            self._unsent += data
            if len(self._unsent) > _JOINED_BYTES_MAX:
                self.send_unsent()
        else:
            self.send_unsent()
            transport.write(data)
        if self._congested:
            waiting, limit = transport.get_write_buffer_size(), self._group.limits.unanswered_bytes_max
            if limit and waiting > limit:
                self.abort(f"it left {waiting} bytes of answers unread, the limit is {limit}")
        else:
            self.seen = self._group.tick

    def send_unsent(self) -> None:
        """Write what was gathered in this turn of the loop."""
        data, self._unsent = self._unsent, b""
        if data and not self.closed:
            assert self._transport is not None, "it is not closed"
            self._transport.write(data)

    def close(self, why: str = "") -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.send_unsent()
            self._tell(why)
            self._end(self._transport, self._transport.close)

    def abort(self, why: str) -> None:
        """Close at once; what the peer has not read is lost. Also cuts a `close` short."""
        transport = self._transport or self._ending
        if transport is not None:
            self._tell(why)
            self._end(transport, transport.abort)

    def _end(self, transport: asyncio.Transport, how: Callable[[], None]) -> None:
        """From now on this connection is closed; the loop's next turn tells the transport."""
        self._transport, self._ending = None, transport
        self._drop_rest()
        asyncio.get_running_loop().call_soon(how)

    def _tell(self, why: str) -> None:
        if why and not self._why:
            self._why = why
            log.info("closing the connection of %s:%d: %s", *self.address, why)

    # -------------------------------------------------------------- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        self.address = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        if not self._group.add(self):
            self.abort(f"there are {self._group.limits.connections_max} connections already, the limit")
            return
        raw = transport.get_extra_info("socket")
        if raw is not None:  # asyncio does not set it on all accepted sockets; Nagle costs 40 ms an answer.
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=_CONGESTED_BYTES)
        self._session = self._make_session(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._group.remove(self)
        self._drop_rest()
        self._transport = self._ending = None
        session, self._session = self._session, None
        if session is not None:
            session.connection_lost(self._why or (str(exc) if exc is not None else ""))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the loop's guess is not needed
        if self._private is not None:
            if self._filled == len(self._private):
                self._grow(self._private)
            if self._private is not None:
                return memoryview(self._private)[self._filled :]
        if not self._rest:  # also when growing has ended the connection: its transport needs a buffer all the same
            return self._shared
        size = len(self._rest)
        self._shared[:size] = self._rest
        return self._shared[size:]

    def buffer_updated(self, nbytes: int) -> None:
        self.seen = self._group.tick
        self._group.was_read(self)
        if self._private is not None:
            self._filled += nbytes
            if self._filled < self._needed:
                return
            self._present(memoryview(self._private)[: self._filled])
        else:
            self._present(self._shared[: len(self._rest) + nbytes])

    def pause_writing(self) -> None:
        self._congested = True
        if self._group.server and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._congested = False
        self.seen = self._group.tick
        if self.on_writable is not None:
            self.on_writable()
        if not self._group.server or self.closed:
            return
        if self.held:  # What the session left when it saw the congestion.
            rest = bytes(memoryview(self._private)[: self._filled]) if self._private is not None else self._rest
            if len(rest) >= self._needed:
                self._present(memoryview(rest))
        if not self._congested and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # -------------------------------------------------------------- the unfinished frame

    def _present(self, data: memoryview) -> None:
        """Give the session what came, and keep what it does not take."""
        session = self._session
        if session is None or self._transport is None:
            return
        try:
            consumed = session.data_received(data)
            if consumed == len(data):
                if self.held:
                    self._drop_rest()
            elif self._transport is not None:
                self._keep(data[consumed:], session.frame_needed())
        except RemoteProtocolError as error:
            self.close(str(error))
        except MemoryError:
            self.abort(f"there is no memory for the {len(data)} bytes that came")
        except Exception as error:  # noqa: BLE001  whatever a session does wrong, its connection alone pays
            self._group.faults.error(
                type(error).__name__,
                "the connection of %s:%d is closed: its session failed",
                *self.address,
                error=error,
            )
            self.close("its session failed")

    def _keep(self, rest: memoryview, needed: int) -> None:
        size = len(rest)
        self._needed = needed if needed > size else 0
        if size <= _PREFIX_BYTES_MAX and needed <= SHARED_BYTES // 2:
            self._rest, self._private = bytes(rest), None
            self._hold(size)
            return
        waits = self._congested and self._group.server  # nothing will be read behind it for now
        self._rest, self._private, self._filled = b"", bytearray(size if waits else self._room(size)), size
        self._private[:size] = rest
        self._hold(len(self._private))

    def _room(self, size: int) -> int:
        """How large the buffer of an unfinished frame becomes when `size` bytes of it have come."""
        room = max(2 * size, _PRIVATE_BYTES_MIN)
        return min(self._needed, room) if self._needed > size else room

    def _grow(self, private: bytearray) -> None:
        """Make room behind what came. The connection may end here: above the limit, or without memory."""
        try:
            self._private = bytearray(self._room(self._filled))
        except MemoryError:
            self.abort(f"there is no memory for its frame of {self._needed} bytes")
            return
        self._private[: self._filled] = private
        self._hold(len(self._private))

    def _drop_rest(self) -> None:
        self._rest, self._private, self._filled, self._needed = b"", None, 0, 0
        self._hold(0)

    def _hold(self, size: int) -> None:
        more, self.held = size - self.held, size
        if more:
            self._group.hold(more)


def _address(name: object) -> tuple[str, int]:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`. Raises ConfigError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port[:6]) <= 65535:
        raise ConfigError(f"the address {text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a peer's host (as in `Peer.address`) is this machine itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
