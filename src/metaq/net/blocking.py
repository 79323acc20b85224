"""The calling side for threads that have no event loop: a stream that blocks.

Apart from `metaq.net.dialer`, as Spark starts short-lived processes by the dozen, and importing asyncio takes each of them longer
than anything else.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Self

from metaq.errors import ConnectionFailed, RequestTimeout
from metaq.net.address import split_address


class BlockingStream:
    """A plain connection for a thread that may wait, such as a Spark reader. Made by `dial_blocking`."""

    def __init__(self, raw: socket.socket, address: str) -> None:
        self._socket = raw
        self.address = address

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it. Raises RequestTimeout, ConnectionFailed: how much went out is unknown."""
        with self._errors("send to"):
            self._socket.sendall(data)

    def receive_into(self, buffer: bytearray | memoryview) -> int:
        """Receive at least one byte, at most the buffer's. Raises RequestTimeout, ConnectionFailed (also at its end)."""
        with self._errors("receive from"):
            count = self._socket.recv_into(buffer)
        if not count:
            raise ConnectionFailed(f"{self.address} closed the connection")
        return count

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


def dial_blocking(address: str, timeout: float) -> BlockingStream:
    """Connect to `host:port`; `timeout` seconds hold for the connection and for each later call.

    Raises ConnectionFailed, ConfigError.
    """
    host, port = split_address(address)
    try:
        raw = socket.create_connection((host, port), timeout)
    except TimeoutError:
        raise ConnectionFailed(f"no connection to {address} within {timeout:g} s") from None
    except OSError as error:
        raise ConnectionFailed(f"cannot connect to {address}: {error.strerror or error}") from error
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return BlockingStream(raw, address)
