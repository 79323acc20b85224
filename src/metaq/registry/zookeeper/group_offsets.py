"""A group's offsets in one topic, where Java's clients keep them. Blocks. Raises one of `metaq.registry.zookeeper.session.Failures`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from metaq.registry.zookeeper.layout import Layout, OffsetNode, parse_offset
from metaq.registry.zookeeper.session import Session

log = logging.getLogger(__name__)

UNKNOWN_MESSAGE: Final = -1
"""Id in an offset node of a message that is not known: Java's clients write it where a server has moved them."""


def read_offsets(session: Session, layout: Layout, topic: str, group: str) -> dict[str, OffsetNode]:
    """Return partition `B-n` → what its node says. A node that says something else is left out, with a warning."""
    (names,) = session.children([layout.offsets(group, topic)])
    found = {}
    for path, text in session.texts([layout.offset(group, topic, name) for name in names]).items():
        try:
            found[path.rpartition("/")[2]] = parse_offset(text)
        except ValueError:
            log.warning("%s in ZooKeeper says %.100r, which is no offset", path, text)
    return found


def advance_offsets(session: Session, layout: Layout, topic: str, group: str, positions: Mapping[str, int]) -> None:
    """Store positions, partition `B-n` → byte offset. A node that is further stays as it is: nobody is sent back."""
    there = read_offsets(session, layout, topic, group)
    nodes = {
        layout.offset(group, topic, partition): OffsetNode(UNKNOWN_MESSAGE, position).text
        for partition, position in positions.items()
        if partition not in there or there[partition].position < position
    }
    if nodes:
        session.write_all(nodes)
