"""What a server of ours says of itself to everybody, also where accounts are needed for all else."""

from __future__ import annotations

from msgspec import Struct


class ServerIdentity(Struct, frozen=True, rename="camel"):
    """Answer to IDENTIFY (30021)."""

    instance: str
    """Drawn at the start: who hears the same at two addresses has reached the same process."""
    now_ms: int
    """The server's time."""
    caller: str
    """Address (`host:port`) from which the request came, as the server sees it."""
