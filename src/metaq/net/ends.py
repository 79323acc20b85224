"""How a server's connections end: cleanly when we end them, and with a reset when our process is killed.

The kernel closes the connections of a process that was killed. RocketMQ's Java client does not notice a connection that ends so: what
it has asked goes on waiting, a send for its time-out, a pull of a consumer for 30 s. A reset it notices, and fails all of it at once.
So connections are reset when they are closed (SO_LINGER with 0 s), until we end one ourselves, or its peer does: then what we have
written still goes out.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final

_RESET: Final = struct.pack("ii", 1, 0)
_GRACEFUL: Final = struct.pack("ii", 0, 0)


def set_up(raw: socket.socket, *, server: bool) -> None:
    """Set the options of a new connection's socket. Args: server: whether it is a server's."""
    # The peer may have gone again.
    with contextlib.suppress(OSError):
        # asyncio does not set it on all accepted sockets, and Nagle's algorithm costs 40 ms an answer.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if server:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def end_cleanly(transport: asyncio.BaseTransport) -> None:
    """Let what was written go out when this connection of a server is closed. To be called before it is."""
    raw = transport.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _GRACEFUL)
