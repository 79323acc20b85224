"""Plots of the report: inline SVG in the page's own colours, which follow light and dark.

matplotlib knows no CSS variables, so it draws in placeholder colours, which are then replaced by the page's variables.
Needs the extra `plots`.
"""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from metaq.pipelines.audit.figures import KINDS, Counts, GroupFigures, WindowCounts
from metaq.pipelines.audit.text import span

_VARIABLES = {
    "ink": "#010101", "muted": "#010102", "grid": "#010103", "sent": "#010104", "consumed": "#010105", "missing": "#010106",
    "repeated": "#010107", "out_of_order": "#010108", "late": "#010109", "stray": "#01010a", "p50": "#01010b",
    "p95": "#01010c", "p99": "#01010d", "dead": "#01010e",
}  # fmt: skip
"""CSS variable → its placeholder colour."""
_SETTINGS = {
    # Text stays text: it can be found and read aloud, and takes the page's font.
    "svg.fonttype": "none",
    "font.size": 9.0, "text.color": _VARIABLES["ink"], "axes.labelcolor": _VARIABLES["muted"],
    "xtick.color": _VARIABLES["muted"], "ytick.color": _VARIABLES["muted"], "axes.edgecolor": _VARIABLES["grid"],
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": _VARIABLES["grid"], "grid.linewidth": 0.6, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "legend.frameon": False,
    # matplotlib takes what is between two dollars, also in a name, for a formula.
    "text.parse_math": False,
}  # fmt: skip
_WIDTH = 10.0
_TICKS_MS = (0, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 360_000_000)
_NOTHING = Counts()


