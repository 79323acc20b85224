"""All consumer groups."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.dashboard.listing import Key, Listing, ListQuery, listing
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.common import seen


class GroupsQuery(ListQuery, frozen=True, forbid_unknown_fields=True):
    """`trouble`: only groups for which messages wait and that have no members, or fall behind."""

    trouble: bool = False


class GroupRow(Struct, frozen=True):
    """`members`, `growth` (messages a second), `dead` (letters): None: not known yet."""

    group: str
    members: int | None
    topics: int
    delivered: float
    lag: int
    points: list[float | None]
    growth: float | None
    dead: int | None


class Groups(Struct, frozen=True):
    rows: Listing[GroupRow]
    trouble: bool


KEYS: Final[dict[str, Key]] = {
    "group": lambda row: row.group,
    "members": lambda row: row.members,
    "topics": lambda row: row.topics,
    "delivered": lambda row: row.delivered,
    "lag": lambda row: row.lag,
    "growth": lambda row: row.growth,
}


async def load(asked: Asked) -> Groups:
    query: GroupsQuery = asked.query
    sampler = asked.cluster.sampler
    rows = seen(asked).groups
    if query.trouble:
        rows = tuple(one for one in rows if one.lag and (one.members == 0 or (one.growth or 0) > 0))
    found = listing(rows, query, KEYS, "-lag", lambda row: row.group)
    dead = sampler.concerns.dead if sampler.concerns is not None else None

    def letters(group: str) -> int | None:
        if dead is None:
            return None
        return dead[group].stored if group in dead else 0

    shown = [
        GroupRow(
            one.group,
            one.members,
            one.topics,
            one.delivered,
            one.lag,
            sampler.groups.of(one.group),
            one.growth,
            letters(one.group),
        )
        for one in found.rows
    ]
    return Groups(found.of(shown), query.trouble)


PAGE = Page(
    name="groups", path="/groups", title="Groups", menu="Groups", key="g", values=Groups, load=load, query=GroupsQuery
)
