"""Ports for servers that a test starts."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from metaq.clock import SYSTEM

PORTS: Final = range(10_000, 32_000)
"""Below those that systems give to outgoing connections: one of these could take the port before its server does."""
TRIES_MAX: Final = 1000


def free_port(*distances: int, host: str = "127.0.0.1") -> int:
    """A TCP port of `PORTS` on `host` that nobody listens on now, nor on those at the given distances from it.

    Somebody else may take it before it is used. Prefer port 0 where the server can tell what it got and need not come
    back to it after a restart. Raises OSError: a thousand ports were tried and none was free.
    """
    failure = OSError(f"no free port on {host}")
    for _ in range(TRIES_MAX):
        port = PORTS[SYSTEM.random_below(len(PORTS))]
        try:
            # All probes are held together: the ports must be free at the same time.
            with contextlib.ExitStack() as probes:
                for distance in (0, *distances):
                    probes.enter_context(socket.create_server((host, port + distance)))
        except OSError as error:
            failure = error
        else:
            return port
    raise failure
