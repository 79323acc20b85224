"""One look at a cluster of MetaQ 1.x, for callers without an event loop: where a topic can be read, and a group's offsets."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from msgspec import Struct

from metaq.registry.zookeeper.client import ZookeeperClient
from metaq.registry.zookeeper.layout import (
    SUBSCRIBE,
    BrokerPlace,
    Layout,
    OffsetNode,
    parse_offset,
    parse_role,
    parse_topic_text,
    parse_uri,
)
from metaq.registry.zookeeper.session import Session

log = logging.getLogger(__name__)

SESSION_SECONDS: Final = 30.0


class Readable(Struct, frozen=True):
    """Where a topic can be read, as of one moment."""

    partitions: dict[int, int]
    """Broker id → number of partitions."""
    servers: dict[int, tuple[str, ...]]
    """Broker id → `host:port` of its servers, the master first if there is one."""
    offsets: dict[str, OffsetNode]
    """Partition `B-n` → offset that the group has stored; empty without a group."""


def readable(connect: str, root: str, topic: str, group: str | None, seconds: float) -> Readable:
    """Return where a topic can be read. Blocks, in a loop and a session of ZooKeeper of its own.

    Args:
        connect: `host:port`, `,`-separated.
        root: of MetaQ's nodes, `/meta` by default.
        group: whose offsets are read, too; None: nobody's.
        seconds: time to reach ZooKeeper.

    Raises ConnectionFailed: ZooKeeper is away.
    """
    layout = Layout(root)

    async def ask() -> Readable:
        client = ZookeeperClient(connect, SESSION_SECONDS, seconds)
        try:
            return await client.ask(lambda session: _read(session, layout, topic, group))
        finally:
            await client.close()

    return asyncio.run(ask())


def _read(session: Session, layout: Layout, topic: str, group: str | None) -> Readable:
    node = layout.topics(SUBSCRIBE, topic)
    (names,) = session.children([node])
    roles = {f"{node}/{name}": place for name in names if (place := parse_role(name)) is not None}
    counts: dict[int, int] = {}
    for path, text in session.texts(roles).items():
        place = roles[path]
        try:
            counts[place.broker_id] = max(counts.get(place.broker_id, 0), parse_topic_text(text))
        except ValueError:
            log.warning("%s in ZooKeeper says %.100r, which is no number of partitions", path, text)
    places = {layout.server(place): place for place in roles.values() if place.broker_id in counts}
    addresses: dict[BrokerPlace, str] = {}
    for path, text in session.texts(places).items():
        try:
            addresses[places[path]] = parse_uri(text)
        except ValueError:
            log.warning("%s in ZooKeeper says %.100r, which is no address", path, text)
    ordered = sorted(addresses, key=lambda place: (place.broker_id, -1 if place.slave is None else place.slave))
    servers = {
        broker_id: tuple(addresses[place] for place in ordered if place.broker_id == broker_id) for broker_id in counts
    }
    return Readable(counts, servers, _offsets(session, layout, topic, group) if group else {})


def _offsets(session: Session, layout: Layout, topic: str, group: str) -> dict[str, OffsetNode]:
    (names,) = session.children([layout.offsets(group, topic)])
    found = {}
    for path, text in session.texts([layout.offset(group, topic, name) for name in names]).items():
        try:
            found[path.rpartition("/")[2]] = parse_offset(text)
        except ValueError:
            log.warning("%s in ZooKeeper says %.100r, which is no offset", path, text)
    return found
