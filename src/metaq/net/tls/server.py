"""A server's side of TLS: plain text and TLS on one port, told apart by the first byte; handshakes, and their limits.

The steps of handshakes run in one thread, one after the other, so that the loop goes on meanwhile; OpenSSL works without
the interpreter's lock there. A connection counts among the listener's from its first moment on. A handshake that takes
too long is ended, and when too many are under way, the one that began first: whoever opens connections and stops in the
handshake makes others wait for nothing.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import ssl
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

from metaq.net.address import address_of
from metaq.net.group import Group
from metaq.net.sweep import PASSES_MAX, Vigil, receive_awake
from metaq.net.tls.layer import Above, TlsLayer, in_words

log = logging.getLogger("metaq.net")

CLIENT_HELLO: Final = 0x16
"""First byte of every TLS connection; no protocol of ours begins with it."""
HANDSHAKE_BYTES_MAX: Final = 128 * 1024
"""Bytes that a client may send before its handshake is over: a chain of certificates is some KiB."""


_NICE: Final = 10
"""Priority of handshakes: whoever is connected comes first."""
_LONE_BYTES: Final = 4096
"""Largest read of a connection that sends one request after the other."""


class Mode(enum.Enum):
    """What a port takes."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ServerTls:
    """The TLS of a process: of all its ports, which share the thread and the limits.

    Args:
        mode: what ports take.
        context: for new connections; `exchange` sets another.
        handshake_seconds: longest handshake.
        handshakes_max: most handshakes under way.
    """

    def __init__(
        self, mode: Mode, context: ssl.SSLContext, handshake_seconds: float = 10.0, handshakes_max: int = 500
    ) -> None:
        assert mode is not Mode.DISABLED, "then there is no layer"
        self.mode, self.context = mode, context
        self.handshakes_max, self._seconds = handshakes_max, handshake_seconds
        self._under_way: dict[ServerLayer, None] = {}
        """In the order in which they began."""
        self._thread: ThreadPoolExecutor | None = None
        self._awake_ns, self._vigil = 0, Vigil()
        self._last_read: ServerLayer | None = None

    def stay_awake(self, micros: int) -> None:
        """Poll busily for so long for the next request, where one connection alone is busy; 0: never."""
        self._awake_ns = micros * 1000

    def read_on(self, layer: ServerLayer, fd: int, room: memoryview) -> int:
        """Poll busily for the next request of a connection that has just been answered, if it is alone and that is worth it.

        Returns how many bytes have come into `room`; 0: the loop reads on.
        """
        alone, self._last_read = self._last_read is layer, layer
        if not alone or not self._awake_ns or receive_awake is None or not self._vigil.worth_it():
            return 0
        count = receive_awake(fd, room, self._awake_ns)
        self._vigil.count(came=count > 0)
        return count

    @property
    def under_way(self) -> int:
        """Handshakes that have begun and not ended."""
        return len(self._under_way)

    def exchange(self, context: ssl.SSLContext) -> None:
        """Make new connections with another certificate; those that are open keep theirs."""
        self.context = context

    def layer(self, stream: Above, group: Group) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        return Doorman(self, stream, group)

    def begin(self, layer: ServerLayer) -> asyncio.TimerHandle:
        """Count a handshake; end the oldest if there are too many."""
        if len(self._under_way) >= self.handshakes_max:
            oldest = next(iter(self._under_way))
            oldest.give_up(f"{self.handshakes_max} handshakes are under way, and this one began first")
        self._under_way[layer] = None
        text = f"its handshake was not over after {self._seconds:g} s"
        return asyncio.get_running_loop().call_later(self._seconds, layer.give_up, text)

    def end(self, layer: ServerLayer) -> None:
        """Count a handshake less."""
        self._under_way.pop(layer, None)

    def gone(self, layer: ServerLayer) -> None:
        """Forget a connection that has ended."""
        if self._last_read is layer:
            self._last_read = None

    def step(self, tls: ssl.SSLObject) -> asyncio.Future[ssl.SSLError | None]:
        """Go on with a handshake in the thread. Returns the outcome: None once it is over, else what stops it."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "metaq-tls", _give_way)
        return asyncio.get_running_loop().run_in_executor(self._thread, _step, tls)

    def close(self) -> None:
        """End the thread. To be called when all connections are closed."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None


