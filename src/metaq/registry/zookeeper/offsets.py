"""How far groups of MetaQ 1.x have come, as their consumers keep it in ZooKeeper."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from metaq.registry.zookeeper.layout import Layout, parse_offset
from metaq.registry.zookeeper.session import Session

log = logging.getLogger(__name__)


def read_positions(
    session: Session, layout: Layout, group: str, broker_id: int, topic: str | None
) -> dict[tuple[str, int], int]:
    """(topic, partition) → position, of one broker's partitions that the group has read; of one topic, or of all.

    It blocks: for a thread. Raises one of `metaq.registry.zookeeper.session.Failures`.
    """
    topics: Iterable[str] = [topic] if topic is not None else session.children([layout.offsets(group)])[0]
    parents = [layout.offsets(group, name) for name in topics]
    nodes = [
        f"{parent}/{name}"
        for parent, names in zip(parents, session.children(parents), strict=True)
        for name in names
        if name.startswith(f"{broker_id}-")
    ]
    found = {}
    for path, text in session.texts(nodes).items():
        *_, name, partition = path.split("/")
        try:
            found[name, int(partition.partition("-")[2])] = parse_offset(text).position
        except ValueError:
            log.warning("%s in ZooKeeper says %.100r, which is no offset", path, text)
    return found
