"""An ensemble of three ZooKeeper servers whose ways to each other can fail."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tests.interop import maven
from tests.interop.metaq1 import ZOOKEEPER
from tests.support import PATIENCE, eventually

from metaq.testing.network import FlakyNetwork, NetworkThread
from metaq.testing.zookeeper import ZookeeperServer, configure, ensemble

SERVERS = range(3)


class Ensemble:
    """Three servers with a tick of half a second, so that a session lasts a second at least.

    Servers are `servers[number]`: `kill`, `stop`, `start`, `pause` and `resume` each by itself. Version 3.4, whose servers know each other
    by their own configurations alone: later ones tell each other their addresses, past the networks.
    """

    def __init__(self, folder: Path) -> None:
        self.servers: tuple[ZookeeperServer, ...] = ensemble(folder, len(SERVERS), maven.jars(*ZOOKEEPER), PATIENCE)
        configure(self.servers)
        self._thread = NetworkThread()
        self._ways: dict[tuple[int, int], list[FlakyNetwork]] = {}
        for number in SERVERS:
            self._put_networks(number)

    def _put_networks(self, number: int) -> None:
        """Have a server reach the others by networks."""
        file = self.servers[number].folder / "zoo.cfg"
        text = file.read_text()
        for other in SERVERS:
            if other != number:
                ports = self.servers[other].quorum_ports
                ways = [FlakyNetwork(f"127.0.0.1:{port}", thread=self._thread).start() for port in ports]
                self._ways[number, other] = ways
                there = ":".join(way.address.rpartition(":")[2] for way in ways)
                text = text.replace(f"={'127.0.0.1'}:{ports[0]}:{ports[1]}\n", f"=127.0.0.1:{there}\n")
        file.write_text(text)

    def __enter__(self) -> Self:
        try:
            for server in self.servers:
                server.launch()
            for server in self.servers:
                server.wait_ready()
            for server in self.servers:
                server.wait_serving()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for server in self.servers:
            server.close()
        for ways in self._ways.values():
            for way in ways:
                way.close()
        self._thread.close()

    @property
    def address(self) -> str:
        """Of all servers."""
        return ",".join(server.listens for server in self.servers)

    def leader(self) -> int:
        """Number of the server that leads, once one does."""

        def found() -> int:
            for number in SERVERS:
                with contextlib.suppress(OSError):
                    if re.search(r"^Mode: leader", self.servers[number].ask(), re.MULTILINE):
                        return number
            raise AssertionError("no server leads")

        return eventually(found, what="a ZooKeeper server leads")

    @contextlib.contextmanager
    def apart(self, one: int, other: int) -> Iterator[None]:
        """Let two servers hear nothing of each other, with their connections open."""
        ways = [*self._ways[one, other], *self._ways[other, one]]
        for way in ways:
            way.stall()
        try:
            yield
        finally:
            for way in ways:
                way.mend()

    def serve(self) -> None:
        """Return when all serve."""
        for server in self.servers:
            server.wait_serving()
