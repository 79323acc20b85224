"""The listening side: accepts connections and gives each a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from metaq.errors import ConfigError
from metaq.net.group import Group, ListenLimits
from metaq.net.peer import Peer, Session, Stream, join_address

BACKLOG = 1024
FREE_PORTS_MAX = 100
"""How many free ports are tried for one whose second port is free too."""


class Listener:
    """A listening port, perhaps with a second one, and their connections. Made by `listen`.

    The limits hold over the connections of both ports together.
    """

    def __init__(self, servers: list[asyncio.Server], group: Group) -> None:
        self._servers = servers
        self._group = group
        self.host, self.port = servers[0].sockets[0].getsockname()[:2]

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._group.streams)

    def limit(self, limits: ListenLimits) -> None:
        """Let these hold from now on; connections above a lower limit stay."""
        self._group.limits = limits

    async def start(self) -> None:
        """Accept connections. Raises ConfigError: another process took the port in the meantime."""
        self._group.start()
        try:
            for server in self._servers:
                await server.start_serving()
        except OSError as error:
            await self.close()
            raise _taken(self.address, error) from error

    async def close(self, timeout: float = 1.0) -> None:
        """Stop accepting and close all connections; what is written goes out first, for at most `timeout` seconds."""
        for server in self._servers:
            server.close()
        self._group.stop()
        for stream in list(self._group.streams):
            stream.close("the server stops")
        try:
            async with asyncio.timeout(timeout):
                await self._group.emptied()
        except TimeoutError:
            for stream in list(self._group.streams):
                stream.abort("the server stops and it does not read")
            await self._group.emptied()


@dataclass(frozen=True)
class SecondPort:
    """A port at a fixed distance from the first, for the same sessions. `name` tells users what it is and how to go without."""

    distance: int
    name: str


async def listen(
    host: str,
    port: int,
    make_session: Callable[[Peer], Session],
    limits: ListenLimits | None = None,
    second: SecondPort | None = None,
    *,
    start: bool = True,
) -> Listener:
    """Listen on `host:port`; port 0 takes a free one, told by `Listener.port`.

    `start`: accept at once; otherwise the ports are only taken, until `Listener.start`.

    Raises ConfigError: the address, or that of `second`, cannot be had; the text says which and why.
    """
    group = Group(limits or ListenLimits(), server=True)

    async def serve(at: int, what: str = "") -> asyncio.Server:
        if not 0 <= at <= 65535:
            raise ConfigError(f"cannot listen on port {at}{what}: there is no such port; choose another")
        try:
            return await asyncio.get_running_loop().create_server(
                lambda: Stream(group, make_session), host, at, backlog=BACKLOG, start_serving=False
            )
        except OSError as error:
            raise _taken(f"{join_address(host, at)}{what}", error) from error

    tries = FREE_PORTS_MAX if second and port == 0 else 1
    while True:
        servers = [await serve(port)]
        if second is None:
            break
        tries -= 1
        try:
            first: int = servers[0].sockets[0].getsockname()[1]
            servers.append(await serve(first + second.distance, f", {second.name}"))
            break
        except ConfigError:
            servers[0].close()
            if not tries:
                raise
    listener = Listener(servers, group)
    if start:
        await listener.start()
    return listener


def _taken(where: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen on {where}: {error.strerror or error}; "
        "choose another port or address, or stop the process that has it"
    )
