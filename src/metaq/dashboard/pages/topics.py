"""All topics."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.admin import topics
from metaq.dashboard.listing import Key, Listing, ListQuery, listing
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.common import seen


class TopicsQuery(ListQuery, frozen=True, forbid_unknown_fields=True):
    """`system`: also system, retry and dead-letter topics, of which there are no figures."""

    system: bool = False


class TopicRow(Struct, frozen=True):
    """Rates a second, of the last minute; None: not asked about yet. `waiting`: messages that its groups have not consumed."""

    topic: str
    stored: float | None
    stored_bytes: float | None
    points: list[float | None]
    delivered: float | None
    groups: int | None
    waiting: int | None


class Topics(Struct, frozen=True):
    rows: Listing[TopicRow]
    system: bool


KEYS: Final[dict[str, Key]] = {
    "topic": lambda row: row.topic,
    "stored": lambda row: row.stored,
    "bytes": lambda row: row.stored_bytes,
    "delivered": lambda row: row.delivered,
    "groups": lambda row: row.groups,
    "waiting": lambda row: row.lag,
}


class _Named(Struct, frozen=True):
    """A topic of which nobody has figures."""

    topic: str
    stored: None = None
    stored_bytes: None = None
    delivered: None = None
    groups: None = None
    lag: None = None


async def load(asked: Asked) -> Topics:
    query: TopicsQuery = asked.query
    histories = asked.cluster.sampler.topics
    known = seen(asked).topics
    rows = list[object](known)
    if query.system:
        names = await asked.ask(topics.names(asked.cluster.core, system=True))
        have = {one.topic for one in known}
        rows += [_Named(name) for name in names if name not in have]
    found: Listing[object] = listing(rows, query, KEYS, "topic", lambda row: row.topic)  # type: ignore[attr-defined]

    def row(one: object) -> TopicRow:
        named: _Named = one  # type: ignore[assignment]  # both kinds have these
        return TopicRow(
            named.topic,
            named.stored,
            named.stored_bytes,
            histories.of(named.topic),
            named.delivered,
            named.groups,
            named.lag,
        )

    return Topics(found.of([row(one) for one in found.rows]), query.system)


PAGE = Page(
    name="topics", path="/topics", title="Topics", menu="Topics", key="t", values=Topics, load=load, query=TopicsQuery
)
