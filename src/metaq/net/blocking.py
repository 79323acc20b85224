"""A blocking stream, for threads that have no event loop.

Imports no asyncio: Spark starts short-lived processes by the dozen, and importing it takes each of them longer than
anything else.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Self, TypeAlias

from metaq.errors import ConnectionFailed, RequestTimeout
from metaq.net.address import split_address

_SMALL_BYTES = 64 * 1024
"""Largest wait for which the low-water mark stays at 1: setting it costs a system call."""
_AT_ONCE_BYTES_MAX = 256 * 1024
"""Low-water mark of the receive buffer for a large answer: a wake-up for each 64 KiB costs more than the bytes do."""

Wrap: TypeAlias = Callable[[socket.socket], socket.socket]
"""Wraps a connected socket in one that changes the bytes both ways, as `ssl.SSLContext.wrap_socket` does."""


class BlockingStream:
    """A connection for a thread that may wait, such as a Spark reader. Made by `dial_blocking`.

    Args:
        raw: a connected socket.
        address: the server's, for errors.
        timeout: longest wait of a call, seconds. Never None: without one the thread waits within the kernel's recv,
            which takes what is there and then sleeps until as much as the low-water mark has come *again*, perhaps for
            ever.
        plain: whether the kernel holds the bytes that `raw` hands out, so that a low-water mark works. Not under TLS: a
            record may lie in the kernel in part and in OpenSSL in part.
    """

    def __init__(self, raw: socket.socket, address: str, timeout: float, *, plain: bool = True) -> None:
        self._socket, self._plain = raw, plain
        raw.settimeout(timeout)
        self._low_water = 1
        self.address = address

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`. Raises RequestTimeout, ConnectionFailed: how much went out is unknown."""
        with self._errors("send to"):
            self._socket.sendall(data)

    def receive_into(self, buffer: bytearray | memoryview, awaited: int = 1) -> int:
        """Receive at least one byte, at most as many as the buffer has. Return how many.

        `awaited`: bytes that are sure to come, for all of which the call may wait.
        Raises RequestTimeout, ConnectionFailed (also when the peer has closed).
        """
        with self._errors("receive from"):
            waits = self._plain and awaited > _SMALL_BYTES
            # The mark never exceeds the buffer: the kernel would wait for bytes that this call cannot take.
            self._wake_at(min(awaited, len(buffer), _AT_ONCE_BYTES_MAX) if waits else 1)
            try:
                count = self._socket.recv_into(buffer)
            except TimeoutError:
                # With a mark the time-out only says that not so much has come: what has come is taken.
                if self._low_water == 1:
                    raise
                count = self._receive_some(buffer)
        if not count:
            raise ConnectionFailed(f"{self.address} closed the connection")
        return count

    def _wake_at(self, size: int) -> None:
        """Have the kernel wake a reader only once `size` bytes have come, or the peer has closed."""
        if size != self._low_water:
            self._low_water = size
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _receive_some(self, buffer: bytearray | memoryview) -> int:
        """Receive what has come when the low-water mark was not reached in time. Raises TimeoutError: nothing has."""
        timeout = self._socket.gettimeout()
        self._wake_at(1)
        # This read does not wait: the time-out is over already.
        self._socket.settimeout(0)
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            raise TimeoutError from None
        finally:
            self._socket.settimeout(timeout)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise RequestTimeout(f"{self.address} did nothing for {self._socket.gettimeout():g} s") from None
        except OSError as error:
            raise ConnectionFailed(f"cannot {doing} {self.address}: {error.strerror or error}") from error


def dial_blocking(address: str, timeout: float, wrap: Wrap | None = None) -> BlockingStream:
    """Connect to `host:port`. Raises ConnectionFailed; ConfigError: not an address.

    Args:
        address: `host:port`.
        timeout: seconds for the connection, and for each later call.
        wrap: puts TLS or the like between the stream and its socket.
    """
    host, port = split_address(address)
    try:
        raw = socket.create_connection((host, port), timeout)
        # Nagle's algorithm would hold a small request back until the last answer is acknowledged.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if wrap is not None:
            raw = wrap(raw)
    except TimeoutError:
        raise ConnectionFailed(f"no connection to {address} within {timeout:g} s") from None
    except OSError as error:
        raise ConnectionFailed(f"cannot connect to {address}: {error.strerror or error}") from error
    # TLS keeps part of the bytes in OpenSSL, where the kernel's low-water mark does not count them.
    return BlockingStream(raw, address, timeout, plain=wrap is None)
