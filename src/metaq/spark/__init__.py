"""MetaQ and Spark: `format("metaq")`, a session that needs no Java installed, and ready-made pipelines.

Importing this package loads neither pyspark nor Java; the names below do so when they are first used. It lets Spark's
workers run this Python (`metaq.spark.interpreter`), so import it before a session is made by other means than `session`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metaq.errors import ConfigError
from metaq.spark import interpreter
from metaq.spark.engine.java import Java, find_java

if TYPE_CHECKING:
    from metaq.pipelines.archive.repeats import without_repeats
    from metaq.pipelines.archive.service import ArchivedBatch, archive
    from metaq.pipelines.archive.tables import table
    from metaq.pipelines.changes.snapshot import Snapshot, read_snapshot, snapshot
    from metaq.pipelines.metrics.histogram import Histogram
    from metaq.pipelines.metrics.plots import draw_metrics
    from metaq.pipelines.metrics.reading import MetricFigures, over_brokers, read_metrics
    from metaq.pipelines.metrics.windows import MetricSeries, MetricWindow
    from metaq.spark import decode
    from metaq.spark.engine.session import session
    from metaq.spark.source.listener import ProgressListener
    from metaq.spark.source.metrics_listener import MetricsListener
    from metaq.spark.source.progress import Lag, QueueLag, lag

__all__ = [
    "ArchivedBatch",
    "Histogram",
    "Java",
    "Lag",
    "MetricFigures",
    "MetricSeries",
    "MetricWindow",
    "MetricsListener",
    "ProgressListener",
    "QueueLag",
    "Snapshot",
    "archive",
    "decode",
    "draw_metrics",
    "find_java",
    "lag",
    "over_brokers",
    "read_metrics",
    "read_snapshot",
    "session",
    "snapshot",
    "table",
    "without_repeats",
]

_HOMES = {
    "ArchivedBatch": "metaq.pipelines.archive.service",
    "Histogram": "metaq.pipelines.metrics.histogram",
    "Lag": "metaq.spark.source.progress",
    "MetricFigures": "metaq.pipelines.metrics.reading",
    "MetricSeries": "metaq.pipelines.metrics.windows",
    "MetricWindow": "metaq.pipelines.metrics.windows",
    "MetricsListener": "metaq.spark.source.metrics_listener",
    "ProgressListener": "metaq.spark.source.listener",
    "QueueLag": "metaq.spark.source.progress",
    "Snapshot": "metaq.pipelines.changes.snapshot",
    "archive": "metaq.pipelines.archive.service",
    "decode": "metaq.spark.decode",
    "draw_metrics": "metaq.pipelines.metrics.plots",
    "lag": "metaq.spark.source.progress",
    "over_brokers": "metaq.pipelines.metrics.reading",
    "read_metrics": "metaq.pipelines.metrics.reading",
    "read_snapshot": "metaq.pipelines.changes.snapshot",
    "session": "metaq.spark.engine.session",
    "snapshot": "metaq.pipelines.changes.snapshot",
    "table": "metaq.pipelines.archive.tables",
    "without_repeats": "metaq.pipelines.archive.repeats",
}

_EXTRAS = {"matplotlib": "plots"}
"""Package → the extra that brings it; all others are in `spark`."""

interpreter.prefer_this_python()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        home = importlib.import_module(_HOMES[name])
        # `decode` is a submodule itself, the others are names in a module.
        return home if home.__name__ == f"{__name__}.{name}" else getattr(home, name)
    except ModuleNotFoundError as fault:
        # A missing module of ours is a bug; any other is one that an extra brings.
        if fault.name is None or fault.name.startswith("metaq"):
            raise
        needed = fault.name.partition(".")[0]
        extra = _EXTRAS.get(needed, "spark")
        raise ConfigError(f"metaq.spark.{name} needs {needed}: pip install 'pymetaq[{extra}]'") from fault
