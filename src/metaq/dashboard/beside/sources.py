"""What a dashboard is told to show beside the cluster; read once for all visitors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metaq.clock import Clock
from metaq.dashboard.beside.folders import WatchedFolders
from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.admin.zookeeper.looking import Metaq1Zookeeper


class Sources:
    """What is beside the cluster. Made and used in the dashboard's loop. Raises ConfigError: kazoo is missing.

    `folders`: of pipelines and queries, `zookeeper`: of MetaQ 1.x; None: none were named.
    """

    def __init__(self, clock: Clock, pipelines: Sequence[str] = (), zookeeper: str = "") -> None:
        self.folders = WatchedFolders(pipelines, clock) if pipelines else None
        self.zookeeper = _zookeeper(zookeeper) if zookeeper else None

    def looked(self) -> None:
        """Look at them again: there was a look at a cluster."""
        if self.folders is not None:
            self.folders.look_soon()

    async def close(self) -> None:
        """End what is under way."""
        if self.folders is not None:
            await self.folders.close()
        if self.zookeeper is not None:
            await self.zookeeper.close()


def _zookeeper(text: str) -> Metaq1Zookeeper:
    connect, slash, root = text.partition("/")
    try:
        from metaq.admin.zookeeper.looking import ROOT, Metaq1Zookeeper
    except ImportError as missing:
        raise ConfigError(
            f"ZooKeeper {connect}: looking at it needs {missing.name}: pip install 'pymetaq[zookeeper]'"
        ) from None
    return Metaq1Zookeeper(connect, slash + root if slash else ROOT)
