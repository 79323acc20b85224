"""A message's trace as a picture: when each event began, and how long it took, on one line of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from metaq.admin.traces import MessageTrace, TraceEvent

EVENTS_MAX: Final = 200
WIDTH: Final = 600.0
"""Of the picture."""
_NARROWEST: Final = 3.0
_LABEL_MAX: Final = 34


class TimelineRow(Struct, frozen=True):
    """An event. `after_ms`: since the first one. `x`, `width`: of its bar in a picture WIDTH wide. `good`: None: it has no outcome. `label`: beside it."""

    label: str
    time_ms: int
    after_ms: int
    what: str
    topic: str
    group: str
    client: str
    cost_ms: int | None
    result: str
    attempt: int
    detail: str
    good: bool | None
    x: float
    width: float


class Timeline(Struct, frozen=True):
    """`span_ms`: from the first event to the end of the last. `more`: events that are not shown. `note`: why there are none, or some are missing."""

    events: list[TimelineRow]
    span_ms: int
    more: int
    note: str


def timeline(trace: MessageTrace) -> Timeline:
    """Return a trace as a picture."""
    shown = trace.events[:EVENTS_MAX]
    notes = []
    if trace.silent:
        notes.append(f"events may be missing, these brokers could not be asked: {', '.join(trace.silent)}")
    if trace.unreadable:
        notes.append(f"{trace.unreadable} records are of kinds that are not known")
    if trace.cut:
        notes.append("brokers have more records than fit into an answer")
    rows, span = rows_of(shown)
    return Timeline(rows, span, len(trace.events) - len(shown), "; ".join(notes))


def rows_of(events: Sequence[TraceEvent]) -> tuple[list[TimelineRow], int]:
    """Return events with their bars, and the whole span, ms."""
    if not events:
        return [], 0
    begin = min(one.time_ms for one in events)
    end = max(one.time_ms + max(0, one.cost_ms or 0) for one in events)
    span = max(1, end - begin)
    rows = []
    for one in events:
        x = (one.time_ms - begin) / span * WIDTH
        width = max(_NARROWEST, max(0, one.cost_ms or 0) / span * WIDTH)
        x = min(x, WIDTH - _NARROWEST)
        good = None if not one.result or one.result == "not ended" else one.result == "ok"
        rows.append(
            TimelineRow(
                _label(one), one.time_ms, one.time_ms - begin, one.what, one.topic, one.group, one.client, one.cost_ms, one.result, one.attempt,
                one.detail, good, round(x, 1), round(min(width, WIDTH - x), 1),
            )
        )  # fmt: skip
    return rows, end - begin


def _label(event: TraceEvent) -> str:
    text = f"{event.what} {event.group}".strip()
    return text if len(text) <= _LABEL_MAX else f"{text[: _LABEL_MAX - 1]}…"
