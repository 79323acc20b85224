"""An audit as an HTML page: one file with style and plots inline, no script, nothing fetched.

Names, keys and ids are whatever applications chose, HTML too: all text passes `html.escape` on its way in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from metaq.pipelines.audit.figures import KINDS, AuditFigures, Finding, GroupFigures, messages
from metaq.pipelines.audit.options import OFF, PROGRESS
from metaq.pipelines.audit.style import STYLE
from metaq.pipelines.audit.text import FIGURES_HEAD, UNKNOWN, cells, span, when

_SIDES = {
    "topic": "the messages stored in the topics", "trace": "traces", "ledger": "a ledger", "progress": "groups’ offsets"
}  # fmt: skip
# Applications choose names and keys: should markup in one slip through, the browser runs and fetches nothing of it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Page(NamedTuple):
    """A rendered report."""

    html: str
    without: str = ""
    """A sentence on missing plots; empty: none is missing."""


def render(found: AuditFigures) -> Page:
    """Render the report; without matplotlib it has no plots, and says so."""
    plots = _plots()
    without = "" if plots is not None else "the report has no plots: they need matplotlib, pip install 'pymetaq[plots]'"
    parts = [_head(found), _notes([*found.notes, *([f"{without[0].upper()}{without[1:]}."] if without else [])])]
    if found.groups:
        overview = plots.findings_by_group(found.groups) if plots is not None else ""
        parts.append(_groups(found, overview))
    for number, one in enumerate(found.groups):
        drawn: list[tuple[str, str]] = []
        if plots is not None and one.windows:
            drawn = [
                ("Sent and consumed", plots.sent_and_consumed(one.windows, found.window_ms)),
                ("Latency", plots.latencies(one.windows, found.window_ms, found.late_ms)),
            ]
        parts.append(_group(one, number, found, drawn))
    heading = "Audit: clean" if found.clean else "Audit: not clean"
    body = "\n".join(parts)
    return Page(
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(heading)}, {escape(', '.join(found.topics))}</title>\n"
        f"<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n",
        without,
    )


def _plots() -> Any:
    """Return the module of plots; None: matplotlib is not installed."""
    try:
        from metaq.pipelines.audit import plots
    except ModuleNotFoundError as fault:
        if fault.name is None or fault.name.partition(".")[0] != "matplotlib":
            raise
        return None
    return plots


def _head(found: AuditFigures) -> str:
    verdict, word = ("clean", "Clean") if found.clean else ("wrong", "Not clean")
    what = ", ".join(found.topics) or "what the ledger tells"
    since = "the beginning" if found.since_ms is None else when(found.since_ms)
    lines = "".join(f"<li>{escape(breach)}</li>" for breach in found.breaches)
    figures = [
        (f"{found.sent:,}", "sent"),
        (f"{len(found.groups):,}", "group" if len(found.groups) == 1 else "groups"),
        *((f"{sum(getattr(one.counts, kind) for one in found.groups):,}", label)
          for kind, label in KINDS.items() if kind != "stray" and not (kind == "out_of_order" and found.order == OFF)),
    ]  # fmt: skip
    shown = "".join(
        f'<div><dt>{escape(label)}</dt><dd class="{"zero" if value == "0" else ""}">{value}</dd></div>'
        for value, label in figures
    )
    return (
        f'<header>\n<p class="verdict {verdict}">{word}</p>\n<h1>{escape(what)}</h1>\n'
        f'<p class="span">Sent from <time>{escape(since)}</time> until <time>{escape(when(found.until_ms))}</time>; consumed '
        f"until <time>{escape(when(found.deadline_ms))}</time>.</p>\n"
        f'<p class="span">What was sent is known from {_SIDES[found.sent_by]}, what was consumed from '
        f"{_SIDES[found.consumed_by]}. Made {escape(found.made)}.</p>\n"
        f'{f"<ul class=breaches>{lines}</ul>" if lines else ""}\n<dl class="figures">{shown}</dl>\n</header>'
    )


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return f"<aside><h2>To judge this by</h2><ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul></aside>"


_HEADINGS = ("group", "known by", *FIGURES_HEAD)


def _groups(found: AuditFigures, overview: str) -> str:
    rows = []
    for number, one in enumerate(found.groups):
        name, by, *others = cells(one, found.order)
        marks = "".join(_number(text, bad=3 <= place < 8) for place, text in enumerate(others, 1))
        rows.append(
            f'<tr><th scope="row"><a href="#group-{number}">{escape(name)}</a></th><td>{escape(by)}</td>{marks}</tr>'
        )
    return f"<section><h2>Groups</h2>{_table(_HEADINGS, rows, texts=2)}{_figure(overview)}</section>"


def _number(text: str, *, bad: bool = False) -> str:
    kind = "zero" if text in {"0", UNKNOWN} else "bad" if bad else ""
    return f'<td class="n {kind}">{escape(text)}</td>' if kind else f'<td class="n">{escape(text)}</td>'


def _group(one: GroupFigures, number: int, found: AuditFigures, drawn: Sequence[tuple[str, str]]) -> str:
    plots = "".join(f"<h3>{escape(name)}</h3>{_figure(svg)}" for name, svg in drawn if svg)
    return (
        f'<section id="group-{number}"><h2>{escape(one.group)}</h2>\n<p>{_sentence(one, found)}</p>\n{plots}\n'
        f"{_topics(one)}\n{_keys(one)}\n{_findings(one)}</section>"
    )


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
            f"Half of them took at most {escape(span(counts.latency_p50))}, 99 % at most {escape(span(counts.latency_p99))}, the "
            f"slowest {escape(span(counts.latency_max))}."
        )
    if counts.repeated:
        again = f"; {counts.stored_twice:,} of them are stored more than once" if counts.stored_twice else ""
        parts.append(f"{messages(counts.repeated)} were consumed {counts.extra:,} times too often{again}.")
    if found.order == OFF:
        parts.append("Its order was not looked at.")
    return " ".join(parts)


def _topics(one: GroupFigures) -> str:
    if len(one.topics) < 2:
        return ""
    return "<h3>Topics</h3>" + _table(
        ("topic", *_COUNTED),
        [f'<tr><th scope="row">{escape(topic.topic)}</th>{_counted(topic.counts)}</tr>' for topic in one.topics],
        texts=1,
    )


def _keys(one: GroupFigures) -> str:
    if not one.keys:
        return ""
    rows = [
        f'<tr><th scope="row"><code>{escape(_short(key.key))}</code></th><td>{escape(key.topic)}</td>{_counted(key.counts)}</tr>'
        for key in one.keys
    ]
    return f"<h3>Keys with most findings</h3>{_table(('key', 'topic', *_COUNTED), rows, texts=2)}"


_COUNTED = ("sent", "consumed", "missing", "dead", "repeated", "out of order", "late")


def _counted(counts: object) -> str:
    names = ("sent", "consumed", "missing", "dead", "repeated", "out_of_order", "late")
    return "".join(_number(f"{getattr(counts, name):,}", bad=place > 1) for place, name in enumerate(names))


def _findings(one: GroupFigures) -> str:
    if not one.findings:
        return '<p class="none">Nothing was found to be wrong.</p>'
    parts = []
    for kind, label in KINDS.items():
        mine = [finding for finding in one.findings if finding.kind == kind]
        if not mine:
            continue
        total = one.stray if kind == "stray" else getattr(one.counts, kind)
        shown = f"the first {len(mine):,} of {total:,}" if total > len(mine) else f"{total:,}"
        columns = [column for column in _COLUMNS if any(column.cell(finding) for finding in mine)]
        rows = [f"<tr>{''.join(_cell(column, finding) for column in columns)}</tr>" for finding in mine]
        opened = " open" if kind in {"missing", "dead"} or len(one.findings) <= 12 else ""
        parts.append(
            f'<details{opened}><summary><span class="dot {kind}"></span>{label} <span class="count">{shown}</span></summary>'
            f"{_table([column.name for column in columns], rows, texts=len(columns))}</details>"
        )
    return f"<h3>Findings</h3>{''.join(parts)}"


def _cell(column: _Column, one: Finding) -> str:
    text = escape(column.cell(one))
    return f'<td class="{column.style}">{f"<code>{text}</code>" if column.code else text}</td>'


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


class _Column(NamedTuple):
    """Column of the tables of findings; a table leaves out columns that are empty in all its rows."""

    name: str
    cell: Callable[[Finding], str]
    style: str = ""
    code: bool = False


_COLUMNS = (
    _Column("id", lambda one: _short(one.id), "id", code=True),
    _Column("key", lambda one: _short(one.key), code=True),
    _Column("stored", lambda one: "" if one.place is None else f"{one.lane} offset {one.place}"),
    _Column("sent", lambda one: _time(one.sent_ms), "t"),
    _Column("consumed", lambda one: _time(one.consumed_ms), "t"),
    _Column("took", lambda one: "" if one.latency_ms is None else span(one.latency_ms), "t"),
    _Column("what is known", _known),
)


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:119]}…"


def _table(head: Sequence[str], rows: Iterable[str], texts: int) -> str:
    """Render a table. Args: texts: number of leading columns that are texts; the others are numbers."""
    names = "".join(
        f'<th scope="col"{"" if place < texts else " class=n"}>{escape(name)}</th>' for place, name in enumerate(head)
    )
    return f'<div class="wide"><table><thead><tr>{names}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _figure(svg: str) -> str:
    return f"<figure>{svg}</figure>" if svg else ""
