"""Addresses of brokers in ZooKeeper. Blocks."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from metaq.registry.zookeeper.layout import BrokerPlace, Layout, parse_uri
from metaq.registry.zookeeper.session import Session

log = logging.getLogger(__name__)


def read_addresses(
    session: Session, layout: Layout, places: Iterable[BrokerPlace], *, watch: bool
) -> dict[BrokerPlace, str]:
    """Return the addresses of those brokers that are there.

    Args: watch: has `changed` called when one of them is another, or comes.
    """
    nodes = {layout.server(place): place for place in places}
    texts = {path: text for path, (_, text) in session.owners(nodes, watch=watch).items()}
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
