"""What queries of Spark and pipelines have done, as samples."""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgspec import Struct

from metaq.clock import SYSTEM
from metaq.histogram import Measured
from metaq.metrics import table
from metaq.metrics.metric import Sample

BOUNDS = tuple(round(base * 10.0**power, 10) for power in range(-2, 4) for base in (1, 2.5, 5))
"""Seconds of a micro-batch: 10 ms to more than an hour."""


class _Query(Struct):
    seconds: Measured
    rows: int = 0
    batches: int = 0
    behind: int | None = None
    last_ms: int = 0


class QueryFigures:
    """Counts of queries, by name. For any thread. Args: now_ms: the time."""

    def __init__(self, now_ms: Callable[[], int] = SYSTEM.now_ms) -> None:
        self._now_ms, self._queries, self._lock = now_ms, dict[str, _Query](), threading.Lock()

    def batch(self, query: str, rows: int, seconds: float | None, behind: int | None) -> None:
        """Count a micro-batch that has ended. Args: seconds: that it took; behind: messages not read yet; None: not known."""
        with self._lock:
            found = self._queries.get(query)
            if found is None:
                found = self._queries[query] = _Query(Measured(BOUNDS))
            found.batches += 1
            found.rows += rows
            found.behind, found.last_ms = behind, self._now_ms()
            if seconds is not None:
                found.seconds.add(seconds)

    def samples(self) -> list[Sample]:
        """Return the values of this moment."""
        told = list[Sample]()
        with self._lock:
            for name, query in self._queries.items():
                labels = (name,)
                told.append(Sample(table.PIPELINE_ROWS, query.rows, labels))
                told.append(Sample(table.PIPELINE_BATCHES, query.batches, labels))
                told.append(Sample(table.PIPELINE_BATCH_SECONDS, query.seconds.value(), labels))
                told.append(Sample(table.PIPELINE_LAST, query.last_ms / 1000, labels))
                if query.behind is not None:
                    told.append(Sample(table.PIPELINE_BEHIND, query.behind, labels))
        return told