def _give_way() -> None:
    """Let the event loop have the processor first, where threads have priorities of their own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _step(tls: ssl.SSLObject) -> ssl.SSLError | None:
    try:
        tls.do_handshake()
    except ssl.SSLError as error:
        return error
    return None


class Doorman(asyncio.BufferedProtocol):
    """A connection until its first byte has come. A `metaq.net.budget.LimitedStream`.

    Until then, and until its handshake is over, it counts in the group by itself; then the stream does.
    """

    def __init__(self, server: ServerTls, stream: Above, group: Group) -> None:
        self._server, self._stream, self.group = server, stream, group
        self.held = self.waiting = self.kept = 0
        self._began = group.tick
        self.address = ("", 0)
        self._transport: asyncio.Transport | None = None
        self._layer: ServerLayer | None = None
        self._first = bytearray(1)
        """The first byte, and no more: what follows it goes where it belongs without being copied."""

    # -- LimitedStream
    def last_seen(self) -> int:
        return self._began

    def send_unsent(self) -> None:
        """Nothing was written."""

    def close(self, why: str = "") -> None:
        self.abort(why)

    def abort(self, why: str) -> None:
        if self._layer is not None:
            self._layer.give_up(why)
            return
        transport, self._transport = self._transport, None
        if transport is not None:
            if why:
                log.info("closing the connection of %s:%d: %s", *self.address, why)
            # Never inside one of the transport's own callbacks: see `metaq.net.stream`.
            asyncio.get_running_loop().call_soon(transport.abort)

    # -- asyncio
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        self.address = address_of(transport.get_extra_info("peername"))
        raw = transport.get_extra_info("socket")
        if refused := self.group.add(self, raw.fileno() if raw is not None else 0):
            self.abort(refused)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the loop's guess is not needed
        return memoryview(self._first)

    def buffer_updated(self, nbytes: int) -> None:  # noqa: ARG002  one byte
        transport = self._transport
        if transport is None:
            return
        begins_tls = self._first[0] == CLIENT_HELLO
        if not begins_tls and self._server.mode is Mode.ENFORCING:
            self.abort("it does not begin with TLS, and tls.server.mode=enforcing wants that")
            return
        self._transport = None
        above: Above | ServerLayer = self._stream
        if begins_tls:
            above = self._layer = ServerLayer(self._server, self._stream, self)
        else:
            self.leave()
        transport.set_protocol(cast("asyncio.BufferedProtocol", above))
        above.connection_made(transport)
        if transport.is_closing():
            return
        room = above.get_buffer(1)
        room[0] = self._first[0]
        above.buffer_updated(1)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  nobody has heard of it
        self.leave()

    def leave(self) -> None:
        """The stream counts for itself from now on, or there is nothing to count."""
        self.group.remove(self)
        self._transport = self._layer = None


class ServerLayer(TlsLayer):
    """A connection with TLS, from its first byte on. Until its handshake is over, its doorman counts for it."""

    def __init__(self, server: ServerTls, stream: Above, doorman: Doorman) -> None:
        super().__init__(stream, server.context)
        self._server, self._doorman = server, doorman
        self._came = 0
        self._answered = False
        self._stepping = self._handshaking = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._handshaking = True
        self._timer = self._server.begin(self)

    def buffer_updated(self, nbytes: int) -> None:
        if not self._handshaking:
            self._read(nbytes)
            return
        if self._below is None:
            return
        self._incoming.write(self._records[:nbytes])
        self._came += nbytes
        if self._came > HANDSHAKE_BYTES_MAX:
            self.give_up(f"its handshake is longer than {HANDSHAKE_BYTES_MAX} bytes")
        elif not self._stepping and self._came > 1:  # the first byte alone brings nothing about
            self._stepping = True
            self._below.pause_reading()  # OpenSSL's buffers are the thread's now
            self._server.step(self.tls).add_done_callback(self._stepped)

    def _read(self, nbytes: int) -> None:
        self._answered = False
        self._drain(self._records[:nbytes])
        for _ in range(PASSES_MAX):
            below = self._below
            # Only of whoever sends one request after the other, and has its answer: else others would wait for it.
            if not self._answered or nbytes > _LONE_BYTES or self._fd < 0 or self.paused or below is None:
                return
            if below.is_closing() or self._said_goodbye or below.get_write_buffer_size():
                return
            nbytes = self._server.read_on(self, self._fd, self._records)
            if not nbytes:
                return
            self._answered = False
            self._drain(self._records[:nbytes])

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._answered = True
        super().write(data)

    def _stepped(self, done: asyncio.Future[ssl.SSLError | None]) -> None:
        self._stepping = False
        below = self._below
        if below is None or done.cancelled() or below.is_closing():
            return
        error = done.result()
        self._flush()
        if isinstance(error, ssl.SSLWantReadError):
            below.resume_reading()
            return
        if error is not None:
            self.give_up(f"its TLS handshake failed: {in_words(error)}", cut=False)
            return
        self._over()
        self._opened(below)
        if not below.is_closing() and not self.paused:
            below.resume_reading()
            self._drain()  # what came with the end of the handshake

    def give_up(self, why: str, *, cut: bool = True) -> None:
        """End a handshake."""
        below = self._below
        if not self._handshaking or below is None:
            return
        self._over()
        log.info("closing the connection of %s:%d: %s", *self._doorman.address, why)
        asyncio.get_running_loop().call_soon(below.abort if cut else below.close)

    def _over(self) -> None:
        self._handshaking = False
        self._server.end(self)
        if self._timer is not None:
            self._timer.cancel()
        self._doorman.leave()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._handshaking:
            self._over()
        self._server.gone(self)
        super().connection_lost(exc)
