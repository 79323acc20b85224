"""An audit as lines for a terminal."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from metaq.pipelines.audit.figures import AuditFigures, GroupFigures, messages
from metaq.pipelines.audit.options import OFF, PROGRESS

FIGURES_HEAD = (
    "sent", "consumed", "missing", "dead", "repeated", "out of order", "late", "stray", "median", "99 %", "latest"
)  # fmt: skip
"""Headings of a group's figures, in the order of `cells`."""
UNKNOWN = "–"
"""Cell of a figure that is not known."""


def table(found: AuditFigures) -> str:
    """Return title, a line per group, notes, and whether the audit is clean."""
    lines = [title(found)]
    if found.groups:
        lines += ["", *_aligned([("group", "by", *FIGURES_HEAD), *(cells(one, found.order) for one in found.groups)])]
    lines += ["", *(f"note: {note}" for note in found.notes)] if found.notes else []
    lines += ["", *(f"NOT CLEAN: {breach}" for breach in found.breaches)] if found.breaches else ["", "clean"]
    return "\n".join(map(printable, lines))


def printable(text: str) -> str:
    """Replace control characters: names in a ledger are whatever an application wrote, even terminal escapes."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def title(found: AuditFigures) -> str:
    """Return a sentence on what was audited."""
    since = "the beginning" if found.since_ms is None else when(found.since_ms)
    topics = f" to {', '.join(found.topics)}" if found.topics else ""
    return f"{messages(found.sent)} sent{topics} from {since} until {when(found.until_ms)}"


def cells(one: GroupFigures, order: str) -> tuple[str, ...]:
    """Return the cells of a group's line; a dash where its evidence cannot show a figure, or it was not compared."""
    counts, blind = one.counts, one.evidence == PROGRESS
    seen = (counts.repeated, None if order == OFF else counts.out_of_order, counts.late, one.stray)
    return (
        one.group, one.evidence, f"{counts.sent:,}", f"{counts.consumed:,}", f"{counts.missing:,}", f"{counts.dead:,}",
        *(UNKNOWN if blind or count is None else f"{count:,}" for count in seen),
        span(counts.latency_p50), span(counts.latency_p99), span(counts.latency_max),
    )  # fmt: skip


def when(ms: int) -> str:
    """Return a time as `2026-03-01 08:00:00 UTC`."""
    return f"{dt.datetime.fromtimestamp(ms / 1000, dt.UTC):%Y-%m-%d %H:%M:%S} UTC"


def span(ms: int | None) -> str:
    """Return a time span as `12 ms`, `3.2 s`, `5 min`, `2.5 h`; a dash for None."""
    if ms is None:
        return UNKNOWN
    for limit, unit, size in ((1000, "ms", 1), (100_000, "s", 1000), (6_000_000, "min", 60_000)):
        if abs(ms) < limit:
            return f"{_plain(ms / size)} {unit}"
    return f"{_plain(ms / 3_600_000)} h"


def _plain(number: float) -> str:
    """Return the number with one decimal, or none if that is 0."""
    return f"{number:,.1f}".removesuffix(".0")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align two columns left, the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
