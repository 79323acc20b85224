"""The direct link: a connection on which a thread writes a request and waits for the answer itself, without an event
loop.

The socket blocks in the kernel, by SO_RCVTIMEO and SO_SNDTIMEO: Python's own time-outs poll before each call, which
doubles the system calls. A wait ends after `LOOK_SECONDS` at the latest; then the clock is read, and the handler runs
of a signal that came just before the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from typing import TYPE_CHECKING, Protocol

from metaq.errors import ConnectionFailed, RequestTimeout
from metaq.net.address import split_address

if TYPE_CHECKING:
    from metaq.net.tls.client import ClientTls  # loaded only where it is on
    from metaq.net.tls.direct import TlsSocket

LOOK_SECONDS = 1.0
"""Longest wait within one system call."""
_LEAST_SECONDS = 0.001
"""Shortest time-out given to the kernel, for which 0 means none."""
_ROOM_BYTES = 4096
POSSIBLE = sys.platform != "win32"
"""Windows leaves a socket in an undefined state when such a wait ends."""


class Monotonic(Protocol):
    """Clock of the deadlines."""

    def monotonic(self) -> float: ...


class DirectStream:
    """A connection made by `dial_direct`, plain or with TLS.

    For one thread at a time; only `cut` may be called by any.
    """

    __slots__ = ("_clock", "_receive", "_send", "_socket", "address")

    def __init__(self, raw: socket.socket | TlsSocket, address: str, clock: Monotonic) -> None:
        """
        Args:
            raw: a connected, blocking socket.
            address: the server's, for errors.
            clock: of the deadlines.
        """
        self._socket, self.address, self._clock = raw, address, clock
        self._send, self._receive = raw.send, raw.recv  # spares two look-ups in each request
        self._look_after(LOOK_SECONDS)

    def exchange(self, frame: bytes, seconds: float, deadline: float) -> bytes:
        """Write a request and return the first bytes of its answer: `begin` and `end` in one call."""
        return self.end(frame, self.begin(frame, seconds), seconds, deadline)

    def begin(self, frame: bytes, seconds: float) -> int:
        """Write what the kernel takes of `frame` at once, mostly all, and return how many bytes. Raises
        ConnectionFailed.

        `seconds`: the request's time-out, until `end` has its answer.
        """
        # Only short time-outs are set in the kernel: setting them costs two system calls.
        if seconds < LOOK_SECONDS:
            self._look_after(seconds)
        try:
            return self._send(frame)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken(error) from error

    def end(self, frame: bytes, sent: int, seconds: float, deadline: float) -> bytes:
        """Write the rest and return the first bytes that come. Do not use the stream again once this or `begin` has
        raised.

        `deadline`: the end of `seconds`, as a time of the clock, which is read only after a wait of `LOOK_SECONDS`.
        Raises RequestTimeout: nothing came in time; ConnectionFailed, also when the peer has closed. How much of the
        frame went out is unknown.
        """
        if sent == len(frame):
            try:
                data = self._receive(_ROOM_BYTES)
            # The socket blocks: EAGAIN means that SO_RCVTIMEO is over.
            except BlockingIOError:
                pass
            except OSError as error:
                raise self._broken(error) from error
            else:
                if not data:
                    raise self._closed()
                if seconds < LOOK_SECONDS:
                    self._look_after(LOOK_SECONDS)
                return data
        return self._patiently(memoryview(frame)[sent:], deadline)

    def receive(self, deadline: float) -> bytes:
        """Return the next bytes. Raises as `exchange`."""
        return self._patiently(memoryview(b""), deadline)

    def _patiently(self, rest: memoryview, deadline: float) -> bytes:
        while True:
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise RequestTimeout(f"{self.address} did not answer in time")
            self._look_after(min(left, LOOK_SECONDS))
            try:
                if rest:
                    rest = rest[self._send(rest) :]
                    continue
                data = self._receive(_ROOM_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._broken(error) from error
            if not data:
                raise self._closed()
            # The next `exchange` relies on it: it sets nothing for long time-outs.
            self._look_after(LOOK_SECONDS)
            return data

    def write(self, frame: bytes, deadline: float) -> None:
        """Write all of `frame`. Raises as `exchange`."""
        rest = memoryview(frame)
        while rest:
            if deadline <= self._clock.monotonic():
                raise RequestTimeout(f"{self.address} did not read in time")
            try:
                rest = rest[self._send(rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._broken(error) from error

    @property
    def stale(self) -> bool:
        """Whether the peer has closed, or sent something unasked: then the stream is unusable."""
        try:
            # The socket is looked at without waiting: neither an end nor unasked bytes may be met by the next request.
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def cut(self) -> None:
        """End the connection, and with it a wait of the thread that uses it; that thread closes it. For any thread."""
        with contextlib.suppress(OSError):
            # `shutdown`, since `close` would not wake the other thread, and the descriptor's number could be another
            # file's by then.
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _look_after(self, seconds: float) -> None:
        whole = max(seconds, _LEAST_SECONDS)
        value = struct.pack("@ll", int(whole), int(whole % 1 * 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, value)

    def _closed(self) -> ConnectionFailed:
        return ConnectionFailed(f"the connection to {self.address} broke: closed by the peer")

    def _broken(self, error: OSError) -> ConnectionFailed:
        return ConnectionFailed(f"the connection to {self.address} broke: {error.strerror or error}")


async def dial_direct(
    peer: tuple[str, int], address: str, timeout: float, clock: Monotonic, tls: ClientTls | None = None
) -> DirectStream:
    """Connect to a numeric address, without blocking the loop. Raises ConnectionFailed: refused, unreachable or too
    slow.

    Args:
        peer: numeric host, and port: a look-up of a name would block.
        address: the server's address in errors, and for TLS its name.
        timeout: seconds for the connection.
        clock: of the deadlines.
        tls: makes the connection with TLS.
    """
    raw = socket.socket(socket.AF_INET6 if ":" in peer[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        raw.setblocking(False)
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().sock_connect(raw, peer)
            secret = await _shaken(raw, tls, address) if tls is not None else None
        # Connected on the loop, used by a thread from here on.
        raw.setblocking(True)
        # Nagle's algorithm would hold a small request back until the last answer is acknowledged.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return DirectStream(secret or raw, address, clock)
    except TimeoutError:
        raw.close()
        raise ConnectionFailed(f"no connection to {address} within {timeout:g} s") from None
    except OSError as error:
        raw.close()
        if tls is not None and getattr(error, "library", None) is not None:  # OpenSSL's
            from metaq.net.tls.client import refused

            raise ConnectionFailed(refused(address, error)) from error
        raise ConnectionFailed(f"cannot connect to {address}: {error.strerror or error}") from error
    except BaseException:
        raw.close()
        raise


async def _shaken(raw: socket.socket, tls: ClientTls, address: str) -> TlsSocket:
    """Make the handshake of TLS. Raises OSError."""
    from metaq.net.tls.direct import shaken

    return await shaken(raw, tls.context, split_address(address)[0])
