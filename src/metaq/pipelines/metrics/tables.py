"""Windows and alerts as Arrow tables: the columns of the Parquet files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from metaq.pipelines.metrics.alerts import Alert
from metaq.pipelines.metrics.figures import METRICS, Metric
from metaq.pipelines.metrics.state import Closed

ALERTS: Final = "alerts"
"""Partition of alerts, beside those of the metrics."""
_TIME = pa.timestamp("ms", tz="UTC")
_LABELS = [pa.field(name, pa.string()) for name in ("topic", "group", "broker")]
_ALERT_SCHEMA = pa.schema(
    [
        pa.field("window_start", _TIME), pa.field("since", _TIME), pa.field("id", pa.string()),
        pa.field("state", pa.string()), pa.field("rule", pa.string()), pa.field("of", pa.string()),
        pa.field("column", pa.string()), pa.field("value", pa.float64()), pa.field("threshold", pa.float64()), *_LABELS,
    ]
)  # fmt: skip
"""Schema of alerts. `of`: the metric, because `metric` is the name of the partition column."""


def schema_of(metric: Metric) -> pa.Schema:
    """Return the columns of a metric's files."""
    whole = {*metric.sums}
    return pa.schema(
        [
            pa.field("window_start", _TIME),
            pa.field("window_seconds", pa.float64()),
            *(field for field in _LABELS if field.name in metric.labels),
            *(pa.field(name, pa.int64() if name in whole else pa.float64()) for name in metric.columns),
            *(pa.field(f"{spread}_histogram", pa.binary()) for spread in metric.spreads),
            pa.field("late", pa.bool_()),
        ]
    )


def schemas() -> dict[str, pa.Schema]:
    """Return partition → schema of its files."""
    return {name: schema_of(metric) for name, metric in METRICS.items()} | {ALERTS: _ALERT_SCHEMA}


def tables_of(closed: Iterable[Closed], alerts: Iterable[Alert], window_ms: int) -> dict[tuple[str, str], pa.Table]:
    """Return (metric, date) → table, in the order of windows. The date is that of a window's beginning, UTC."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in closed:
        rows.setdefault((one.series.metric, date_of(one.start_ms)), []).append(row_of(one, window_ms))
    for alert in alerts:
        rows.setdefault((ALERTS, date_of(alert.window_ms)), []).append(_alert_row(alert))
    known = schemas()
    return {
        key: pa.Table.from_pylist(sorted(some, key=lambda row: row["window_start"]), schema=known[key[0]])
        for key, some in sorted(rows.items())
    }


def row_of(one: Closed, window_ms: int) -> dict[str, Any]:
    """Return a window as a row."""
    spreads: Mapping[str, Any] = {
        f"{name}_histogram": histogram.encode() for name, histogram in one.window.spreads.items() if histogram.count
    }
    return {
        "window_start": moment(one.start_ms), "window_seconds": window_ms / 1000, "late": one.late,
        **one.series.labels, **one.window.columns(one.series.metric, window_ms / 1000), **spreads,
    }  # fmt: skip


def _alert_row(alert: Alert) -> dict[str, Any]:
    return {
        "window_start": moment(alert.window_ms), "since": moment(alert.since_ms), "id": alert.id, "state": alert.state,
        "rule": alert.rule, "of": alert.metric, "column": alert.column, "value": alert.value,
        "threshold": alert.threshold, "topic": alert.topic, "group": alert.group, "broker": alert.broker,
    }  # fmt: skip


_FIRST, _LAST = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC)


def moment(ms: int) -> dt.datetime:
    """Convert ms since 1970 to a time, bounded to what a file can have: a broker's clock may be far off."""
    return min(_FIRST + dt.timedelta(milliseconds=min(max(ms, 0), 253_402_214_400_000)), _LAST)


def date_of(ms: int) -> str:
    return moment(ms).date().isoformat()
