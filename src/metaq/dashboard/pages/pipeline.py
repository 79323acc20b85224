"""A pipeline, or a query of Spark: its runs, its figures, and how far it is behind in each queue."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from msgspec import Struct

from metaq.dashboard.beside.folders import FolderNotShown
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.pipelines import PipelineRow, ends_of, row_of
from metaq.errors import MetaqError

QUEUES_MAX: Final = 500
SERIES_MAX: Final = 50
MEASURED_MS: Final = 3_600_000
"""So much time is drawn of what the pipeline `metrics` has measured."""
MEASURE_SECONDS: Final = 1.5


class ReadQueue(Struct, frozen=True):
    """How far a query is in a queue. `end`, `behind`: None: not known."""

    topic: str
    broker: str
    queue: int
    position: int
    end: int | None
    behind: int | None


class Measured(Struct, frozen=True):
    """A series of the pipeline `metrics`: rates or lag over the last hour, a point each window."""

    topic: str
    group: str
    rate: float | None
    rate_points: list[float | None]
    bytes: float | None
    lag: float | None
    lag_points: list[float | None]


class Fact(Struct, frozen=True):
    name: str
    value: str


class Pipeline(Struct, frozen=True):
    """`total`: sums of this run, `last`: figures of its last batch; `earlier`: sums of the runs before. `query`: id of Spark's query; "":
    there is none. `measured`: of the pipeline `metrics` only."""

    row: PipelineRow
    run: str
    host: str
    pid: int | None
    since: str
    runs: int
    total: list[Fact]
    last: list[Fact]
    earlier: list[Fact]
    query: str
    queues: list[ReadQueue]
    queues_more: int
    measured: list[Measured]
    alerts: list[str]
    notes: list[str]


async def load(asked: Asked) -> Pipeline:
    watched = asked.sources.folders if asked.sources is not None else None
    path = asked.path["folder"]
    seen = await watched.seen() if watched is not None else []
    one = next((one for one in seen if one.path == path), None)
    if watched is None or one is None:
        raise FolderNotShown(f"{path[:300]} is no folder that this dashboard shows")
    ends, notes = await ends_of(asked, [one.query] if one.query is not None else [])
    status = one.status
    measured, alerts = list[Measured](), list[str]()
    if status is not None and status.pipeline == "metrics":
        try:
            async with asyncio.timeout(MEASURE_SECONDS):
                measured, alerts = await asyncio.to_thread(_measured, Path(path), asked.now_ms - MEASURED_MS)
        except (MetaqError, OSError) as error:  # also a timeout
            notes.append(f"what it has measured: {str(error) or 'its files are not read in time'}")
        except ImportError as error:
            notes.append(f"what it has measured: reading it needs {error.name}: pip install 'pymetaq[spark]'")
    queues = [
        ReadQueue(
            at.queue.topic, at.queue.broker, at.queue.queue_id, at.position, ends.get(at.queue),
            max(0, ends[at.queue] - at.position) if at.queue in ends else None,
        )
        for at in (one.query.queues if one.query is not None else ())
    ]  # fmt: skip
    queues.sort(key=lambda at: (-(at.behind or 0), at.topic, at.broker, at.queue))
    return Pipeline(
        row=row_of(watched, one, ends),
        run=status.run if status is not None else "",
        host=status.host if status is not None else "",
        pid=status.pid if status is not None else None,
        since=status.since if status is not None else "",
        runs=status.runs if status is not None else 0,
        total=_facts(status.total if status is not None else {}),
        last=_facts(status.last if status is not None else {}),
        earlier=_facts(status.earlier.get(status.pipeline, {}) if status is not None else {}),
        query=one.query.query if one.query is not None else "",
        queues=queues[:QUEUES_MAX],
        queues_more=max(0, len(queues) - QUEUES_MAX),
        measured=measured,
        alerts=alerts,
        notes=notes,
    )


def _facts(figures: dict[str, object] | dict[str, int]) -> list[Fact]:
    return [Fact(name, str(value)[:200]) for name, value in list(figures.items())[:100]]


def _measured(folder: Path, since_ms: int) -> tuple[list[Measured], list[str]]:
    """Return the series of the last hour, the busiest first, and the alerts that hold. Raises ConfigError, StoreCorrupt, ImportError."""
    from metaq.pipelines.metrics.reading import over_brokers, read_metrics  # Arrow, for those who have this pipeline

    figures = over_brokers(read_metrics(folder, since_ms=max(0, since_ms)))
    seconds = figures.window_ms / 1000
    found = list[Measured]()
    for metric in ("messages", "groups"):
        for series, windows in figures.of(metric).items():
            shown = [start for start in windows if figures.is_over(series, start)]
            if not shown:
                continue
            starts = range(min(shown), max(shown) + 1, figures.window_ms)
            sums = "messages" if metric == "messages" else "consumed"
            rates: list[float | None] = [
                windows[start].sums.get(sums, 0) / seconds if start in windows else None for start in starts
            ]
            lags = [windows[start].last.get("lag_messages") if start in windows else None for start in starts]
            last = windows[max(shown)]
            size = last.sums.get("bytes" if metric == "messages" else "consumed_bytes", 0) / seconds
            found.append(
                Measured(
                    series.topic, series.group, rates[-1], rates, size, last.last.get("lag_messages"),
                    lags if metric == "groups" else [],
                )
            )  # fmt: skip
    found.sort(key=lambda one: -max((rate or 0 for rate in one.rate_points), default=0))
    alerts = [f"{rule}: {' '.join(filter(None, series.labels.values()))}" for rule, series in figures.alerts_on]
    return found[:SERIES_MAX], alerts[:SERIES_MAX]


PAGE = Page(
    name="pipeline", path="/pipelines/{folder:path}", title="{folder}", under="pipelines", values=Pipeline, load=load
)