def sent_and_consumed(windows: Sequence[WindowCounts], window_ms: int) -> str:
    """Draw the number of sent messages, and of those consumed, by send time. Returns SVG."""

    def draw(axes: Any) -> None:
        times, counts = _without_gaps(windows, window_ms)
        edges = _moments([*times, times[-1] + window_ms])
        sent, consumed = [one.counts.sent for one in counts], [one.counts.consumed for one in counts]
        axes.stairs(sent, edges, fill=True, color=_VARIABLES["sent"], label="sent", linewidth=0)
        axes.stairs(consumed, edges, color=_VARIABLES["consumed"], label="consumed of those", linewidth=1.4)
        lost = [one.counts.missing for one in counts]
        if any(lost):
            middles = _moments([time + window_ms // 2 for time in times])
            hit = [place for place, count in enumerate(lost) if count]
            axes.plot(
                [middles[place] for place in hit], [consumed[place] for place in hit], linestyle="none", marker="v", markersize=6,
                color=_VARIABLES["missing"], label="some are missing", clip_on=False,
            )  # fmt: skip
        axes.set_ylim(0, max([1, *sent]) * 1.08)
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_ylabel(f"messages in {span(window_ms)}")
        _time_axis(axes, edges)
        _legend(axes)

    return _svg("sent-and-consumed", 2.5, draw, "Messages sent and consumed over time")


def latencies(windows: Sequence[WindowCounts], window_ms: int, late_ms: int) -> str:
    """Draw median, 95th and 99th percentile of the latency by send time. Returns SVG; empty: no latency is known."""
    timed = [one for one in windows if one.counts.latency_p50 is not None]
    if not timed:
        return ""

    def draw(axes: Any) -> None:
        times = [one.start_ms + window_ms // 2 for one in timed]
        moments = _moments(times)
        for name, label in (("p99", "99 %"), ("p95", "95 %"), ("p50", "median")):
            values = [max(0, getattr(one.counts, f"latency_{name}") or 0) for one in timed]
            x, y = _broken(times, moments, values, window_ms)
            axes.plot(x, y, color=_VARIABLES[name], label=label, linewidth=1.5, marker="o", markersize=3)
        top = max(one.counts.latency_p99 or 0 for one in timed)
        # A limit far above all latencies would flatten the curves.
        if late_ms <= 3 * top:
            axes.axhline(late_ms, color=_VARIABLES["late"], linewidth=1, linestyle=(0, (4, 3)), label="late above")
        # Latencies go from 0 over milliseconds to hours.
        axes.set_yscale("symlog", linthresh=10, linscale=0.6)
        axes.set_ylim(0, max(10, 1.6 * top, 1.2 * late_ms if late_ms <= 3 * top else 0))
        axes.yaxis.set_major_locator(FixedLocator([time for time in _TICKS_MS if time <= axes.get_ylim()[1]]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: span(round(value))))
        axes.set_ylabel("from stored to consumed")
        edges = _moments([windows[0].start_ms, windows[-1].start_ms + window_ms])
        _time_axis(axes, edges)
        _legend(axes)

    return _svg("latencies", 2.5, draw, "Percentiles of the time from sending to consumption")


def findings_by_group(groups: Sequence[GroupFigures]) -> str:
    """Draw a bar per group, of its findings by kind. Returns SVG; empty: there are no findings."""
    totals = {one.group: _of_kinds(one) for one in groups}
    if not any(any(counts.values()) for counts in totals.values()):
        return ""

    def draw(axes: Any) -> None:
        places = range(len(groups), 0, -1)
        left = [0] * len(groups)
        for kind, label in KINDS.items():
            counts = [totals[one.group][kind] for one in groups]
            if any(counts):
                axes.barh(places, counts, left=left, height=0.62, color=_VARIABLES[kind], label=label)
                left = [before + count for before, count in zip(left, counts, strict=True)]
        for place, total in zip(places, left, strict=True):
            axes.annotate(
                f"{total:,}", (total, place), xytext=(5, 0), textcoords="offset points", va="center", color=_VARIABLES["muted"]
            )  # fmt: skip
        axes.set_yticks(list(places), [_short(one.group) for one in groups], color=_VARIABLES["ink"])
        axes.set_ylim(0.4, len(groups) + 0.6)
        axes.set_xlim(0, max(left) * 1.1)
        axes.grid(visible=False)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(length=0)
        _legend(axes)

    return _svg("findings", 0.7 + 0.34 * len(groups), draw, "Findings by group and kind")


def _of_kinds(one: GroupFigures) -> dict[str, int]:
    return {kind: one.stray if kind == "stray" else getattr(one.counts, kind) for kind in KINDS}


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:39]}…"


def _without_gaps(windows: Sequence[WindowCounts], window_ms: int) -> tuple[list[int], list[WindowCounts]]:
    """Return the windows with the empty ones between them, unless those are too many to be seen."""
    known = {one.start_ms: one for one in windows}
    first, last = min(known), max(known)
    times = sorted(known) if (last - first) // window_ms > 5000 else list(range(first, last + 1, window_ms))
    return times, [known.get(time) or WindowCounts(time, _NOTHING) for time in times]


def _broken(times: Sequence[int], moments: Sequence[Any], values: Sequence[int], window_ms: int) -> tuple[Any, Any]:
    """Return the points of a line, with NaN where a window has no value: matplotlib breaks the line there."""
    x: list[Any] = []
    y: list[float] = []
    for number, (time, moment, value) in enumerate(zip(times, moments, values, strict=True)):
        if number and time - times[number - 1] > window_ms:
            x.append(moment)
            y.append(float("nan"))
        x.append(moment)
        y.append(value)
    return x, y


def _moments(times: Sequence[int]) -> list[dt.datetime]:
    return [dt.datetime.fromtimestamp(time / 1000, dt.UTC) for time in times]


def _time_axis(axes: Any, edges: Sequence[dt.datetime]) -> None:
    locator = AutoDateLocator(minticks=3, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=True))
    axes.set_xlim(edges[0], edges[-1])
    axes.tick_params(length=0)


def _legend(axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(labels), borderaxespad=0.2,
                handlelength=1.4, columnspacing=1.6)  # fmt: skip


def _svg(name: str, height: float, draw: Callable[[Any], None], label: str) -> str:
    # A fixed salt and no date: the same figures make the same file.
    with mpl.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        # Without a background: the page's own shows, light or dark.
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        draw(axes)
        out = io.StringIO()
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    text = text[text.index("<svg ") :]
    for variable, colour in _VARIABLES.items():
        text = text.replace(colour, f"var(--{variable.replace('_', '-')})")
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
