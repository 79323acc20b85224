"""The first page: what needs attention, then what the cluster does."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.attention import SHOWN_MAX, Attention, attention
from metaq.dashboard.pages.brokers import BrokerRow, broker_row
from metaq.dashboard.sampling.sampler import Sampler

ROWS: Final = 8
"""Topics and groups that are shown: the busiest, and those that lag most."""

Points = list[float | None]


class Total(Struct, frozen=True):
    """A figure of the whole cluster, as it is and has been; None: nobody has told it yet."""

    label: str
    unit: str
    now: float | None
    points: Points


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
    brokers: list[BrokerRow]
    topics: list[TopicLine]
    groups: list[GroupLine]
    notes: list[str]


def undecided(sampler: Sampler) -> int | None:
    """Return how many transactions nobody has decided: staged ones, and half messages of brokers that tell; None: none does."""
    staged = sampler.concerns.undecided if sampler.concerns is not None else None
    brokers = sampler.look.brokers if sampler.look is not None else ()
    halves = [int(text) for one in brokers if (text := one.runtime.get("metaqOpenHalves", "")).isdecimal()]
    return None if staged is None and not halves else len(staged or ()) + sum(halves)


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
        ("lag", "Waiting", "msg"),
    ):
        points = sampler.totals.of(name)
        totals.append(Total(label, unit, points[-1] if points else None, points))
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
        undecided=undecided(sampler),
        brokers=[broker_row(asked, look, one) for one in look.brokers] if look is not None else [],
        topics=[TopicLine(one.topic, one.stored, sampler.topics.of(one.topic), one.groups, one.lag) for one in busiest],
        groups=[
            GroupLine(one.group, one.members, one.lag, sampler.groups.of(one.group), one.delivered) for one in laggards
        ],
        notes=[*(look.notes if look is not None else ()), *(concerns.notes if concerns is not None else ())],
    )


PAGE = Page(name="overview", path="/", title="Overview", menu="Overview", key="o", values=Overview, load=load)
