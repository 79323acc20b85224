"""A topic of MetaQ 1.x: its partitions, who owns each for every group, and how far each group is."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from metaq.admin.zookeeper.seen import ReadPartition
from metaq.dashboard.listing import Key, Listing, ListQuery, listing
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.metaq1 import figures_at

_PARTITION: Final = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)


class Metaq1PartitionRow(Struct, frozen=True):
    """`group`: "": no group reads the partition. Positions in bytes: `first` to `end` are stored, the group has read up to `read`;
    `behind`: what it has not, negative: it is ahead. None: not known. `text`: of its node, if that is no offset."""

    partition: str
    first: int | None
    end: int | None
    group: str
    owner: str
    read: int | None
    behind: int | None
    text: str


class Metaq1TopicValues(Struct, frozen=True):
    """`zookeeper`: "": the dashboard was told of none. `left`: partitions of groups that are not looked at."""

    zookeeper: str
    topic: str
    rows: Listing[Metaq1PartitionRow]
    left: int
    notes: list[str]


KEYS: Final[dict[str, Key]] = {
    "partition": lambda row: _order(row.partition),
    "group": lambda row: row.group,
    "owner": lambda row: row.owner,
    "behind": lambda row: row.behind,
}


async def load(asked: Asked) -> Metaq1TopicValues:
    topic = asked.path["topic"]
    zookeeper = asked.sources.zookeeper if asked.sources is not None else None
    if zookeeper is None:
        return Metaq1TopicValues("", topic, _listing([], asked.query), 0, [])
    found = await zookeeper.registered()
    read, left = await zookeeper.topic(topic)
    masters = [one for one in found.servers if one.slave is None]
    figures, failed, notes = await figures_at(asked, masters)
    bounds = {
        f"{server.broker_id}-{one.partition}": (one.low, one.high)
        for server in masters
        if (told := figures.get(server.address)) is not None
        for one in told.partitions
        if one.topic == topic and one.high >= 0
    }
    notes += [f"figures of {address}: {error}" for address, error in failed.items()]
    wanted = {
        f"{role.removesuffix('-m')}-{number}"
        for one in found.topics
        if one.topic == topic
        for role, count in one.partitions.items()
        if role.endswith("-m")
        for number in range(min(count, 10_000))
    }
    rows = _rows(read, bounds, wanted)
    return Metaq1TopicValues(zookeeper.connect, topic, _listing(rows, asked.query), left, notes)


def _listing(rows: list[Metaq1PartitionRow], query: ListQuery) -> Listing[Metaq1PartitionRow]:
    return listing(rows, query, KEYS, "partition", lambda row: f"{row.group} {row.partition}")


def _rows(read: list[ReadPartition], bounds: dict[str, tuple[int, int]], wanted: set[str]) -> list[Metaq1PartitionRow]:
    rows = []
    for one in read:
        first, end = bounds.get(one.partition, (None, None))
        behind = end - one.position if end is not None and one.position is not None else None
        text = one.text if one.position is None else ""
        rows.append(Metaq1PartitionRow(one.partition, first, end, one.group, one.owner, one.position, behind, text))
    for partition in (wanted | bounds.keys()) - {one.partition for one in read}:
        first, end = bounds.get(partition, (None, None))
        rows.append(Metaq1PartitionRow(partition, first, end, "", "", None, None, ""))
    return rows


def _order(partition: str) -> tuple[int, int, str]:
    found = _PARTITION.fullmatch(partition)
    return (int(found[1]), int(found[2]), "") if found is not None else (1 << 31, 0, partition)


PAGE = Page(
    name="metaq1_topic", path="/metaq1/topics/{topic}", title="{topic}", under="metaq1", values=Metaq1TopicValues, load=load,
    query=ListQuery,
)  # fmt: skip
