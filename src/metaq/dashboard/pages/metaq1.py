"""MetaQ 1.x as ZooKeeper has it: servers with their figures, topics, groups."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.admin.figures.metaq1 import Metaq1Figures, figures_of
from metaq.admin.zookeeper.seen import Metaq1Nodes, RegisteredServer
from metaq.client.conversation.call import FAULTS
from metaq.dashboard.listing import Key, Listing, ListQuery, listing
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.common import each_or_error
from metaq.errors import MetaqError

SERVERS_ASKED: Final = 50
GROUPS_MAX: Final = 200
STATS_SECONDS: Final = 1.2


class Metaq1ServerRow(Struct, frozen=True):
    """`error`: why it does not tell its figures; "": it does. Rates a second, of topics with `stat=true`."""

    broker_id: int
    role: str
    address: str
    error: str
    topics: int | None
    partitions: int | None
    connections: int | None
    put: float | None
    got: float | None
    put_failed: int | None


class Metaq1TopicRow(Struct, frozen=True):
    """`partitions`: at all its masters. `messages`, `bytes`: None: no server tells."""

    topic: str
    brokers: int
    partitions: int
    publish: bool
    subscribe: bool
    messages: int | None
    bytes: int | None


class Metaq1GroupRow(Struct, frozen=True):
    group: str
    members: list[str]
    topics: list[str]


class Metaq1(Struct, frozen=True):
    """`zookeeper`: "": the dashboard was told of none."""

    zookeeper: str
    root: str
    servers: list[Metaq1ServerRow]
    topics: Listing[Metaq1TopicRow]
    groups: list[Metaq1GroupRow]
    groups_more: int
    notes: list[str]


KEYS: Final[dict[str, Key]] = {
    "topic": lambda row: row.topic,
    "brokers": lambda row: row.brokers,
    "partitions": lambda row: row.partitions,
    "messages": lambda row: row.messages,
    "bytes": lambda row: row.bytes,
}


async def load(asked: Asked) -> Metaq1:
    zookeeper = asked.sources.zookeeper if asked.sources is not None else None
    if zookeeper is None:
        return Metaq1("", "", [], _listing([], asked.query), [], 0, [])
    found = await zookeeper.registered()
    figures, failed, notes = await figures_at(asked, found.servers)
    notes += [f"{count} more {kind} are in ZooKeeper than are looked at" for kind, count in found.left.items()]
    groups = [Metaq1GroupRow(one.group, sorted(one.members), one.topics) for one in found.groups]
    return Metaq1(
        zookeeper=zookeeper.connect,
        root=zookeeper.root,
        servers=[_server(one, figures.get(one.address), failed.get(one.address, "")) for one in found.servers],
        topics=_listing(_topics(found, list(figures.values())), asked.query),
        groups=groups[:GROUPS_MAX],
        groups_more=max(0, len(groups) - GROUPS_MAX),
        notes=notes,
    )


def _listing(rows: list[Metaq1TopicRow], query: ListQuery) -> Listing[Metaq1TopicRow]:
    return listing(rows, query, KEYS, "topic", lambda row: row.topic)


async def figures_at(
    asked: Asked, servers: list[RegisteredServer]
) -> tuple[dict[str, Metaq1Figures], dict[str, str], list[str]]:
    """Return address → figures, address → why there are none, and what could not be found out."""
    addresses = sorted({one.address for one in servers if one.address})
    notes = []
    if len(addresses) > SERVERS_ASKED:
        notes.append(f"only {SERVERS_ASKED} of {len(addresses)} servers were asked for their figures")

    async def told(address: str) -> Metaq1Figures | None:
        return await figures_of(address)

    try:
        found, failed = await asked.ask(
            each_or_error((one, told(one)) for one in addresses[:SERVERS_ASKED]), STATS_SECONDS
        )
    except (MetaqError, *FAULTS) as error:
        return {}, {}, [*notes, f"figures of the servers: {error}"]
    return {address: one for address, one in found.items() if one is not None}, failed, notes


def _server(one: RegisteredServer, told: Metaq1Figures | None, error: str) -> Metaq1ServerRow:
    role = "master" if one.slave is None else f"slave {one.slave}"
    if told is None:
        why = error or ("" if one.address else "its node says no address")
        return Metaq1ServerRow(one.broker_id, role, one.address, why, None, None, None, None, None, None)
    connections = told.broker.get("curr_connections", "")
    put, got, failed = (told.traffic.get(kind) for kind in ("put", "get", "put_failed"))
    return Metaq1ServerRow(
        one.broker_id, role, one.address, error, len(told.topics), sum(each.partitions for each in told.topics),
        int(connections) if connections.isdecimal() and len(connections) < 10 else None,
        put.per_second if put is not None else None, got.per_second if got is not None else None,
        failed.events if failed is not None else None,
    )  # fmt: skip


def _topics(found: Metaq1Nodes, figures: list[Metaq1Figures]) -> list[Metaq1TopicRow]:
    messages: dict[str, int] = {}
    size: dict[str, int] = {}
    for one in figures:
        for topic in one.topics:
            messages[topic.topic] = messages.get(topic.topic, 0) + topic.messages
            size[topic.topic] = size.get(topic.topic, 0) + topic.bytes
    return [
        Metaq1TopicRow(
            one.topic, len({role.partition("-")[0] for role in one.partitions}),
            sum(count for role, count in one.partitions.items() if role.endswith("-m")), one.publish, one.subscribe,
            messages.get(one.topic), size.get(one.topic),
        )
        for one in found.topics
    ]  # fmt: skip


PAGE = Page(
    name="metaq1",
    path="/metaq1",
    title="MetaQ 1.x",
    menu="MetaQ 1.x",
    key="z",
    values=Metaq1,
    load=load,
    query=ListQuery,
)
