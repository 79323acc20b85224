"""The listening side: accepts connections and gives each a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from metaq.errors import ConfigError
from metaq.net.peer import Group, ListenLimits, Peer, Session, Stream, join_address

BACKLOG = 1024


class Listener:
    """A listening port and its connections. Made by `listen`."""

    def __init__(self, server: asyncio.Server, group: Group) -> None:
        self._server = server
        self._group = group
        self.host, self.port = server.sockets[0].getsockname()[:2]

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._group.streams)

    async def close(self, timeout: float = 1.0) -> None:
        """Stop accepting and close all connections; what is written goes out first, for at most `timeout` seconds."""
        self._server.close()
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


async def listen(
    host: str, port: int, make_session: Callable[[Peer], Session], limits: ListenLimits | None = None
) -> Listener:
    """Listen on `host:port`; port 0 takes a free one, told by `Listener.port`.

    Raises ConfigError: the address cannot be had; the text says which and why.
    """
    group = Group(limits or ListenLimits(), server=True)
    try:
        server = await asyncio.get_running_loop().create_server(
            lambda: Stream(group, make_session), host, port, backlog=BACKLOG
        )
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {join_address(host, port)}: {error.strerror or error}; "
            "choose another port or address, or stop the process that has it"
        ) from error
    group.start()
    return Listener(server, group)
