"""How far groups of MetaQ 1.x are from the ends of partitions: their offsets in ZooKeeper, against `stats offsets`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metaq.admin.figures.metaq1 import Metaq1Figures, figures_of
from metaq.admin.monitoring.judging import Gap
from metaq.errors import RemoteProtocolError
from metaq.registry.zookeeper.client import ZookeeperClient
from metaq.registry.zookeeper.layout import BrokerPlace, Layout, parse_offset
from metaq.registry.zookeeper.offsets import read_offsets

SESSION_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 15.0


async def gaps(connect: str, root: str, addresses: Sequence[str]) -> dict[str, list[Gap]]:
    """Return address → the gaps of all groups with offsets at its broker id.

    Raises ConnectionFailed: ZooKeeper, or a server, cannot be reached; RemoteProtocolError: a server does not tell its broker id.
    """
    figures = {address: await figures_of(address) for address in addresses}
    client = ZookeeperClient(connect, SESSION_SECONDS, CONNECT_SECONDS)
    try:
        texts = await client.ask(lambda session: read_offsets(session, Layout(root)))
    finally:
        await client.close()
    return {address: _gaps(address, told, texts) for address, told in figures.items() if told is not None}


def _gaps(address: str, told: Metaq1Figures, texts: dict[tuple[str, str, str], str]) -> list[Gap]:
    broker_id = told.broker.get("broker_id", "")
    if not broker_id.isdecimal():
        raise RemoteProtocolError(f"{address} does not tell its broker id")
    ends = {
        (one.topic, f"{BrokerPlace(int(broker_id)).broker_id}-{one.partition}"): one.high for one in told.partitions
    }
    found = []
    for (group, topic, part), text in texts.items():
        end = ends.get((topic, part), -1)
        if end < 0:
            continue
        try:
            found.append(Gap(group, topic, part, end - parse_offset(text).position))
        except ValueError:  # Written by somebody else: no offset that a client could read either.
            continue
    return found
