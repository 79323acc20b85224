"""Connections to servers, for an event loop. For threads that have none: `metaq.net.blocking`."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from metaq.errors import ConnectionFailed
from metaq.net.address import split_address
from metaq.net.budget import ListenLimits
from metaq.net.group import Group
from metaq.net.peer import Layer, Peer, Session
from metaq.net.stream import Stream

if TYPE_CHECKING:
    from metaq.net.tls.client import ClientLayer, ClientTls  # loaded only where it is on

NO_LIMITS = ListenLimits(
    connections_max=0, unanswered_bytes_max=0, half_read_bytes_max=0, peer_bytes_max=0, idle_seconds=0
)
"""Limits of a client's connection: it trusts the server that it chose, and bounds what it sends itself."""


async def dial(
    address: str,
    make_session: Callable[[Peer], Session],
    timeout: float,
    layer: Layer | None = None,
    tls: ClientTls | None = None,
) -> Peer:
    """Connect to `host:port`. Raises ConnectionFailed: refused, unreachable or too slow; ConfigError: not an address.

    Unlike a server's, a congested client connection goes on reading, since answers are what makes room. So a session
    looks at `Peer.congested` before it writes much, and waits for `Peer.on_writable`.

    Args:
        address: `host:port`.
        make_session: makes the session of the connection.
        timeout: seconds for the connection, with its handshake.
        layer: comes between the connection and its socket.
        tls: makes the connection with TLS, which is up when this returns; the session is made then.
    """
    host, port = split_address(address)
    # A group of its own: a client's connections share no limits.
    stream = Stream(Group(NO_LIMITS, server=False), make_session)
    try:
        async with asyncio.timeout(timeout):
            if tls is not None:
                await _connect_with_tls(tls, stream, host, port)
            else:
                await _connect(lambda: layer(stream) if layer is not None else stream, host, port)
    except TimeoutError:
        raise ConnectionFailed(f"no connection to {address} within {timeout:g} s") from None
    except OSError as error:
        if tls is not None and getattr(error, "library", None) is not None:  # OpenSSL's
            from metaq.net.tls.client import refused

            raise ConnectionFailed(refused(address, error)) from error
        raise ConnectionFailed(f"cannot connect to {address}: {error.strerror or error}") from error
    return stream


async def _connect_with_tls(tls: ClientTls, stream: Stream, host: str, port: int) -> None:
    """Raises OSError, of which OpenSSL's errors are a kind."""
    layers: list[ClientLayer] = []

    def make() -> asyncio.BaseProtocol:
        layers.append(tls.layer(stream, host))
        return layers[-1]

    try:
        await _connect(make, host, port)
        await layers[-1].opened
    except BaseException:
        for layer in layers:
            layer.give_up()
        raise


async def _connect(make_protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> None:
    """Connect to the first address of a host that takes it. Raises OSError."""
    hosts = [host] if _is_numeric(host) else await look_up(host, port)
    for number, one in enumerate(hosts, 1):
        try:
            await asyncio.get_running_loop().create_connection(make_protocol, one, port)
        except OSError:
            if number == len(hosts):
                raise
        else:
            return


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def look_up(host: str, port: int) -> list[str]:
    """Return a host's addresses. Raises OSError: it has none.

    In a thread of its own. uvloop would do it in libuv's thread pool, whose threads libuv joins when the process exits: a
    forked child, which does not have them, ends by SIGSEGV there. And a thread pool of Python's would hold up the exit.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def done(outcome: list[str] | OSError) -> None:
        if found.done():
            return
        if isinstance(outcome, OSError):
            found.set_exception(outcome)
        else:
            found.set_result(outcome)

    def look() -> None:
        outcome: list[str] | OSError
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            outcome = list(dict.fromkeys(str(info[4][0]) for info in infos))
        except OSError as error:
            outcome = error
        except UnicodeError as error:  # a label that is too long
            outcome = OSError(f"{host!r:.300} is no name of a host: {error}")
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(done, outcome)

    threading.Thread(target=look, name="metaq-look-up", daemon=True).start()
    return await found
