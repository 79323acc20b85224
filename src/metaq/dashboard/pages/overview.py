"""The first page: what needs attention, then what the cluster does."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.admin.brokers import BrokerStatus
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.attention import SHOWN_MAX, Attention, attention, called
from metaq.model.topics.route import MASTER_ID

ROWS: Final = 8
"""Topics and groups that are shown: the busiest, and those that lag most."""

Points = list[float | None]


class Total(Struct, frozen=True):
    """A figure of the whole cluster, as it is and has been; None: nobody has told it yet."""

    label: str
    unit: str
    now: float | None
    points: Points


class BrokerLine(Struct, frozen=True):
    """`state`: "up", "down", or "unregistered"."""

    name: str
    address: str
    cluster: str
    is_master: bool
    state: str
    version: str
    stored: float | None
    stored_points: Points
    delivered: float | None
    delivered_points: Points
    disk: float | None
    disk_points: Points


class TopicLine(Struct, frozen=True):
    topic: str
    stored: float | None
    points: Points
    groups: int
    lag: int


class GroupLine(Struct, frozen=True):
    group: str
    members: int | None
    lag: int
    points: Points
    delivered: float


class Overview(Struct, frozen=True):
    """`seen`: the cluster was seen at least once. `dead_letters`, `undecided`: None: nobody tells."""

    seen: bool
    waiting: bool
    error: str
    name_servers: list[str]
    attention: list[Attention]
    attention_more: int
    totals: list[Total]
    topic_count: int
    group_count: int
    dead_letters: int | None
    undecided: int | None
    brokers: list[BrokerLine]
    topics: list[TopicLine]
    groups: list[GroupLine]
    notes: list[str]


def broker_line(asked: Asked, one: BrokerStatus) -> BrokerLine:
    """Return a broker with its histories."""
    sampler, key, up = asked.cluster.sampler, (one.broker, one.broker_id), not one.error
    return BrokerLine(
        called(one.broker, one.broker_id), one.address, one.cluster, one.broker_id == MASTER_ID,
        "down" if one.error else "up" if one.registered else "unregistered", one.version,
        one.put_rate if up else None, sampler.stored.of(key), one.get_rate if up else None, sampler.delivered.of(key),
        one.disk_used, sampler.disk.of(key),
    )  # fmt: skip


async def load(asked: Asked) -> Overview:
    """Return what the sampler knows: it asks the cluster nothing, so it answers at once, whatever the cluster does."""
    sampler = asked.cluster.sampler
    look, concerns = sampler.look, sampler.concerns
    state, found = sampler.state, attention(sampler)
    topics, groups = (look.topics, look.groups) if look is not None else ((), ())
    busiest = sorted(topics, key=lambda one: (-(one.stored or 0), one.topic))[:ROWS]
    laggards = sorted(groups, key=lambda one: (-one.lag, one.group))[:ROWS]
    totals = []
    for name, label, unit in (
        ("stored", "Stored", "msg/s"),
        ("delivered", "Delivered", "msg/s"),
        ("lag", "Waiting for groups", "msg"),
    ):
        points = sampler.totals.of(name)
        totals.append(Total(label, unit, points[-1] if points else None, points))
    undecided = concerns.undecided if concerns is not None else None
    return Overview(
        seen=look is not None,
        waiting=state.waiting,
        error=state.error,
        name_servers=list(asked.cluster.name_servers),
        attention=found[:SHOWN_MAX],
        attention_more=max(0, len(found) - SHOWN_MAX),
        totals=totals,
        topic_count=len(topics),
        group_count=len(groups),
        dead_letters=sum(one.stored for one in concerns.dead.values()) if concerns is not None else None,
        undecided=len(undecided) if undecided is not None else None,
        brokers=[broker_line(asked, one) for one in look.brokers] if look is not None else [],
        topics=[TopicLine(one.topic, one.stored, sampler.topics.of(one.topic), one.groups, one.lag) for one in busiest],
        groups=[
            GroupLine(one.group, one.members, one.lag, sampler.groups.of(one.group), one.delivered) for one in laggards
        ],
        notes=[*(look.notes if look is not None else ()), *(concerns.notes if concerns is not None else ())],
    )


PAGE = Page(name="overview", path="/", title="Overview", menu="Overview", key="o", values=Overview, load=load)
