"""Groups with dead letters, as the sampler knows them."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.dashboard.listing import Key, Listing, ListQuery, listing
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.common import seen


class DeadRow(Struct, frozen=True):
    """Dead letters of a group. `ever`: that it has had; `more`: since the look before; None: there was none yet."""

    group: str
    stored: int
    ever: int
    more: int | None


class DeadLetterGroups(Struct, frozen=True):
    """`known`: the cluster was asked about dead letters already."""

    rows: Listing[DeadRow]
    known: bool


KEYS: Final[dict[str, Key]] = {
    "group": lambda row: row.group, "stored": lambda row: row.stored, "ever": lambda row: row.ever, "more": lambda row: row.more,
}  # fmt: skip


async def load(asked: Asked) -> DeadLetterGroups:
    seen(asked)
    concerns = asked.cluster.sampler.concerns
    dead = concerns.dead.values() if concerns is not None else ()
    rows = [DeadRow(one.group, one.stored, one.ever, one.more) for one in dead]
    return DeadLetterGroups(listing(rows, asked.query, KEYS, "-stored", lambda row: row.group), concerns is not None)


PAGE: Final = Page(
    name="dead_letters/groups", path="/dead-letters", title="Dead letters", menu="Dead letters", key="d", values=DeadLetterGroups, load=load,
    query=ListQuery,
)  # fmt: skip
