"""The networks of a cluster: one for each pair of programs that talk to each other, in each of its directions."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from metaq.errors import ConfigError
from metaq.testing.listening import process_at
from metaq.testing.network import FlakyNetwork, NetworkLink, NetworkThread, SharedPort
from metaq.testing.servers import Entrance

CLIENT: Final = "client"
BROKER: Final = "broker"
NAMESRV: Final = "namesrv"
ZOOKEEPER: Final = "zookeeper"


class NetworkWay(NamedTuple):
    """From whom to whom: kinds and numbers. All clients are one."""

    who: str
    """Kind of the program that connects: `client`, `broker`."""
    which: int
    """Its number, from 0."""
    kind: str
    """Kind of the server: `broker`, `namesrv`, `zookeeper`."""
    number: int
    """Its number, from 0."""

    def __str__(self) -> str:
        source = "clients" if self.who == CLIENT else f"{self.who} {self.which}"
        return f"{source} to {self.kind} {self.number}"


class Reachable(Protocol):
    """A server of a cluster."""

    @property
    def listens(self) -> str: ...

    def _reached_by(self, networks: Sequence[Entrance]) -> None: ...


class Ways:
    """All networks of a cluster.

    Args:
        brokers: returns broker's process id → its number, of those that run: so a connection to a broker is told whose it is.
    """

    def __init__(self, brokers: Callable[[], Mapping[int, int]]) -> None:
        self._brokers = brokers
        self._thread = NetworkThread()
        self._networks: dict[NetworkWay, list[FlakyNetwork]] = {}
        self._ports: list[SharedPort] = []

    def connect(self, ways: Sequence[NetworkWay], server: Reachable) -> None:
        """Put a network with an address of its own on each of these ways to a server."""
        networks = [FlakyNetwork(server.listens, thread=self._thread).start() for _ in ways]
        for way, network in zip(ways, networks, strict=True):
            self._networks[way] = [network]
        server._reached_by(networks)  # noqa: SLF001  parts of one cluster

    def connect_broker(self, number: int, server: Reachable, host: str, ports: Sequence[int], others: int) -> None:
        """Put networks on the ways of clients and of all other brokers to a broker.

        A broker tells an address of its own, but not another port. So each of its ports is one of `host` as well, with the
        networks of all who come there behind it.
        """
        sources = [NetworkWay(CLIENT, 0, BROKER, number)]
        sources += [NetworkWay(BROKER, other, BROKER, number) for other in range(others) if other != number]
        entrances = []
        for port in ports:
            behind = {way: FlakyNetwork(f"127.0.0.1:{port}", listen="", thread=self._thread).start() for way in sources}
            for way, network in behind.items():
                self._networks.setdefault(way, []).append(network)
            shared = SharedPort(f"{host}:{port}", self._router(number, behind), self._thread).start()
            self._ports.append(shared)
            entrances.append(shared)
        server._reached_by(entrances)  # noqa: SLF001  parts of one cluster

    def network(self, way: NetworkWay) -> FlakyNetwork:
        """The network of a way; of several ports, that to the first. Raises ConfigError: there is none."""
        return self._of(way)[0]

    def link(self, way: NetworkWay) -> NetworkLink:
        """All networks of a way. Raises ConfigError: there is none."""
        return NetworkLink(self._of(way))

    def all(self) -> tuple[NetworkWay, ...]:
        return tuple(self._networks)

    def mend(self) -> None:
        """End the faults of all networks."""
        for networks in self._networks.values():
            for network in networks:
                network.mend()

    def close(self) -> None:
        for port in self._ports:
            port.close()
        for networks in self._networks.values():
            for network in networks:
                network.close()
        self._networks, self._ports = {}, []
        self._thread.close()

    def _of(self, way: NetworkWay) -> list[FlakyNetwork]:
        try:
            return self._networks[way]
        except KeyError:
            raise ConfigError(f"there is no network from {way}: start the cluster with networks=True") from None

    def _router(
        self, number: int, behind: Mapping[NetworkWay, FlakyNetwork]
    ) -> Callable[[socket.socket], FlakyNetwork]:
        def route(accepted: socket.socket) -> FlakyNetwork:
            try:
                name = process_at(accepted, {pid: str(broker) for pid, broker in self._brokers().items()})
            except OSError:  # it has gone again
                name = ""
            way = NetworkWay(BROKER, int(name), BROKER, number) if name else NetworkWay(CLIENT, 0, BROKER, number)
            return behind.get(way) or behind[NetworkWay(CLIENT, 0, BROKER, number)]

        return route
