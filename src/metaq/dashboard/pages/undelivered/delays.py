"""Delayed messages: how many wait at each level, and since when the oldest is due."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.admin.undelivered import delays
from metaq.dashboard.page import Asked, Page


class LevelRow(Struct, frozen=True):
    """`seconds`: its delay; None: the broker does not say. `due_ms`: when its next message is due; None: none waits, or it is not known.
    `late_seconds`: since when that is over; 0: it is not.
    """

    broker: str
    level: int
    seconds: int | None
    waiting: int
    delivered: int
    due_ms: int | None
    due_in_seconds: float | None
    late_seconds: float


class Delays(Struct, frozen=True):
    """`waiting`: at all brokers together. `empty`: levels at which nothing waits. `unreached`: broker → why it could not be asked."""

    rows: list[LevelRow]
    waiting: int
    empty: int
    next_ms: int | None
    late_seconds: float
    unreached: dict[str, str]
    notes: list[str]


async def load(asked: Asked) -> Delays:
    found = await asked.ask(delays.listing(asked.cluster.core))
    levels = [(broker, one) for broker, some in found.brokers.items() for one in some]
    rows = [_row(broker, one, asked.now_ms) for broker, one in levels if one.waiting]
    return Delays(
        rows=rows, waiting=sum(one.waiting for one in rows), empty=len(levels) - len(rows),
        next_ms=min((one.due_ms for one in rows if one.due_ms is not None), default=None),
        late_seconds=max((one.late_seconds for one in rows), default=0.0), unreached=dict(found.unreached), notes=list(found.notes),
    )  # fmt: skip


def _row(broker: str, one: delays.Level, now_ms: int) -> LevelRow:
    left = None if one.due_ms is None else (one.due_ms - now_ms) / 1000
    return LevelRow(
        broker, one.level, one.seconds, one.waiting, one.delivered, one.due_ms, None if left is None else max(0.0, left),
        0.0 if left is None else max(0.0, -left),
    )  # fmt: skip


PAGE: Final = Page(
    name="undelivered/delays", path="/delays", title="Delays", menu="Delays", key="y", values=Delays, load=load
)
