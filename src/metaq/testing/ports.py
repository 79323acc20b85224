"""Ports for servers that a test starts."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from metaq.clock import SYSTEM

PORTS: Final = range(10_000, 32_000)
"""Below those that systems give to outgoing connections: one of these could take the port before its server does."""
TRIES_MAX: Final = 1000
HOLDS: Final = sys.platform == "linux"
"""Whether a server can listen on a port that a socket of ours is bound to, and it alone."""


def free_port(*distances: int, host: str = "127.0.0.1") -> int:
    """A TCP port from 10000 to 31999 on `host` that nobody has now, nor those at the given distances from it.

    Nobody listens there, and no `HeldPort` keeps it for a server that is down. Somebody else may take it before it is used.
    Prefer port 0 where the server can tell what it got and need not come back to it after a restart.
    Raises OSError: a thousand ports were tried and none was free.
    """
    return _bind(distances, host, keep=False)[0]


class HeldPort:
    """A port as of `free_port`, and those at the distances, kept from other tests until `close`. A context manager.

    Only its server can listen there, as often as it is started again: `free_port` and `HeldPort` of all processes pass over the
    port, and while nobody listens connections are refused. The server must set SO_REUSEADDR before it binds, as asyncio,
    uvloop, `socket.create_server` and Java do. Who chooses the very same port by itself and sets that option, too, is not
    kept away.

    Linux only: elsewhere the port is chosen, and not kept. Raises OSError: as `free_port`.
    """

    def __init__(self, *distances: int, host: str = "127.0.0.1") -> None:
        self.port, self._bound = _bind(distances, host, keep=HOLDS)

    def close(self) -> None:
        """Give the ports back; a server that listens there goes on. A second call does nothing."""
        self._bound.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bind(distances: Sequence[int], host: str, *, keep: bool) -> tuple[int, contextlib.ExitStack]:
    """Bind to a free port and to those at the distances, all at the same time. Raises OSError.

    Args: keep: leave the sockets open, so that only a server that sets SO_REUSEADDR can have the ports.
    """
    failure = OSError(f"no free port on {host}")
    for _ in range(TRIES_MAX):
        port = PORTS[SYSTEM.random_below(len(PORTS))]
        try:
            with contextlib.ExitStack() as sockets:
                for distance in (0, *distances):
                    # SO_REUSEADDR comes behind the bind: with it, a port that is held would look free.
                    probe = sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                    probe.bind((host, port + distance))
                    if keep:
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                return port, sockets.pop_all() if keep else sockets
        except OSError as error:
            failure = error
    raise failure
