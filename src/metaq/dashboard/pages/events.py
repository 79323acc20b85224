"""What this dashboard has noticed since it runs: when it began, and when it was over."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, structs

from metaq.dashboard.listing import Key, Listing, ListQuery, listing
from metaq.dashboard.noticing import Noticed
from metaq.dashboard.page import Asked, Page


class EventRow(Noticed):
    """`seconds`: how long it has lasted; 0: it was a moment."""

    seconds: float


class EventsValues(Struct, frozen=True):
    """`lasting`: of them, how many are not over."""

    rows: Listing[EventRow]
    lasting: int


KEYS: Final[dict[str, Key]] = {
    "time": lambda row: row.number,
    "subject": lambda row: row.subject,
    "level": lambda row: row.level,
    "lasted": lambda row: row.seconds,
}


async def load(asked: Asked) -> EventsValues:
    rows = [
        EventRow(
            **structs.asdict(one),
            seconds=max(0, (asked.now_ms if one.ended_ms is None else one.ended_ms) - one.at_ms) / 1000,
        )
        for one in asked.cluster.events.events
    ]
    found = listing(rows, asked.query, KEYS, "-time", lambda row: f"{row.subject} {row.text}")
    return EventsValues(found, sum(row.ended_ms is None for row in rows))


PAGE = Page(
    name="events",
    path="/events",
    title="Events",
    menu="Events",
    key="e",
    values=EventsValues,
    load=load,
    query=ListQuery,
)
