"""The nodes of MetaQ 1.x in ZooKeeper, to walk through; nothing is changed."""

from __future__ import annotations

from msgspec import Struct

from metaq.dashboard.page import Asked, Page


class NodeQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`node`: its path; "": the root of MetaQ."""

    node: str = ""


class NodeStep(Struct, frozen=True):
    name: str
    path: str


class ZookeeperNode(Struct, frozen=True):
    """`zookeeper`: "": the dashboard was told of none. `session`: of whom keeps an ephemeral node, hexadecimal; "": it is persistent. `is_cut`: the text is longer. `above`: the nodes above."""

    zookeeper: str
    path: str
    above: list[NodeStep]
    session: str
    text: str
    is_cut: bool
    children: list[NodeStep]
    more: int


async def load(asked: Asked) -> ZookeeperNode:
    zookeeper = asked.sources.zookeeper if asked.sources is not None else None
    if zookeeper is None:
        return ZookeeperNode("", "", [], "", "", False, [], 0)
    query: NodeQuery = asked.query
    found = await zookeeper.node(query.node or zookeeper.root)
    root = zookeeper.root.rstrip("/")
    parts = found.path[len(root) :].strip("/").split("/")
    above = [
        NodeStep(zookeeper.root, zookeeper.root),
        *(NodeStep(parts[length - 1], f"{root}/{'/'.join(parts[:length])}") for length in range(1, len(parts))),
    ]
    base = found.path.rstrip("/")
    return ZookeeperNode(
        zookeeper=zookeeper.connect,
        path=found.path,
        above=above if parts != [""] else [],
        session=f"0x{found.session & ((1 << 64) - 1):x}" if found.session else "",
        text=found.text,
        is_cut=found.is_cut,
        children=[NodeStep(name, f"{base}/{name}") for name in found.children],
        more=found.more,
    )


PAGE = Page(
    name="zookeeper",
    path="/zookeeper",
    title="ZooKeeper",
    under="metaq1",
    values=ZookeeperNode,
    load=load,
    query=NodeQuery,
)
