"""What every server is to whoever runs it: one protocol's way to the services."""

from __future__ import annotations

from typing import Protocol

from metaq.net.peer import Peer, Session


class Server(Protocol):
    """Makes sessions for connections, and lives as long as its listener."""

    def session(self, peer: Peer) -> Session:
        """A new connection."""
        ...

    def tick(self) -> None:
        """Let time pass: end what has waited too long. Called ten times a second."""
        ...

    def close(self) -> None:
        """Let go of what it holds. All its connections are closed by then."""
        ...
