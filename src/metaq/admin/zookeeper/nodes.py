"""What brokers, groups and consumers of MetaQ 1.x have written into ZooKeeper, read in bounded numbers of requests. Blocks, as
`metaq.registry.zookeeper.session`, and raises its `Failures`."""

from __future__ import annotations

import re
from typing import Final

from metaq.admin.zookeeper.seen import (
    Metaq1Nodes,
    ReadPartition,
    RegisteredGroup,
    RegisteredServer,
    RegisteredTopic,
    TreeNode,
)
from metaq.registry.zookeeper.layout import (
    PUBLISH,
    SUBSCRIBE,
    BrokerPlace,
    Layout,
    parse_offset,
    parse_role,
    parse_topic_text,
    parse_uri,
)
from metaq.registry.zookeeper.session import Session

BROKERS_MAX: Final = 500
TOPICS_MAX: Final = 2000
GROUPS_MAX: Final = 1000
PARTITIONS_MAX: Final = 5000
"""Of one topic at all its brokers, with the groups that read it."""
CHILDREN_MAX: Final = 500
TEXT_MAX: Final = 4096
"""Characters of a node that are shown."""
_TOPICS: Final = "topics"
"""Kind of topic nodes before 1.4.3."""
_PARTITION: Final = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)


def read_registered(session: Session, layout: Layout) -> Metaq1Nodes:
    """Return brokers, topics and groups."""
    left: dict[str, int] = {}

    def some(kind: str, names: list[str], most: int) -> list[str]:
        if len(names) > most:
            left[kind] = len(names) - most
        return names[:most]

    ids = [name for name in session.children([layout.brokers])[0] if name.isdecimal() and len(name) < 10]
    servers = _servers(session, layout, [int(name) for name in some("servers", ids, BROKERS_MAX)])
    kinds = (PUBLISH, SUBSCRIBE, _TOPICS)
    listed = dict(zip(kinds, session.children([f"{layout.root}/brokers/{kind}" for kind in kinds]), strict=True))
    names = some("topics", sorted({name for one in listed.values() for name in one}), TOPICS_MAX)
    groups = some("groups", session.children([layout.groups])[0], GROUPS_MAX)
    return Metaq1Nodes(servers, _topics(session, layout, names, listed), _groups(session, layout, groups), left)


def _servers(session: Session, layout: Layout, ids: list[int]) -> list[RegisteredServer]:
    found = list[RegisteredServer]()
    below = session.children([layout.broker(number) for number in ids])
    places: dict[str, BrokerPlace] = {}
    for number, names in zip(ids, below, strict=True):
        for name in names:
            slave = name.removeprefix("slave")
            if name == "master" or (slave != name and slave.isdecimal() and len(slave) < 10):
                place = BrokerPlace(number, None if name == "master" else int(slave))
                places[layout.server(place)] = place
    for path, text in session.texts(places).items():
        try:
            address = parse_uri(text)
        except ValueError:
            address = ""
        found.append(RegisteredServer(places[path].broker_id, places[path].slave, address))
    return sorted(found, key=lambda one: (one.broker_id, -1 if one.slave is None else one.slave))


def _topics(session: Session, layout: Layout, names: list[str], listed: dict[str, list[str]]) -> list[RegisteredTopic]:
    known = {kind: set(ones) for kind, ones in listed.items()}
    paths: dict[str, tuple[str, str, str]] = {}
    wanted = [(kind, name) for kind in listed for name in names if name in known[kind]]
    for (kind, name), roles in zip(
        wanted, session.children([layout.topics(kind, name) for kind, name in wanted]), strict=True
    ):
        for role in roles:
            if parse_role(role) is not None:
                paths[f"{layout.topics(kind, name)}/{role}"] = kind, name, role
    partitions: dict[str, dict[str, int]] = {name: {} for name in names}
    has: dict[str, set[str]] = {name: set() for name in names}
    for path, text in session.texts(paths).items():
        kind, name, role = paths[path]
        has[name].add(kind)
        try:
            count = int(text) if kind == _TOPICS else parse_topic_text(text)
        except ValueError:
            continue
        partitions[name].setdefault(role, count)
    return [RegisteredTopic(name, partitions[name], PUBLISH in has[name], SUBSCRIBE in has[name]) for name in names]


def _groups(session: Session, layout: Layout, names: list[str]) -> list[RegisteredGroup]:
    members = session.children([layout.members(name) for name in names])
    topics = session.children([layout.offsets(name) for name in names])
    paths = {layout.member(name, one): (name, one) for name, ones in zip(names, members, strict=True) for one in ones}
    wants: dict[str, dict[str, list[str]]] = {name: {} for name in names}
    for path, text in session.texts(paths).items():
        group, member = paths[path]
        wants[group][member] = [one for one in text.split(",") if one]
    return [RegisteredGroup(name, wants[name], ones) for name, ones in zip(names, topics, strict=True)]


def read_topic(session: Session, layout: Layout, topic: str) -> tuple[list[ReadPartition], int]:
    """Return which groups read a topic, partition by partition; and how many more there are than are returned."""
    groups = session.children([layout.groups])[0][:GROUPS_MAX]
    offsets = session.children([layout.offsets(group, topic) for group in groups])
    owners = session.children([layout.owners(group, topic) for group in groups])
    wanted = [
        (group, partition)
        for group, *parts in zip(groups, offsets, owners, strict=True)
        for partition in sorted({*parts[0], *parts[1]}, key=_order)
    ]
    shown = wanted[:PARTITIONS_MAX]
    texts = session.texts(layout.offset(group, topic, partition) for group, partition in shown)
    holders = session.texts(layout.owner(group, topic, partition) for group, partition in shown)
    found = list[ReadPartition]()
    for group, partition in shown:
        text, position = texts.get(layout.offset(group, topic, partition), ""), None
        try:
            position = parse_offset(text).position if text else None
        except ValueError:
            position = None
        owner = holders.get(layout.owner(group, topic, partition), "")
        found.append(ReadPartition(group, partition, owner, position, text[:TEXT_MAX]))
    return found, len(wanted) - len(shown)


def read_node(session: Session, path: str) -> TreeNode | None:
    """Return a node with the names below it; None: there is none."""
    found = session.owner(path)
    if found is None:
        return None
    children = session.children([path])[0]
    keeper, text = found
    return TreeNode(
        path,
        keeper,
        text[:TEXT_MAX],
        len(text) > TEXT_MAX,
        children[:CHILDREN_MAX],
        max(0, len(children) - CHILDREN_MAX),
    )


def _order(partition: str) -> tuple[int, int, str]:
    found = _PARTITION.fullmatch(partition)
    return (int(found[1]), int(found[2]), "") if found is not None else (1 << 31, 0, partition)
