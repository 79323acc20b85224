"""`metaq pipeline show`: results of pipelines, on the terminal and as a picture."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaq.amounts import size
from metaq.cli.groups import App
from metaq.cli.output import EXIT_NOT_FOUND, AsJson, iso_time, print_json
from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.pipelines.metrics.reading import MetricFigures
    from metaq.pipelines.metrics.windows import MetricWindow

app = App("Show the results of a pipeline.")

BARS = "▁▂▃▄▅▆▇█"
SPARK_CHARS = 40
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
Names = Annotated[list[str] | None, typer.Option(metavar="NAME")]


@app.callback()
def show() -> None:
    """Show the results of a pipeline."""


@app.command("metrics")
def show_metrics(
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="folder of the pipeline")],
    topic: Annotated[list[str] | None, typer.Option(metavar="NAME", help="only these topics")] = None,
    group: Annotated[list[str] | None, typer.Option(metavar="NAME", help="only these consumer groups")] = None,
    broker: Annotated[list[str] | None, typer.Option(metavar="NAME", help="only these brokers")] = None,
    last: Annotated[str, typer.Option(metavar="SPAN", help="time span up to now: 90s, 15m, 1h, 2d")] = "1h",
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also draw the figures into a PNG file (needs the extra plots)")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show rates, bytes, latencies and lag over time, including windows that are still open. Exit code 3: there are none."""
    from metaq.clock import SYSTEM
    from metaq.pipelines.metrics.reading import over_brokers, read_metrics

    seconds = seconds_of(last)
    since_ms = SYSTEM.now_ms() - round(seconds * 1000)
    labels = {"topic": topic or (), "group": group or (), "broker": broker or ()}
    found = read_metrics(folder.absolute(), since_ms=max(0, since_ms), labels=labels)
    if as_json:
        print_json(_json(found))
    else:
        _print(over_brokers(found))
    if png is not None:
        _draw(found, png)
    if not found.windows:
        raise typer.Exit(EXIT_NOT_FOUND)


