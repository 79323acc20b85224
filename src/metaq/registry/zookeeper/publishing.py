"""What a producer reads in ZooKeeper: the partitions of its topics, and the addresses of their masters. Blocks."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from metaq.registry.zookeeper.layout import (
    PUBLISH,
    BrokerPlace,
    Layout,
    parents,
    parse_role,
    parse_topic_text,
    parse_uri,
)
from metaq.registry.zookeeper.session import Session

log = logging.getLogger(__name__)


def read_publishable(
    session: Session, layout: Layout, topics: Iterable[str], *, watch: bool
) -> dict[str, dict[int, tuple[str, int]]]:
    """Return topic → broker id → address of its master and number of partitions there, of those that may be published.

    Args:
        watch: makes missing nodes of the topics, and has the session's `changed` called when one of them, or a missing master,
            is another.

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
    addresses = _addresses(session, layout, {place for places in masters for place in places}, watch=watch)
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


def _addresses(
    session: Session, layout: Layout, places: Iterable[BrokerPlace], *, watch: bool
) -> dict[BrokerPlace, str]:
    nodes = {layout.server(place): place for place in places}
    texts = session.texts(nodes)
    missing = [node for node in nodes if node not in texts]
    if watch and missing:
        for node in missing:
            session.watch(node)
        texts |= session.texts(missing)  # made between the two requests
    found = {}
    for node, text in texts.items():
        try:
            found[nodes[node]] = parse_uri(text)
        except ValueError:
            log.warning("%s in ZooKeeper says %.100r, which is no address", node, text)
    return found
