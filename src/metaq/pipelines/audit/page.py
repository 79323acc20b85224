"""An audit as an HTML page: one file with style and plots inline, no script, nothing fetched.

Names, keys and ids are whatever applications chose, HTML too: Jinja2 escapes all text. Style and plots alone are put in as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from metaq.pipelines.audit.figures import KINDS, AuditFigures, Finding, GroupFigures, messages
from metaq.pipelines.audit.options import OFF, PROGRESS
from metaq.pipelines.audit.style import STYLE
from metaq.pipelines.audit.text import FIGURES_HEAD, UNKNOWN, cells, span, when

_SIDES = {
    "topic": "the messages stored in the topics", "trace": "traces", "ledger": "a ledger", "progress": "groups’ offsets"
}  # fmt: skip
_COUNTED = ("sent", "consumed", "missing", "dead", "repeated", "out_of_order", "late")


class Page(NamedTuple):
    """A rendered report."""

    html: str
    without: str = ""
    """A sentence on missing plots; empty: none is missing."""


def render(found: AuditFigures) -> Page:
    """Render the report; without matplotlib it has no plots, and says so."""
    plots = _plots()
    without = "" if plots is not None else "the report has no plots: they need matplotlib, pip install 'pymetaq[plots]'"
    html = _template().render(
        found=found,
        figures=list(_figures(found)),
        notes=[*found.notes, *([f"{without[0].upper()}{without[1:]}."] if without else [])],
        overview=plots.findings_by_group(found.groups) if plots is not None and found.groups else "",
        groups=[
            {
                "of": one,
                "cells": cells(one, found.order),
                "sentence": _sentence(one, found),
                "plots": _plots_of(one, found, plots),
                "kinds": list(_kinds(one)),
            }
            for one in found.groups
        ],
    )
    return Page(html, without)


@functools.cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("metaq.pipelines.audit"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    filters: dict[str, Any] = {"count": lambda number: f"{number:,}", "short": _short, "when": when}
    environment.filters |= filters
    environment.globals |= {
        "style": STYLE, "sides": _SIDES, "unknown": UNKNOWN, "headings": ("group", "known by", *FIGURES_HEAD),
        "counted_names": _COUNTED, "counted_heads": [name.replace("_", " ") for name in _COUNTED],
    }  # fmt: skip
    return environment.get_template("report.html")


def _plots() -> Any:
    """Return the module of plots; None: matplotlib is not installed."""
    try:
        from metaq.pipelines.audit import plots
    except ModuleNotFoundError as fault:
        if fault.name is None or fault.name.partition(".")[0] != "matplotlib":
            raise
        return None
    return plots


def _plots_of(one: GroupFigures, found: AuditFigures, plots: Any) -> list[tuple[str, str]]:
    """Return the plots of a group, SVG, with their headings."""
    if plots is None or not one.windows:
        return []
    return [
        ("Sent and consumed", plots.sent_and_consumed(one.windows, found.window_ms)),
        ("Latency", plots.latencies(one.windows, found.window_ms, found.late_ms)),
    ]


def _figures(found: AuditFigures) -> Iterator[tuple[str, str]]:
    """Yield the figures at the top, with what they count."""
    yield f"{found.sent:,}", "sent"
    yield f"{len(found.groups):,}", "group" if len(found.groups) == 1 else "groups"
    for kind, label in KINDS.items():
        if kind != "stray" and not (kind == "out_of_order" and found.order == OFF):
            yield f"{sum(getattr(one.counts, kind) for one in found.groups):,}", label


def _sentence(one: GroupFigures, found: AuditFigures) -> str:
    counts = one.counts
    if one.evidence == PROGRESS:
        return (
            f"Its offsets have passed by {counts.consumed:,} of {messages(counts.sent)}. They tell neither when a message was "
            "consumed, nor how often, nor in what order."
        )
    parts = [f"It has consumed {counts.consumed:,} of {messages(counts.sent)}."]
    if counts.latency_p50 is not None:
        parts.append(
            f"Half of them took at most {span(counts.latency_p50)}, 99 % at most {span(counts.latency_p99)}, the slowest "
            f"{span(counts.latency_max)}."
        )
    if counts.repeated:
        again = f"; {counts.stored_twice:,} of them are stored more than once" if counts.stored_twice else ""
        parts.append(f"{messages(counts.repeated)} were consumed {counts.extra:,} times too often{again}.")
    if found.order == OFF:
        parts.append("Its order was not looked at.")
    return " ".join(parts)


class _Column(NamedTuple):
    """Column of the tables of findings; a table leaves out columns that are empty in all its rows."""

    name: str
    cell: Callable[[Finding], str]
    style: str = ""
    code: bool = False


class _Kind(NamedTuple):
    """Findings of a kind. `shown`: how many there are; `opened`: whether their table is seen at once."""

    name: str
    label: str
    shown: str
    opened: bool
    columns: list[_Column]
    findings: list[Finding]


def _kinds(one: GroupFigures) -> Iterator[_Kind]:
    for kind, label in KINDS.items():
        mine = [finding for finding in one.findings if finding.kind == kind]
        if not mine:
            continue
        total = one.stray if kind == "stray" else getattr(one.counts, kind)
        shown = f"the first {len(mine):,} of {total:,}" if total > len(mine) else f"{total:,}"
        columns = [column for column in _COLUMNS if any(column.cell(finding) for finding in mine)]
        yield _Kind(kind, label, shown, kind in {"missing", "dead"} or len(one.findings) <= 12, columns, mine)


def _known(one: Finding) -> str:
    if one.why:
        return one.why
    parts = []
    if one.successes > 1:
        parts.append(f"consumed {one.successes} times")
    if one.failures:
        parts.append(f"failed {one.failures} times before")
    return ", ".join(parts)


def _time(ms: int | None) -> str:
    return "" if ms is None else f"{when(ms)[:-4]}.{ms % 1000:03d}"


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:119]}…"


_COLUMNS = (
    _Column("id", lambda one: _short(one.id), "id", code=True),
    _Column("key", lambda one: _short(one.key), code=True),
    _Column("stored", lambda one: "" if one.place is None else f"{one.lane} offset {one.place}"),
    _Column("sent", lambda one: _time(one.sent_ms), "t"),
    _Column("consumed", lambda one: _time(one.consumed_ms), "t"),
    _Column("took", lambda one: "" if one.latency_ms is None else span(one.latency_ms), "t"),
    _Column("what is known", _known),
)
