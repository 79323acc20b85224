"""What a dashboard is told to show beside the cluster; read once for all visitors."""

from __future__ import annotations

from collections.abc import Sequence

from metaq.clock import Clock
from metaq.dashboard.beside.folders import WatchedFolders


class Sources:
    """What is beside the cluster. Made and used in the dashboard's loop.

    `folders`: of pipelines and queries; None: none were named.
    """

    def __init__(self, clock: Clock, pipelines: Sequence[str] = ()) -> None:
        self.folders = WatchedFolders(pipelines, clock) if pipelines else None

    def looked(self) -> None:
        """Look at them again: there was a look at a cluster."""
        if self.folders is not None:
            self.folders.look_soon()

    async def close(self) -> None:
        """End what is under way."""
        if self.folders is not None:
            await self.folders.close()
