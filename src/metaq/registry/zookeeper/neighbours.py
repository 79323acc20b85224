"""Brokers of MetaQ 1.x in ZooKeeper, and who has the partitions of one of them. Blocks; raises one of
`metaq.registry.zookeeper.session.Failures`."""

from __future__ import annotations

from collections.abc import Sequence

from metaq.registry.zookeeper.layout import BrokerPlace, Layout, OffsetNode, parse_offset
from metaq.registry.zookeeper.session import Session

NO_ID = 0
"""What the original's page stores as id of the last message when it skips a partition."""


def read_brokers(session: Session, layout: Layout) -> dict[BrokerPlace, str]:
    """Return place → what its node says, of all brokers; names that are none are left out."""
    ids = [name for name in session.children([layout.brokers])[0] if name.isdecimal()]
    paths = dict[str, BrokerPlace]()
    for name, nodes in zip(ids, session.children([f"{layout.brokers}/{name}" for name in ids]), strict=True):
        for node in nodes:
            number = node.removeprefix("slave")
            if node == "master":
                paths[f"{layout.brokers}/{name}/{node}"] = BrokerPlace(int(name))
            elif node.startswith("slave") and number.isdecimal():
                paths[f"{layout.brokers}/{name}/{node}"] = BrokerPlace(int(name), int(number))
    return {paths[path]: text for path, text in session.texts(paths).items()}


def read_shares(
    session: Session, layout: Layout, group: str, topic: str, partitions: Sequence[str]
) -> dict[str, tuple[str, int | None]] | None:
    """Return partition `B-n` → owner ("": nobody) and position (None: none is stored, or it is none); None: there is no such group."""
    if session.owner(f"{layout.groups}/{group}") is None:
        return None
    owners = {layout.owner(group, topic, one): one for one in partitions}
    offsets = {layout.offset(group, topic, one): one for one in partitions}
    texts = session.texts([*owners, *offsets])
    found = dict.fromkeys(partitions, ("", None))
    positions = {offsets[path]: _position(texts[path]) for path in offsets if path in texts}
    names = {owners[path]: texts[path] for path in owners if path in texts}
    return {one: (names.get(one, ""), positions.get(one)) for one in found}


def _position(text: str) -> int | None:
    try:
        return parse_offset(text).position
    except ValueError:
        return None


def skip(session: Session, layout: Layout, group: str, topic: str, partition: str, position: int) -> str:
    """Store a position. Return the consumer that has the partition: then nothing is stored."""
    owner = session.owner(layout.owner(group, topic, partition))
    if owner is not None and owner[1]:
        return owner[1]
    session.write(layout.offset(group, topic, partition), OffsetNode(NO_ID, position).text)
    return ""
