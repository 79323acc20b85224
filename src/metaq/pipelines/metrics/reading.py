"""Reader of a `metrics` folder: published and open windows. Needs pyarrow, no Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from metaq.archive.parquet import checked_format
from metaq.errors import ConfigError
from metaq.pipelines.metrics.figures import METRICS, Metric
from metaq.pipelines.metrics.histogram import Histogram
from metaq.pipelines.metrics.state import STATE, Saved, decode
from metaq.pipelines.metrics.tables import ALERTS, date_of, moment, schemas
from metaq.pipelines.metrics.windows import MetricSeries, MetricWindow

SUMMED_LEVELS = {"lag_messages"}
"""Levels that are summed over brokers; of the others the largest counts."""


@dataclass(frozen=True)
class MetricFigures:
    """What a pipeline `metrics` has measured: its windows, those that are still open too, and its alerts. Made by `read_metrics`."""

    window_ms: int
    """Length of the windows, ms."""
    windows: dict[MetricSeries, dict[int, MetricWindow]] = field(default_factory=dict)
    """Series → beginning of a window, ms since 1970 → its figures."""
    alerts: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the partition `alerts`, oldest first."""
    alerts_on: list[tuple[str, MetricSeries]] = field(default_factory=list)
    """Rules that hold now, with their series."""
    unmatched: int = 0
    """Total of traces without a message: it is of another topic, or too old."""
    unreadable: int = 0
    """Total of trace records that did not decode."""
    over: dict[MetricSeries, int] = field(default_factory=dict)
    """MetricSeries → time up to which its windows are closed; later ones are incomplete."""

    def is_over(self, series: MetricSeries, start_ms: int) -> bool:
        """Return whether a window is closed: complete, except for late messages."""
        return start_ms < self.over.get(series, start_ms + 1)

    def of(self, metric: str) -> dict[MetricSeries, dict[int, MetricWindow]]:
        """Return the series of one metric, in order."""
        return {series: self.windows[series] for series in sorted(self.windows) if series.metric == metric}

    @property
    def span(self) -> tuple[int, int]:
        """Return the first window's beginning and the last one's end, ms since 1970; 0, 0: there are none."""
        starts = [start for windows in self.windows.values() for start in windows]
        return (min(starts), max(starts) + self.window_ms) if starts else (0, 0)


def read_metrics(
    folder: str | Path,
    *,
    since_ms: int = 0,
    labels: Mapping[str, Iterable[str]] | None = None,
) -> MetricFigures:
    """Return what the pipeline `metrics` has measured in a folder, also while it runs. Needs pyarrow, no Spark.

    Args:
        folder: that of the pipeline.
        since_ms: only windows that begin at this time or later, ms since 1970.
        labels: only series with one of these values, for the labels that they have: `{"topic": ["orders"]}`.

    Raises ConfigError: no `metrics` pipeline has run in the folder; StoreCorrupt: its state or a file cannot be read.
    """
    folder = Path(folder)
    try:
        data = (folder / STATE).read_bytes()
    except OSError:
        raise ConfigError(f"{folder} is not the folder of a metrics pipeline: there is no {STATE} in it") from None
    # The state first: windows published after this are open in it, and their files are skipped by their step's number.
    saved = decode(data, folder / STATE)
    wanted = {name: set(values) for name, values in (labels or {}).items() if values}
    found = MetricFigures(saved.window_ms, unmatched=saved.unmatched, unreadable=saved.unreadable)
    for metric in METRICS.values():
        for row in _rows(folder, metric.name, saved, since_ms):
            series = MetricSeries(metric.name, **{name: row[name] for name in metric.labels})
            if _fits(series, wanted):
                _put(found, series, _ms(row["window_start"]), _window(metric, row))
    for one in saved.open:
        if one.start_ms >= since_ms and _fits(one.series, wanted):
            _put(found, one.series, one.start_ms, one.window)
    found.over.update(saved.over)
    found.alerts.extend(
        row
        for row in sorted(_rows(folder, ALERTS, saved, since_ms), key=lambda row: row["window_start"])
        if _fits(MetricSeries(row["of"], row["topic"], row["group"], row["broker"]), wanted)
    )
    found.alerts_on.extend((one.rule, one.series) for one in saved.watched if one.on and _fits(one.series, wanted))
    return found


def over_brokers(figures: MetricFigures) -> MetricFigures:
    """Return the figures with the brokers of a topic, or of a group's topic, merged: one series for each, with no broker in it.

    Sums and lags in messages are added, latencies merged; of lags in seconds the largest counts. The metric `brokers` stays as it is.
    """
    found = MetricFigures(
        figures.window_ms,
        alerts=figures.alerts,
        alerts_on=figures.alerts_on,
        unmatched=figures.unmatched,
        unreadable=figures.unreadable,
    )
    for series, bound in figures.over.items():
        # A window is closed when it is at every broker.
        found.over[_whole(series)] = min(bound, found.over.get(_whole(series), bound))
    for series, windows in figures.windows.items():
        whole = _whole(series)
        for start, window in windows.items():
            here = found.windows.setdefault(whole, {}).setdefault(start, MetricWindow())
            levels = {name: (here.last.get(name), here.most.get(name)) for name in window.last}
            # `merge` takes the later level, as of one broker: put right below.
            here.merge(window)
            for name, (last, most) in levels.items():
                if last is not None and most is not None:
                    summed = name in SUMMED_LEVELS
                    here.last[name] = last + window.last[name] if summed else max(last, window.last[name])
                    here.most[name] = most + window.most[name] if summed else max(most, window.most[name])
    return found


def _whole(series: MetricSeries) -> MetricSeries:
    return series if series.metric == "brokers" else MetricSeries(series.metric, series.topic, series.group)


def _rows(folder: Path, partition: str, saved: Saved, since_ms: int) -> list[dict[str, Any]]:
    paths = [
        path
        for place in sorted((folder / f"metric={partition}").glob("date=*"))
        if place.name[5:] >= date_of(since_ms)
        for path in sorted(place.glob("*.parquet"))
        if int(path.stem) <= saved.step
    ]
    # The run may still be renaming the files of the state's own step.
    for staged, final in saved.files:
        if final.startswith(f"metric={partition}/") and folder / final not in paths and (folder / staged).exists():
            paths.append(folder / staged)
    if not paths:
        return []
    files = ds.dataset([str(path) for path in paths], schema=schemas()[partition], format=checked_format())
    since = pa.scalar(moment(since_ms), pa.timestamp("ms", tz="UTC"))
    rows: list[dict[str, Any]] = files.to_table(filter=ds.field("window_start") >= since).to_pylist()
    return rows


def _window(metric: Metric, row: Mapping[str, Any]) -> MetricWindow:
    window = MetricWindow({name: row[name] for name in metric.sums})
    for name in metric.levels:
        if row[name] is not None:
            window.last[name], window.most[name] = row[name], row[f"{name}_max"]
    for name in metric.spreads:
        if row[f"{name}_histogram"] is not None:
            window.spreads[name] = Histogram.decode(row[f"{name}_histogram"])
    return window


def _put(figures: MetricFigures, series: MetricSeries, start_ms: int, window: MetricWindow) -> None:
    figures.windows.setdefault(series, {}).setdefault(start_ms, MetricWindow()).merge(window)


def _fits(series: MetricSeries, wanted: Mapping[str, set[str]]) -> bool:
    return all(series.labels[name] in values for name, values in wanted.items() if name in series.labels)


def _ms(when: dt.datetime) -> int:
    return round(when.timestamp() * 1000)