def seconds_of(text: str) -> float:
    """Parse `90s`, `15m`, `1h`, `2d` to seconds. Raises ConfigError."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--last {text}: need a number with s, m, h or d behind it, such as 1h")
    return float(match[1]) * _UNITS[match[2]]


def sparkline(values: Sequence[float | None], width: int = SPARK_CHARS) -> str:
    """Return values as a line of bars; of more than `width` values a bar is the largest of its share; a blank for none."""
    if len(values) > width:
        cuts = [round(place * len(values) / width) for place in range(width + 1)]
        shares = [[one for one in values[low:high] if one is not None] for low, high in itertools.pairwise(cuts)]
        values = [max(share) if share else None for share in shares]
    top = max((one for one in values if one is not None), default=0.0)
    return "".join(
        " " if one is None else BARS[0] if top <= 0 else BARS[min(len(BARS) - 1, int(max(one, 0) / top * len(BARS)))]
        for one in values
    )


def _draw(found: MetricFigures, path: Path) -> None:
    try:
        from metaq.pipelines.metrics.plots import draw_metrics
    except ModuleNotFoundError as fault:
        if fault.name != "matplotlib":
            raise
        raise ConfigError("a picture needs matplotlib: pip install 'pymetaq[plots]'") from None
    try:
        draw_metrics(found, path)
    except OSError as fault:
        raise ConfigError(f"{path} cannot be written: {fault.strerror or fault}") from None
    print(f"drawn into {path}", file=sys.stderr)


def _print(found: MetricFigures) -> None:
    begin, end = found.span
    if not found.windows:
        print("there are no figures of that time")
        return
    print(f"{iso_time(begin)} to {iso_time(end)}, windows of {found.window_ms / 1000:g} s")
    _print_metric(
        found, "messages", True,
        ("topic", lambda s, _: s.topic), ("messages", lambda _, w: f"{w.sums.get('messages', 0):,}"),
        ("bytes", lambda _, w: size(w.sums.get("bytes", 0))),
        *_percents("born_stored", "born→stored"), rate="messages",
    )  # fmt: skip
    _print_metric(
        found, "deliveries", True,
        ("group", lambda s, _: s.group), ("topic", lambda s, _: s.topic),
        ("delivered", lambda _, w: f"{w.sums.get('deliveries', 0):,}"), ("failed", lambda _, w: f"{w.sums.get('failed', 0):,}"),
        *_percents("stored_consumed", "stored→consumed"), *_percents("born_consumed", "born→consumed", (50, 99)),
        rate="deliveries",
    )  # fmt: skip
    _print_metric(
        found, "groups", False,
        ("group", lambda s, _: s.group), ("topic", lambda s, _: s.topic),
        ("consumed", lambda _, w: f"{w.sums.get('consumed', 0):,}"),
        ("bytes", lambda _, w: size(w.sums.get("consumed_bytes", 0))),
        ("lag", lambda _, w: f"{w.last.get('lag_messages', 0):,.0f}"),
        ("lag s", lambda _, w: f"{w.last.get('lag_seconds', 0):,.1f}"),
        ("most s", lambda _, w: f"{w.most.get('lag_seconds', 0):,.1f}"), level="lag_messages",
    )  # fmt: skip
    _print_metric(
        found, "brokers", False,
        ("broker", lambda s, _: s.broker), ("put", lambda _, w: f"{w.sums.get('put_messages', 0):,}"),
        ("put bytes", lambda _, w: size(w.sums.get("put_bytes", 0))),
        ("got", lambda _, w: f"{w.sums.get('got_messages', 0):,}"), rate="put_messages",
    )  # fmt: skip
    if found.unreadable:
        print(f"\n{found.unreadable:,} trace records, since the folder was made, did not decode")
    if found.unmatched:
        print(f"\n{found.unmatched:,} traces, since the folder was made, are of messages of other topics or too old")
    _print_alerts(found)


_Cell = tuple[str, "Callable[[Any, MetricWindow], str]"]


def _percents(spread: str, name: str, percents: Sequence[int] = (50, 90, 99)) -> list[_Cell]:
    def cell(percent: int) -> Callable[[Any, MetricWindow], str]:
        def text(_series: Any, window: MetricWindow) -> str:
            value = window.spreads[spread].percentile(percent) if spread in window.spreads else None
            return "" if value is None else f"{value:,}"

        return text

    return [
        (f"{name} p{percent} ms" if percent == percents[0] else f"p{percent}", cell(percent)) for percent in percents
    ]


def _print_metric(
    found: MetricFigures, metric: str, fills: bool, *cells: _Cell, rate: str = "", level: str = ""
) -> None:
    from rich.console import Console
    from rich.table import Table

    from metaq.pipelines.metrics.windows import MetricWindow

    series = found.of(metric)
    if not series:
        return
    begin, end = found.span
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, (name, _) in enumerate(cells):
        table.add_column(name, justify="left" if number == 0 or name in {"topic", "group"} else "right", no_wrap=True)
    table.add_column(f"most/s {'':<{SPARK_CHARS - 7}}" if rate else "most", justify="left", no_wrap=True)
    for one, windows in series.items():
        whole = MetricWindow()
        for start in sorted(windows):
            whole.merge(windows[start])
        values = [
            _value(windows.get(start), rate, level, found.window_ms, fills) if found.is_over(one, start) else None
            for start in range(begin, end, found.window_ms)
        ]
        top = max((value for value in values if value is not None), default=0.0)
        table.add_row(*(text(one, whole) for _, text in cells), f"{top:>9,.1f} {sparkline(values)}")
    print()
    Console(width=None if sys.stdout.isatty() else 1000, highlight=False, markup=False).print(table)


def _value(window: MetricWindow | None, rate: str, level: str, window_ms: int, fills: bool) -> float | None:
    if window is None:
        return 0.0 if fills else None
    return window.sums.get(rate, 0) * 1000 / window_ms if rate else window.most.get(level)


def _print_alerts(found: MetricFigures) -> None:
    for rule, series in found.alerts_on:
        where = " ".join(f"{name}={value}" for name, value in series.labels.items() if value)
        print(f"\nalert: {rule} holds of {where}")
    if found.alerts:
        print("\nalerts in this time")
    for row in found.alerts:
        where = " ".join(f"{name}={row[name]}" for name in ("topic", "group", "broker") if row[name])
        value = "" if row["value"] is None else f": {row['value']:g}"
        when = iso_time(round(row["window_start"].timestamp() * 1000))
        print(f"  {when}  {row['state']:<5}  {row['rule']}  ({where}{value})")


def _json(found: MetricFigures) -> dict[str, Any]:
    seconds = found.window_ms / 1000
    return {
        "window_seconds": seconds,
        "unmatched_traces": found.unmatched,
        "unreadable_traces": found.unreadable,
        "windows": [
            {"metric": series.metric, **series.labels, "window_start": iso_time(start)}
            | windows[start].columns(series.metric, seconds)
            for series, windows in sorted(found.windows.items())
            for start in sorted(windows)
        ],
        "alerts": [
            {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in row.items()}
            for row in found.alerts
        ],
    }
