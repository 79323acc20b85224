"""Lifecycle of the protocol servers of one process."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from metaq.net.budget import ListenLimits
from metaq.server_options import PeerOptions
from metaq.servers.server import Server
from metaq.store.disk import file_limit

log = logging.getLogger(__name__)

Services = TypeVar("Services")


class Serving(Generic[Services]):
    """Runs servers in the given order; one that fails to start ends all."""

    def __init__(self, servers: Sequence[Server[Services]]) -> None:
        names = [server.name for server in servers]
        assert len(set(names)) == len(names), f"two servers of one name: {names}"
        self._servers = tuple(servers)
        self._started: list[Server[Services]] = []

    @property
    def addresses(self) -> Mapping[str, str]:
        """Server name → `host:port`; known once they are bound."""
        return {server.name: server.address for server in self._servers}

    async def bind(self) -> None:
        """Take all addresses, before anything else is opened: a taken one is reported with nothing touched.

        Raises ConfigError: none is held then.
        """
        try:
            for server in self._servers:
                await server.bind()
        except BaseException:
            await self.close()
            raise

    async def start(self, services: Services) -> None:
        """Accept clients. Raises ConfigError; the caller closes then."""
        for server in self._servers:
            await server.start(services)
            self._started.append(server)
            log.info("the %s server listens at %s", server.name, server.address)

    def started(self) -> Iterator[Server[Services]]:
        """Yield the servers that accept clients."""
        return iter(self._started)

    def limit(self, limits: ListenLimits) -> None:
        """Set what peers may take of the process."""
        for server in self._servers:
            server.limit(limits)

    async def close(self) -> None:
        """Close all servers, also those that have only taken their address. One that fails does not keep the others
        open."""
        self._started.clear()
        for server in self._servers:
            try:
                await server.close()
            except Exception:
                log.exception("the %s server could not be closed in order", server.name)


def listen_limits(options: PeerOptions) -> ListenLimits:
    """Return the limits of peers in the options, and those that the process's limit of open files leaves them."""
    return ListenLimits(
        connections_max=options.connections_max,
        descriptor_max=file_limit() * 3 // 4,
        unanswered_bytes_max=options.unanswered_bytes_max,
        unanswered_bytes_max_total=options.unanswered_bytes_max_total,
        half_read_bytes_max=options.half_read_bytes_max,
        peer_bytes_max=options.peer_bytes_max,
        idle_seconds=options.server_channel_max_idle_time_seconds,
        backlog=options.server_socket_backlog,
        send_buffer=options.server_socket_snd_buf_size,
        receive_buffer=options.server_socket_rcv_buf_size,
    )


def without_http(port: int | None, error: ModuleNotFoundError) -> str:
    """Return the text of the error that what the HTTP server runs on is not installed."""
    return f"httpPort={port} needs the package {error.name}: pip install 'pymetaq[http]', or leave httpPort out"
