"""Offsets of all 1.x groups in ZooKeeper, for tools. Blocks; raises one of `metaq.registry.zookeeper.session.Failures`."""

from __future__ import annotations

from collections.abc import Mapping

from metaq.registry.zookeeper.layout import Layout
from metaq.registry.zookeeper.session import Session

Key = tuple[str, str, str]
"""Group, topic and partition (`B-n`)."""


def read_offsets(
    session: Session, layout: Layout, group: str | None = None, topic: str | None = None
) -> dict[Key, str]:
    """Return group, topic and partition → text of the node; of all groups and topics, or of one. A few round trips."""
    groups = [group] if group is not None else session.children([layout.groups])[0]
    if topic is not None:
        pairs = [(name, topic) for name in groups]
    else:
        topics = session.children([layout.offsets(name) for name in groups])
        pairs = [(name, one) for name, names in zip(groups, topics, strict=True) for one in names]
    parts = session.children([layout.offsets(*pair) for pair in pairs])
    paths = {
        layout.offset(*pair, part): (*pair, part) for pair, names in zip(pairs, parts, strict=True) for part in names
    }
    return {paths[path]: text for path, text in session.texts(paths).items()}


def add_offsets(session: Session, layout: Layout, texts: Mapping[Key, str]) -> dict[Key, str]:
    """Make nodes with their texts, except where there is one already. Returns those, with the text that is there."""
    paths = {layout.offset(*key): key for key in texts}
    taken = session.create({path: texts[key] for path, key in paths.items()}, ephemeral=False)
    there = session.texts(taken)
    return {paths[path]: there.get(path, "") for path in taken}
