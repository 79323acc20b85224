"""The part of `Admin` that watches servers of MetaQ 1.x."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from metaq.admin.monitoring import judging, offsets, reading
from metaq.admin.parts import AdminPart
from metaq.registry.offset_table import PartitionOffset


class MonitoringCalls(AdminPart):
    """Methods of `Admin`, which raise what it says, too."""

    def metaq1_seen(self, place: reading.WatchedServer) -> judging.SeenServer:
        """Return what is to be seen of a server of MetaQ 1.x, ours or the original. Raises also ConfigError: no address."""
        return self._run(reading.look(self._open, place))

    def metaq1_gaps(
        self, rows: Collection[PartitionOffset], addresses: Sequence[str]
    ) -> dict[str, list[judging.Metaq1Gap]]:
        """Return address of a server → how far groups are from the ends of its partitions, by offsets of `metaq1_offsets`.

        Raises also RemoteProtocolError.
        """
        return self._run(offsets.gaps(rows, addresses))
