"""A group's offsets, where Java's clients keep them. Blocks. Raises one of `metaq.registry.zookeeper.session.Failures`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from metaq.registry.zookeeper.layout import Layout, OffsetNode, parse_offset
from metaq.registry.zookeeper.session import Session

log = logging.getLogger(__name__)

UNKNOWN_MESSAGE: Final = -1
"""Id in an offset node of a message that is not known: Java's clients write it where a server has moved them."""


def read_offsets(
    session: Session, layout: Layout, group: str, topic: str | None = None, broker_id: int | None = None
) -> dict[tuple[str, str], OffsetNode]:
    """Return (topic, partition `B-n`) → what its node says; of one topic or of all, of one broker's partitions or of all.

    A node that says something else is left out, with a warning.
    """
    topics: Iterable[str] = [topic] if topic is not None else session.children([layout.offsets(group)])[0]
    parents = [layout.offsets(group, name) for name in topics]
    prefix = "" if broker_id is None else f"{broker_id}-"
    nodes = [
        f"{parent}/{name}"
        for parent, names in zip(parents, session.children(parents), strict=True)
        for name in names
        if name.startswith(prefix)
    ]
    found = {}
    for path, text in session.texts(nodes).items():
        *_, name, partition = path.split("/")
        try:
            found[name, partition] = parse_offset(text)
        except ValueError:
            log.warning("%s in ZooKeeper says %.100r, which is no offset", path, text)
    return found


def read_positions(
    session: Session, layout: Layout, group: str, broker_id: int, topic: str | None
) -> dict[tuple[str, int], int]:
    """Return (topic, partition) → position of one broker's partitions that a group has read; of one topic, or of all."""
    return {
        (name, int(number)): node.position
        for (name, partition), node in read_offsets(session, layout, group, topic, broker_id).items()
        if (number := partition.partition("-")[2]).isdecimal()
    }


def advance_offsets(session: Session, layout: Layout, topic: str, group: str, positions: Mapping[str, int]) -> None:
    """Store positions, partition `B-n` → byte offset. A node that is further stays as it is: nobody is sent back."""
    there = {partition: node.position for (_, partition), node in read_offsets(session, layout, group, topic).items()}
    nodes = {
        layout.offset(group, topic, partition): OffsetNode(UNKNOWN_MESSAGE, position).text
        for partition, position in positions.items()
        if partition not in there or there[partition] < position
    }
    if nodes:
        session.write_all(nodes)
