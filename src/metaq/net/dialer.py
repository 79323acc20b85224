"""Connections to servers, for an event loop. For threads that have none: `metaq.net.blocking`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from metaq.errors import ConnectionFailed
from metaq.net.address import split_address
from metaq.net.budget import ListenLimits
from metaq.net.group import Group
from metaq.net.peer import Layer, Peer, Session
from metaq.net.stream import Stream

NO_LIMITS = ListenLimits(
    connections_max=0, unanswered_bytes_max=0, half_read_bytes_max=0, peer_bytes_max=0, idle_seconds=0
)
"""Limits of a client's connection: it trusts the server that it chose, and bounds what it sends itself."""


async def dial(
    address: str, make_session: Callable[[Peer], Session], timeout: float, layer: Layer | None = None
) -> Peer:
    """Connect to `host:port`. Raises ConnectionFailed: refused, unreachable or too slow; ConfigError: not an address.

    Unlike a server's, a congested client connection goes on reading, since answers are what makes room. So a session
    looks at `Peer.congested` before it writes much, and waits for `Peer.on_writable`.

    Args:
        address: `host:port`.
        make_session: makes the session of the connection.
        timeout: seconds for the connection.
        layer: puts TLS or the like between the connection and its socket.
    """
    host, port = split_address(address)
    # A group of its own: a client's connections share no limits.
    stream = Stream(Group(NO_LIMITS, server=False), make_session)
    try:
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().create_connection(
                lambda: layer(stream) if layer is not None else stream, host, port
            )
    except TimeoutError:
        raise ConnectionFailed(f"no connection to {address} within {timeout:g} s") from None
    except OSError as error:
        raise ConnectionFailed(f"cannot connect to {address}: {error.strerror or error}") from error
    return stream
