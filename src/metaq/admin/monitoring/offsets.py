"""How far groups of MetaQ 1.x are from the ends of partitions: their offsets, against `stats offsets`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from metaq.admin.figures.metaq1 import Metaq1Figures, figures_of
from metaq.admin.monitoring.judging import Metaq1Gap
from metaq.errors import RemoteProtocolError
from metaq.registry.offset_table import PartitionOffset
from metaq.registry.zookeeper.layout import BrokerPlace


async def gaps(rows: Collection[PartitionOffset], addresses: Sequence[str]) -> dict[str, list[Metaq1Gap]]:
    """Return address → the gaps of all groups with offsets at its broker id. Of two offsets the furthest counts: the other was left
    behind when the group moved.

    Raises ConnectionFailed: a server cannot be reached; RemoteProtocolError: it does not tell its broker id.
    """
    figures = {address: await figures_of(address) for address in addresses}
    furthest: dict[tuple[str, str, str], int] = {}
    for row in rows:
        furthest[row.key] = max(row.offset, furthest.get(row.key, row.offset))
    return {address: _gaps(address, told, furthest) for address, told in figures.items() if told is not None}


def _gaps(address: str, told: Metaq1Figures, offsets: dict[tuple[str, str, str], int]) -> list[Metaq1Gap]:
    broker_id = told.broker.get("broker_id", "")
    if not broker_id.isdecimal():
        raise RemoteProtocolError(f"{address} does not tell its broker id")
    ends = {
        (one.topic, f"{BrokerPlace(int(broker_id)).broker_id}-{one.partition}"): one.high for one in told.partitions
    }
    return [
        Metaq1Gap(group, topic, part, end - offset)
        for (group, topic, part), offset in offsets.items()
        if (end := ends.get((topic, part), -1)) >= 0
    ]
