"""What is seen in a ZooKeeper of MetaQ 1.x; apart from the reading, which needs kazoo."""

from __future__ import annotations

from msgspec import Struct

from metaq.errors import NotFound


class NodeNotFound(NotFound):
    """There is no such node in ZooKeeper."""


class RegisteredServer(Struct, frozen=True):
    """A broker of MetaQ 1.x. `slave`: its number; None: the master. `address`: `host:port`; "": its node says something else."""

    broker_id: int
    slave: int | None
    address: str


class RegisteredTopic(Struct, frozen=True):
    """A topic. `partitions`: role (`B-m`, `B-sN`) → number, of those that tell one; `publish`, `subscribe`: somebody takes, and gives."""

    topic: str
    partitions: dict[str, int]
    publish: bool
    subscribe: bool


class RegisteredGroup(Struct, frozen=True):
    """A group. `members`: consumer → topics that it reads. `topics`: with offsets."""

    group: str
    members: dict[str, list[str]]
    topics: list[str]


class Metaq1Nodes(Struct, frozen=True):
    """What is registered. `left`: kind → how many of them there are beyond the bounds."""

    servers: list[RegisteredServer]
    topics: list[RegisteredTopic]
    groups: list[RegisteredGroup]
    left: dict[str, int]


class ReadPartition(Struct, frozen=True):
    """A group in a partition, `B-n`. `owner`: consumer; "": nobody has it. `position`: byte offset; None: it has none, or `text` is none."""

    group: str
    partition: str
    owner: str
    position: int | None
    text: str


class TreeNode(Struct, frozen=True):
    """A node. `session`: that keeps it; 0: it is persistent. `is_cut`: its text is longer than what is shown. `more`: children beyond
    those that are listed."""

    path: str
    session: int
    text: str
    is_cut: bool
    children: list[str]
    more: int
