"""Listening ports: accept connections and give each a session."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from metaq.errors import ConfigError
from metaq.net.address import address_of, join_address
from metaq.net.budget import Budget, ListenLimits
from metaq.net.group import Group
from metaq.net.peer import Layer, Peer, Session
from metaq.net.stream import Stream

if TYPE_CHECKING:
    from metaq.net.tls.server import ServerTls  # loaded only where it is on

log = logging.getLogger("metaq.net")

_BOTH_FAMILIES = "::"
ACCEPTED_PER_TURN: Final = 16
"""Connections of one port that are accepted in a turn of the loop, 50 to 100 µs each: those that are open are served in between,
however many wait."""
ACCEPT_AGAIN_SECONDS: Final = 1.0
"""Pause after the process has run out of descriptors or memory: trying at once would be a loop."""
FREE_PORTS_MAX = 100
"""Free ports that are tried, until one is found whose second port is free too."""


MakeSession: TypeAlias = Callable[[Peer], Session]


class Listener:
    """A listening port, perhaps with a second one, and their connections. Made by `bind` or `listen`.

    Args:
        limits: hold over the connections of both ports together.
        layer: comes between each connection and its socket.
        budget: of all listeners of the process; None: this one has its own.
        tls: of the process; None: only plain text is taken.
    """

    def __init__(
        self,
        limits: ListenLimits,
        layer: Layer | None = None,
        budget: Budget | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._group, self._layer, self._tls = Group(limits, server=True, budget=budget), layer, tls
        self._servers: list[asyncio.Server] = []
        self._make_session: MakeSession | None = None
        self._ports: list[socket.socket] = []
        """The listening sockets, while connections are accepted."""
        self._arriving = set[asyncio.Task[object]]()
        self._may_arrive: Callable[[str], str] = anybody
        self.host, self.port = "", 0

    async def bind(self, host: str, port: int, second: SecondPort | None) -> None:
        """Take the ports. Raises ConfigError."""
        # Of a free port, the second one beside it may be taken: then another free port is tried.
        tries = FREE_PORTS_MAX if second and port == 0 else 1
        while True:
            # Bound but not listening: whoever connects before `start` is refused, instead of waiting for a broker that
            # may never start.
            server = await self._serve(host, port)
            self.host, self.port = server.sockets[0].getsockname()[:2]
            self._servers = [server]
            if second is None:
                return
            tries -= 1
            try:
                self._servers.append(await self._serve(host, self.port + second.distance, f", {second.name}"))
            except ConfigError:
                server.close()
                if not tries:
                    raise
            else:
                return

    async def _serve(self, host: str, port: int, what: str = "") -> asyncio.Server:
        if not 0 <= port <= 65535:
            raise ConfigError(f"cannot listen on port {port}{what}: there is no such port; choose another")
        loop = asyncio.get_running_loop()
        try:
            if host == _BOTH_FAMILIES:
                raw = _both_families(port)
                return await loop.create_server(self._stream, sock=raw, start_serving=False)
            return await loop.create_server(self._stream, host, port, start_serving=False)
        except OSError as error:
            raise _taken(f"{join_address(host, port)}{what}", error) from error

    def _stream(self) -> asyncio.BaseProtocol:
        assert self._make_session is not None, "nobody is accepted before the start"
        stream = Stream(self._group, self._make_session)
        if self._tls is not None:
            return self._tls.layer(stream, self._group)
        return self._layer(stream) if self._layer is not None else stream

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._group.streams)

    @property
    def refused(self) -> int:
        """Connections that were refused since the start."""
        return self._group.refused

    def limit(self, limits: ListenLimits) -> None:
        """Set the limits. Connections above a lower limit stay."""
        self._group.limits = self._group.budget.limits = limits

    def admit_by(self, may_arrive: Callable[[str], str], may_connect: Callable[[str], str]) -> None:
        """Ask about each new connection, by its address. Both return "", or what refuses it.

        Args: may_arrive: before anything is made for it. may_connect: when it is to be one of those that are open.
        """
        self._may_arrive, self._group.admit = may_arrive, may_connect

    async def start(self, make_session: MakeSession) -> None:
        """Accept connections. Raises ConfigError: another process took the port meanwhile, since `bind` does not listen
        yet."""
        self._make_session = make_session
        self._group.start()
        try:
            for server in self._servers:
                for bound in server.sockets:
                    self._listen(bound.fileno())
        except OSError as error:
            await self.close()
            raise _taken(self.address, error) from error

    def _listen(self, descriptor: int) -> None:
        """Accept at a bound socket. Raises OSError."""
        # Not by the loop's own server: that accepts all who wait in one turn, and those who are open wait meanwhile.
        port = socket.socket(fileno=socket.dup(descriptor))
        self._ports.append(port)
        port.setblocking(False)
        limits = self._group.limits
        for kind, size in ((socket.SO_SNDBUF, limits.send_buffer), (socket.SO_RCVBUF, limits.receive_buffer)):
            if size:  # before it listens: the window of a connection is agreed on with its first packets
                port.setsockopt(socket.SOL_SOCKET, kind, size)
        port.listen(limits.backlog)
        asyncio.get_running_loop().add_reader(port, self._accept, port)

    def _accept(self, port: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTED_PER_TURN):
            try:
                raw, address = port.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # The kernel would report the socket as ready in each turn.
                loop.remove_reader(port)
                loop.call_later(ACCEPT_AGAIN_SECONDS, self._accept_again, port)
                self._group.faults.warning("accept", "no connection can be accepted at %s: %s", self.address, error)
                return
            host, _ = address_of(address)
            if refused := self._may_arrive(host):
                raw.close()
                self._group.refused += 1
                self._group.faults.warning(("arrive", host), "a connection is refused: %s", refused)
                continue
            raw.setblocking(False)
            task: asyncio.Task[object] = loop.create_task(loop.connect_accepted_socket(self._stream, raw))
            self._arriving.add(task)
            task.add_done_callback(self._arrived)

    def _accept_again(self, port: socket.socket) -> None:
        if port in self._ports:
            asyncio.get_running_loop().add_reader(port, self._accept, port)

    def _arrived(self, task: asyncio.Task[object]) -> None:
        self._arriving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a connection ended before it was made: %s", error)

    async def close(self, timeout: float = 1.0) -> None:
        """Stop accepting and close all connections; what is written goes out first, for at most `timeout` seconds."""
        # New connections are refused first: clients that reconnect at once would keep the group from emptying.
        ports, self._ports = self._ports, []
        for port in ports:
            asyncio.get_running_loop().remove_reader(port)
            port.close()
        for server in self._servers:
            server.close()
        if self._arriving:  # accepted, and not yet one of the group
            await asyncio.wait(self._arriving)
        # The timer of idle connections would go on for ever.
        self._group.stop()
        for stream in list(self._group.streams):  # a copy: closing takes them out
            stream.close("the server stops")
        try:
            async with asyncio.timeout(timeout):
                await self._group.emptied()
        except TimeoutError:
            for stream in list(self._group.streams):
                stream.abort("the server stops and it does not read")
            await self._group.emptied()


def anybody(_address: str) -> str:
    """Return "": nobody is refused."""
    return ""


class SecondPort(Struct, frozen=True):
    """A port at a fixed distance from the first, for the same sessions. `name`: for errors, with the option that turns
    it off."""

    distance: int
    name: str


async def bind(
    host: str,
    port: int,
    limits: ListenLimits | None = None,
    second: SecondPort | None = None,
    layer: Layer | None = None,
    tls: ServerTls | None = None,
) -> Listener:
    """Take `host:port` without accepting connections before `Listener.start`.

    Args:
        host: address to listen on.
        port: 0 takes a free one, which `Listener.port` has.
        limits: of what peers may take.
        second: a further port.
        layer: comes between each connection and its socket.
        tls: of the process; None: only plain text is taken.
    Raises:
        ConfigError: the address, or that of `second`, cannot be had; the text says which and why.
    """
    listener = Listener(limits or ListenLimits(), layer, tls=tls)
    await listener.bind(host, port, second)
    return listener


async def listen(
    host: str,
    port: int,
    make_session: MakeSession,
    limits: ListenLimits | None = None,
    second: SecondPort | None = None,
    layer: Layer | None = None,
    tls: ServerTls | None = None,
) -> Listener:
    """Listen on `host:port`, and accept at once. Otherwise as `bind`."""
    listener = await bind(host, port, limits, second, layer, tls)
    await listener.start(make_session)
    return listener


def _both_families(port: int) -> socket.socket:
    """Return a socket bound to the port at all addresses, IPv4 too: event loops make it for IPv6 alone. Raises OSError."""
    raw = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    try:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        raw.setblocking(False)
        raw.bind((_BOTH_FAMILIES, port))
    except OSError:
        raw.close()
        raise
    return raw


def _taken(where: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen on {where}: {error.strerror or error}; "
        "choose another port or address, or stop the process that has it"
    )
