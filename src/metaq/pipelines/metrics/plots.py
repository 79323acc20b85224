"""Plots of `metaq pipeline show metrics --png`: rates, bytes, latencies and lag over time. Needs matplotlib (extra `plots`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from metaq.pipelines.metrics.reading import MetricFigures, over_brokers
from metaq.pipelines.metrics.tables import moment
from metaq.pipelines.metrics.windows import MetricSeries, MetricWindow

LINES_MAX: Final = 8
"""Lines per panel: those with the largest values; the title has the number of the others."""
# Okabe and Ito's colours, which the colour-blind can tell apart, without their yellow, which is too light for a line.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F3C8D", "#4D4D4D")
_GREY: Final = "#6b6b6b"


class Panel(NamedTuple):
    """One set of axes. `value`: of a window; None: a gap in the line. `low`: a second, thinner line of the same series."""

    title: str
    metric: str
    column: str
    """Prefix of its columns: alerts of rules on them are marked in it."""
    value: Callable[[MetricWindow, float], float | None]
    low: Callable[[MetricWindow, float], float | None] | None = None
    fills: bool = False
    """Whether a window without a row is 0."""


def _rate(name: str) -> Callable[[MetricWindow, float], float | None]:
    return lambda window, seconds: window.sums.get(name, 0) / seconds


def _spread(name: str, percent: int) -> Callable[[MetricWindow, float], float | None]:
    return lambda window, _seconds: window.spreads[name].percentile(percent) if name in window.spreads else None


def _level(name: str) -> Callable[[MetricWindow, float], float | None]:
    return lambda window, _seconds: window.most.get(name)


PANELS: Final = (
    Panel("Messages stored per second", "messages", "messages", _rate("messages"), fills=True),
    Panel("Bytes stored per second", "messages", "bytes", _rate("bytes"), fills=True),
    Panel("Born → stored, ms", "messages", "born_stored", _spread("born_stored", 99), _spread("born_stored", 50)),
    Panel("Messages consumed per second", "groups", "consumed", _rate("consumed")),
    Panel(
        "Stored → consumed, ms", "deliveries", "stored_consumed",
        _spread("stored_consumed", 99), _spread("stored_consumed", 50),
    ),
    Panel(
        "Born → consumed, ms", "deliveries", "born_consumed", _spread("born_consumed", 99), _spread("born_consumed", 50)
    ),
    Panel("Lag, messages", "groups", "lag_messages", _level("lag_messages")),
    Panel("Lag, seconds", "groups", "lag_seconds", _level("lag_seconds")),
)  # fmt: skip
"""Panels of the picture. Latencies: the 99th percentile, and the median as a thinner line."""


def draw_metrics(figures: MetricFigures, path: str | Path) -> None:
    """Draw rates, latencies and lag over time, with the times of alerts, into a PNG file: a panel for each figure with values.

    This is what `metaq pipeline show metrics --png` draws. Windows that are still open are not in the curves. Needs the extra `plots`.

    Args: figures: what `read_metrics` returns. path: the file, which is replaced if it exists.

    Raises OSError: the file cannot be written.
    """
    shown = over_brokers(figures)
    panels = [panel for panel in PANELS if shown.of(panel.metric)]
    rows = max(1, (len(panels) + 1) // 2)
    picture = Figure(figsize=(14, 1.0 + 2.8 * rows), dpi=110, layout="constrained")
    picture.get_layout_engine().set(h_pad=0.1, w_pad=0.12)  # type: ignore[union-attr, call-arg]
    picture.suptitle(_title(shown, panels), fontsize=12, fontweight="bold", x=0.01, ha="left")
    begin, end = shown.span
    grid = picture.add_gridspec(rows, 2)
    for place, panel in enumerate(panels):
        whole = len(panels) == place + 1 and place % 2 == 0
        axes = picture.add_subplot(grid[place // 2, :] if whole else grid[place // 2, place % 2])
        _panel(axes, panel, shown)
        axes.set_xlim(moment(begin), moment(end))  # type: ignore[arg-type]
        _alerts(axes, panel, shown)
    picture.savefig(path, format="png")


def _title(figures: MetricFigures, panels: Sequence[Panel]) -> str:
    if not panels:
        return "Nothing was measured in this time"
    begin, end = map(moment, figures.span)
    until = f"{end:%H:%M:%S}" if end.date() == begin.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    told = [f"{begin:%Y-%m-%d %H:%M:%S} to {until} UTC, windows of {figures.window_ms / 1000:g} s"]
    if any(panel.low for panel in panels):
        told.append("latencies: p99, thin p50")
    if figures.alerts:
        told.append("red: alerts")
    return "; ".join(told)


def _panel(axes: Axes, panel: Panel, figures: MetricFigures) -> None:
    lines = {series: _points(panel.value, panel, series, figures) for series in figures.of(panel.metric)}
    largest = sorted(lines, key=lambda series: -max((y for y in lines[series][1] if y is not None), default=0))
    chosen = sorted(largest[:LINES_MAX])
    for number, series in enumerate(chosen):
        colour = _COLOURS[number % len(_COLOURS)]
        times, values = lines[series]
        axes.plot(
            times, _gaps(values), color=colour, linewidth=1.6, label=_name(series), marker=_marker(values), markersize=3,
            # Every other line is dashed: where two coincide, the lower one shows in the gaps.
            linestyle="-" if number % 2 == 0 else (0, (7, 1.5)),
        )  # fmt: skip
        if panel.low is not None:
            times, values = _points(panel.low, panel, series, figures)
            axes.plot(times, _gaps(values), color=colour, linewidth=0.8, alpha=0.8)
    more = len(lines) - len(chosen)
    axes.set_title(
        panel.title + (f" (and {more} smaller)" if more else ""), loc="left", fontsize=10.5, fontweight="bold"
    )
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=panel.column == "lag_messages"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: short(value)))
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    locator = AutoDateLocator(minticks=4, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))
    axes.tick_params(length=0, labelsize=8.5, colors=_GREY)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    for name, side in axes.spines.items():
        side.set_visible(name == "bottom")
        side.set_color("#c8c8c8")
    columns = min(len(chosen), 4)
    axes.legend(
        fontsize=8.5, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.985), ncols=columns, handlelength=1.6,
        columnspacing=1.2, borderaxespad=0.0,
    )  # fmt: skip


def _points(
    value: Callable[[MetricWindow, float], float | None], panel: Panel, series: MetricSeries, figures: MetricFigures
) -> tuple[list[Any], list[float | None]]:
    """Return middles of windows, and values; None where a window has none, or is still open."""
    step, windows = figures.window_ms, figures.windows[series]
    begin, end = figures.span if panel.fills else (min(windows), max(windows) + step)
    times, values = list[Any](), list[float | None]()
    for start in range(begin, end, step):
        window, found = windows.get(start), None
        if figures.is_over(series, start):
            found = value(window, step / 1000) if window is not None else 0.0 if panel.fills else None
        times.append(moment(start + step // 2))
        values.append(found)
    return times, values


def _gaps(values: list[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _marker(values: list[float | None]) -> str:
    """Return a marker if some point has no neighbour, because no line would show it; else none."""
    lone = [
        value is not None
        and (place == 0 or values[place - 1] is None)
        and (place + 1 == len(values) or values[place + 1] is None)
        for place, value in enumerate(values)
    ]
    return "o" if any(lone) else ""


def _alerts(axes: Axes, panel: Panel, figures: MetricFigures) -> None:
    """Draw a red background where a rule on this figure held."""
    begun: dict[str, Any] = {}
    ended = moment(figures.span[1])
    for row in figures.alerts:
        if row["of"] != panel.metric or not row["column"].startswith(panel.column):
            continue
        if row["state"] == "begin":
            begun[row["id"]] = row["since"]
        else:
            _ground(axes, begun.pop(row["id"], row["since"]), row["window_start"])
    for since in begun.values():
        _ground(axes, since, ended)


def _ground(axes: Axes, begin: Any, end: Any) -> None:
    axes.axvspan(begin, end, color="#d62728", alpha=0.10, linewidth=0)


def _name(series: MetricSeries) -> str:
    return " · ".join(filter(None, (series.group, series.topic))) or series.broker


def short(value: float) -> str:
    """Return a number for an axis: `950`, `1.2 k`, `34 M`."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"
