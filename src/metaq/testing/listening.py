"""Ports on which networks accept connections: for one network, or for several that are told apart by who connects."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from metaq.testing.ports import HeldPort

log = logging.getLogger("metaq.testing")

Take: TypeAlias = Callable[[socket.socket], Awaitable[None]]
"""Takes over a connection that was accepted."""

_BACKLOG: Final = 128
_PORT_TRIES_MAX: Final = 5
_PAUSE_SECONDS: Final = 0.02
NO_GOODBYE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of a connection that is to break (RST) and not to end (FIN)."""


class Listener:
    """Accepts connections on a port, or refuses them as a machine on which nothing listens. For one event loop."""

    def __init__(self, host: str, port: int, take: Take) -> None:
        """Take the port; `begin` must follow. Args: port: 0: a free one. Raises OSError: the port is taken."""
        self._socket = _listen(host, port)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._take = take
        self._listening = asyncio.Event()
        self._accepting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._listening.set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept_all())

    def set_deaf(self, *, on: bool) -> None:
        """Refuse connections from now on, or accept them again."""
        if not on:
            if not self._listening.is_set():
                self._socket.listen(_BACKLOG)
                self._listening.set()
        elif self._listening.is_set():
            # Linux: the port stays ours, as a `HeldPort`, and connections are refused. Elsewhere they are accepted and ended
            # at once.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
                self._listening.clear()

    async def end(self) -> None:
        """Accept nothing more, and give the port back."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        self._socket.close()

    async def _accept_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._listening.wait()
            try:
                accepted, _ = await loop.sock_accept(self._socket)
            except OSError:
                if self._listening.is_set():  # no descriptor is free: one may be a moment later
                    await asyncio.sleep(_PAUSE_SECONDS)
                continue
            try:
                await self._take(accepted)
            except Exception:
                # Later connections are accepted all the same: a port that is silent looks like a fault of the server.
                log.exception("a connection to port %d is refused", self.port)
                refuse(accepted)
            # Neither of the two waits need wait: while peers connect faster than they are told apart, nothing else would have a turn.
            await asyncio.sleep(0)


def refuse(accepted: socket.socket) -> None:
    """End a connection that the kernel has accepted already, so that it looks refused: only a reset does."""
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_GOODBYE)
    accepted.close()


def process_at(connection: socket.socket, among: Mapping[int, str]) -> str:
    """Return which process of this machine has the other end of a TCP connection (IPv4). Linux only.

    Args: among: process id → what is returned. "": it is none of them.
    """
    inode = _inode(connection.getpeername()[1], connection.getsockname()[1])
    if inode:
        for pid, name in among.items():
            if f"socket:[{inode}]" in _descriptors(pid):
                return name
    return ""


def _inode(port: int, other_port: int) -> str:
    """The inode of the socket from one local port to another."""
    table = Path("/proc/net/tcp").read_text(encoding="ascii")
    # The whole table at once: a busy machine has thousands of lines, of connections that have ended too.
    found = re.search(rf":{port:04X} [0-9A-F]+:{other_port:04X} (?:\S+ +){{6}}(\d+)", table)
    return found[1] if found else ""


def _descriptors(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):  # it has ended
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(entry.readlink()))
    return found


def _listen(host: str, port: int) -> socket.socket:
    """Listen there. A port 0 is chosen here: one of the kernel's choice would be lost while connections are refused."""
    for _ in range(_PORT_TRIES_MAX - 1):
        try:
            return _listen_once(host, port)
        except OSError:
            if port:
                raise
    return _listen_once(host, port)


def _listen_once(host: str, port: int) -> socket.socket:
    if port:
        return socket.create_server((host, port), backlog=_BACKLOG)
    with HeldPort(host=host) as held:
        return socket.create_server((host, held.port), backlog=_BACKLOG)
