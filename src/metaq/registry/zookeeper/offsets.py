"""Offsets of groups in ZooKeeper, where Java's clients keep them. Blocks; raises one of `metaq.registry.zookeeper.session.Failures`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from metaq.registry.zookeeper.layout import UNKNOWN_MESSAGE, Layout, OffsetNode, parse_offset

if TYPE_CHECKING:
    from metaq.registry.zookeeper.session import Session

log = logging.getLogger(__name__)

Key = tuple[str, str, str]
"""Group, topic and partition (`B-n`)."""


def read_texts(
    session: Session,
    layout: Layout,
    group: str | None = None,
    topic: str | None = None,
    broker_id: int | None = None,
) -> dict[Key, str]:
    """Return group, topic and partition → text of the node; of all groups, topics and brokers, or of one. A few round trips."""
    groups = [group] if group is not None else session.children([layout.groups])[0]
    if topic is not None:
        pairs = [(name, topic) for name in groups]
    else:
        topics = session.children([layout.offsets(name) for name in groups])
        pairs = [(name, one) for name, names in zip(groups, topics, strict=True) for one in names]
    parts = session.children([layout.offsets(*pair) for pair in pairs])
    prefix = "" if broker_id is None else f"{broker_id}-"
    paths = {
        layout.offset(*pair, part): (*pair, part)
        for pair, names in zip(pairs, parts, strict=True)
        for part in names
        if part.startswith(prefix)
    }
    return {paths[path]: text for path, text in session.texts(paths).items()}


def read_offsets(
    session: Session, layout: Layout, group: str, topic: str | None = None, broker_id: int | None = None
) -> dict[tuple[str, str], OffsetNode]:
    """Return (topic, partition `B-n`) → what a group's node says; of one topic or of all, of one broker's partitions or of all.

    A node that says something else is left out, with a warning.
    """
    found = {}
    for key, text in read_texts(session, layout, group, topic, broker_id).items():
        try:
            found[key[1:]] = parse_offset(text)
        except ValueError:
            log.warning("%s in ZooKeeper says %.100r, which is no offset", layout.offset(*key), text)
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


def add_offsets(session: Session, layout: Layout, texts: Mapping[Key, str]) -> dict[Key, str]:
    """Make nodes with their texts, except where there is one already. Returns those, with the text that is there."""
    paths = {layout.offset(*key): key for key in texts}
    taken = session.create({path: texts[key] for path, key in paths.items()}, ephemeral=False)
    there = session.texts(taken)
    return {paths[path]: there.get(path, "") for path in taken}
