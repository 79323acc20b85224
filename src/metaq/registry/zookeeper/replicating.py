"""What an asynchronous slave of MetaQ 1.x reads in ZooKeeper about its master, and what it writes there as a consumer. Blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping

from msgspec import DecodeError, Struct

from metaq.registry.zookeeper.layout import (
    SUBSCRIBE,
    BrokerPlace,
    Layout,
    Metaq1Broker,
    parse_topic_text,
    parse_uri,
)
from metaq.registry.zookeeper.session import Session


class MasterNodes(Struct, frozen=True):
    """A master's nodes."""

    address: str | None
    """`host:port`; None: it is not registered."""
    checksum: str | None
    """Of its server.ini, as it says; None: it says none."""
    topics: Mapping[str, int]
    """Topics that it lets consumers have → number of partitions."""


def read_master(session: Session, layout: Layout, broker_id: int) -> MasterNodes:
    """Return the master's nodes, and have the session's `changed` called once when they are others.

    Raises one of `metaq.registry.zookeeper.session.Failures`.
    """
    server, checksum = layout.server(BrokerPlace(broker_id)), layout.checksum(broker_id)
    for path in (server, checksum):
        session.watch(path)
    root = layout.topics(SUBSCRIBE, "").rstrip("/")
    names = session.watch_children(root)
    role = Metaq1Broker(broker_id, "").role
    below = session.children([layout.topics(SUBSCRIBE, name) for name in names], watch=True)
    paths = {
        f"{layout.topics(SUBSCRIBE, name)}/{role}": name
        for name, found in zip(names, below, strict=True)
        if role in found
    }
    texts = session.texts([server, checksum])
    topics = dict[str, int]()
    for path, (_, text) in session.owners(paths, watch=True).items():
        with contextlib.suppress(ValueError, DecodeError):  # somebody else's text: a topic that is not copied
            topics[paths[path]] = parse_topic_text(text)
    address = None
    with contextlib.suppress(ValueError):
        address = parse_uri(texts[server]) if server in texts else None
    return MasterNodes(address, texts.get(checksum), topics)


def tell_slave(session: Session, layout: Layout, group: str, name: str, topics: Collection[str]) -> None:
    """Make the slave's node as a consumer of its group, which shows people what it copies, or replace it.

    Raises one of `Failures`.
    """
    path, text = layout.member(group, name), ",".join(sorted(topics))
    if session.create({path: text}):
        found = session.owner(path)
        if found != (session.id, text):
            session.replace(path, text)
