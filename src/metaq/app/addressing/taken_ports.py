"""The ports that the system has chosen for a server (`listenPort=0`): a start in the same process takes them again.

A broker that steps down is closed and started again as a slave. The name servers, its clients and whoever has read its `ready`
line know the address that it had.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec import structs

from metaq.address import split_address
from metaq.app.configuration import Configuration
from metaq.app.runtime import Running
from metaq.errors import ConfigError

log = logging.getLogger(__name__)

_OF_BROKER: Final = {"listen_port": "remoting", "ha_listen_port": "replication", "http_port": "http"}
"""Option → name of the protocol server that listens there."""
_OF_METAQ1: Final = {"server_port": "metaq1"}
_OF_NAMESRV: Final = {"listen_port": "remoting", "http_port": "http"}


class TakenPorts:
    """What a server is started with: at first what is configured, later with the ports that it had.

    Args:
        configured: the configuration of the process.
        start: starts the server.
    """

    def __init__(self, configured: Configuration, start: Callable[[Configuration], Awaitable[Running]]) -> None:
        self._configured = self._next = configured
        self._start = start

    async def start(self) -> Running:
        """Start the server. Raises as it does; if another process has taken one of its ports meanwhile, the system chooses anew."""
        try:
            service = await self._start(self._next)
        except ConfigError as error:
            if self._next == self._configured:
                raise
            log.warning("no start with the ports from before (%s): the system chooses others", error)
            service = await self._start(self._configured)
        self._next = with_ports(self._configured, service.addresses)
        return service


def with_ports(configured: Configuration, addresses: Mapping[str, str]) -> Configuration:
    """Return a configuration with the ports that were left to the system.

    Args:
        addresses: protocol server → `host:port`; of `metaq up`, behind `broker` or `namesrv`, as `broker remoting`.
    """
    ports = {name.removeprefix("broker "): split_address(address)[1] for name, address in addresses.items()}
    broker, metaq1, namesrv = configured.broker, configured.metaq1, configured.namesrv
    chosen = _chosen(ports, _OF_BROKER, {name: getattr(broker, name) for name in _OF_BROKER})
    if broker.listen_port == 0 and broker.ha_listen_port is None and "replication" in ports:
        chosen["ha_listen_port"] = ports["replication"]  # unset: it follows listenPort, which had no number
    of_namesrv = {option: f"namesrv {server}" for option, server in _OF_NAMESRV.items()}
    return structs.replace(
        configured,
        broker=broker.replace(**chosen),
        metaq1=metaq1.replace(**_chosen(ports, _OF_METAQ1, {name: getattr(metaq1, name) for name in _OF_METAQ1})),
        namesrv=namesrv.replace(**_chosen(ports, of_namesrv, {name: getattr(namesrv, name) for name in of_namesrv})),
    )


def _chosen(ports: Mapping[str, int], servers: Mapping[str, str], given: Mapping[str, int | None]) -> dict[str, int]:
    return {option: ports[server] for option, server in servers.items() if given[option] == 0 and server in ports}
