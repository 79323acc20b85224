"""The protocol servers of one process, from the first address taken to the last connection closed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from metaq.net.group import ListenLimits
from metaq.servers.server import Server

log = logging.getLogger(__name__)

Services = TypeVar("Services")


class Serving(Generic[Services]):
    """Runs servers in the order in which they are given; one that fails to start ends all."""

    def __init__(self, servers: Sequence[Server[Services]]) -> None:
        names = [server.name for server in servers]
        assert len(set(names)) == len(names), f"two servers of one name: {names}"
        self._servers = tuple(servers)
        self._started: list[Server[Services]] = []

    @property
    def addresses(self) -> Mapping[str, str]:
        """`host:port` by the server's name; known once they are bound."""
        return {server.name: server.address for server in self._servers}

    async def bind(self) -> None:
        """Take all addresses, before anything else is opened: one that is taken is reported with nothing touched.

        Raises ConfigError: none is held then.
        """
        try:
            for server in self._servers:
                await server.bind()
        except BaseException:
            await self.close()
            raise

    async def start(self, services: Services) -> None:
        """Let clients in. Raises ConfigError; whoever calls closes, then."""
        for server in self._servers:
            await server.start(services)
            self._started.append(server)
            log.info("the %s server listens at %s", server.name, server.address)

    def started(self) -> Iterator[Server[Services]]:
        """Those that serve clients, whose time passes."""
        return iter(self._started)

    def limit(self, limits: ListenLimits) -> None:
        """What peers may take of the process from now on."""
        for server in self._servers:
            server.limit(limits)

    async def close(self) -> None:
        """Close all, also those that have only taken their address. One that fails does not keep the others open."""
        self._started.clear()
        for server in self._servers:
            try:
                await server.close()
            except Exception:
                log.exception("the %s server could not be closed in order", server.name)
