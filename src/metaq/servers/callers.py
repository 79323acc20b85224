"""Who is at the other end of a connection."""

from __future__ import annotations

from metaq.model.access import Caller
from metaq.net.address import is_loopback
from metaq.net.peer import Peer


def caller_of(peer: Peer) -> Caller:
    """The caller of what comes over a connection and names nobody."""
    address = peer.address[0]
    return Caller(address, is_loopback(address), encrypted=not peer.plain)
