"""The calling side for threads that have no event loop: a stream that blocks.

Apart from `metaq.net.dialer`, as Spark starts short-lived processes by the dozen, and importing asyncio takes each of them longer
than anything else.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Self, TypeAlias

from metaq.errors import ConnectionFailed, RequestTimeout
from metaq.net.address import split_address

_SMALL_BYTES = 64 * 1024
_AT_ONCE_BYTES_MAX = 256 * 1024
"""What comes of a large answer is taken when so much of it is there: to be woken for each 64 KiB costs more than they do."""

Wrap: TypeAlias = Callable[[socket.socket], socket.socket]
"""Makes of a connected socket one that changes the bytes both ways, as `ssl.SSLContext.wrap_socket` does."""


class BlockingStream:
    """A connection for a thread that may wait, such as a Spark reader. Made by `dial_blocking`.

    timeout: seconds that a call may wait for the other side. There is always one: a socket without waits in the kernel's
    recv, which takes what is there, then sleeps until as much as was waited for has come *again*, and so for ever.
    plain: whether the kernel holds the very bytes that `raw` hands out. Under TLS it does not: a record may lie in the kernel
    in part and in OpenSSL in part, and the kernel cannot say when so much of its content is there.
    """

    def __init__(self, raw: socket.socket, address: str, timeout: float, *, plain: bool = True) -> None:
        self._socket, self._plain = raw, plain
        raw.settimeout(timeout)
        self._low_water = 1
        self.address = address

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it. Raises RequestTimeout, ConnectionFailed: how much went out is unknown."""
        with self._errors("send to"):
            self._socket.sendall(data)

    def receive_into(self, buffer: bytearray | memoryview, awaited: int = 1) -> int:
        """Receive at least one byte, at most the buffer's; `awaited` bytes are sure to come, and may be waited for.

        Raises RequestTimeout, ConnectionFailed (also at its end).
        """
        with self._errors("receive from"):
            waits = self._plain and awaited > _SMALL_BYTES
            self._wake_at(min(awaited, len(buffer), _AT_ONCE_BYTES_MAX) if waits else 1)
            try:
                count = self._socket.recv_into(buffer)
            except TimeoutError:
                if self._low_water == 1:
                    raise
                count = self._receive_some(buffer)
        if not count:
            raise ConnectionFailed(f"{self.address} closed the connection")
        return count

    def _wake_at(self, size: int) -> None:
        """Wait until so many bytes are there, or the other side has closed."""
        if size != self._low_water:
            self._low_water = size
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _receive_some(self, buffer: bytearray | memoryview) -> int:
        """What has come, on a line too slow for what was waited for. Raises TimeoutError: nothing."""
        timeout = self._socket.gettimeout()
        self._wake_at(1)
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
    """Connect to `host:port`; `timeout` seconds hold for the connection and for each later call.

    Args: wrap: what to put between the stream and its socket. Raises ConnectionFailed, ConfigError.
    """
    host, port = split_address(address)
    try:
        raw = socket.create_connection((host, port), timeout)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if wrap is not None:
            raw = wrap(raw)
    except TimeoutError:
        raise ConnectionFailed(f"no connection to {address} within {timeout:g} s") from None
    except OSError as error:
        raise ConnectionFailed(f"cannot connect to {address}: {error.strerror or error}") from error
    return BlockingStream(raw, address, timeout, plain=wrap is None)
