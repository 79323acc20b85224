"""What a producer reads in ZooKeeper: the partitions of its topics, and the addresses of their masters. Blocks."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from metaq.registry.zookeeper.addresses import read_addresses
from metaq.registry.zookeeper.layout import PUBLISH, Layout, parents, parse_role, parse_topic_text
from metaq.registry.zookeeper.session import Session

log = logging.getLogger(__name__)


def read_publishable(
    session: Session, layout: Layout, topics: Iterable[str], *, watch: bool
) -> dict[str, dict[int, tuple[str, int]]]:
    """Return topic → broker id → address of its master and number of partitions there, of those that may be published.

    Args:
        watch: makes missing nodes of the topics, and has the session's `changed` called when one of them, or of their
            masters, is another.

    Raises one of `metaq.registry.zookeeper.session.Failures`.
    """
    names = list(topics)
    nodes = [layout.topics(PUBLISH, topic) for topic in names]
    if watch:
        session.ensure(dict.fromkeys(path for node in nodes for path in (*parents(node), node)))
        children = [session.watch_children(node) for node in nodes]
    else:
        children = session.children(nodes)
    masters = [
        [place for name in names_below if (place := parse_role(name)) is not None and place.slave is None]
        for names_below in children
    ]
    texts = session.texts(
        [f"{node}/{place.broker_id}-m" for node, places in zip(nodes, masters, strict=True) for place in places]
    )
    addresses = read_addresses(session, layout, {place for places in masters for place in places}, watch=watch)
    found: dict[str, dict[int, tuple[str, int]]] = {}
    for topic, node, places in zip(names, nodes, masters, strict=True):
        found[topic] = {}
        for place in places:
            text, address = texts.get(f"{node}/{place.broker_id}-m"), addresses.get(place)
            if text is None or address is None:  # gone since its name was read, or without a master yet
                continue
            try:
                found[topic][place.broker_id] = address, parse_topic_text(text)
            except ValueError:
                log.warning(
                    "%s/%d-m in ZooKeeper says %.100r, which is no number of partitions", node, place.broker_id, text
                )
    return found
