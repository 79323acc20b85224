"""A peer as the asyncio transport that uvicorn's protocol writes to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from metaq.net.peer import Peer

_TLS: Final = object()
"""Stands for the TLS context, of which uvicorn only asks whether there is one."""


class PeerTransport(asyncio.Transport):
    """Passes what uvicorn writes to a peer, so that the listener's limits hold for HTTP too.

    `stopped`: nothing is read, because uvicorn has paused it or the connection holds it.

    Args:
        close: ends the connection, now or when the rest of a request has come.
        congested: called when a write finds that the peer reads too little.
    """

    def __init__(self, peer: Peer, close: Callable[[], None], congested: Callable[[], None]) -> None:
        super().__init__()
        self._peer, self._close, self._congested = peer, close, congested
        self.stopped = self._paused = self._held = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return what uvicorn asks for: the addresses, and whether there is TLS."""
        match name:
            case "peername":
                return self._peer.address
            case "sockname":
                return self._peer.local
            case "sslcontext":
                return default if self._peer.plain else _TLS
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data:
            self._peer.write(data)
            if self._peer.congested:
                self._congested()

    def is_closing(self) -> bool:
        return self._peer.closed

    def close(self) -> None:
        self._close()

    def pause_reading(self) -> None:
        self._paused = True
        self._update()

    def resume_reading(self) -> None:
        self._paused = False
        self._update()

    def hold(self, *, held: bool) -> None:
        """Read nothing while this is set, whatever uvicorn wants."""
        self._held = held
        self._update()

    def _update(self) -> None:
        stopped = self._paused or self._held
        if stopped is not self.stopped:
            self.stopped = stopped
            if stopped:
                self._peer.pause()
            else:
                self._peer.resume()
