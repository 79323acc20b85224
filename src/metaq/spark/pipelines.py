"""The ready-made pipelines as functions: `archive(spark, config)` starts one in this process.

`config` is a mapping of options, the path of a TOML file, or the pipeline's option table (`metaq pipeline describe NAME`).
A stream is returned as Spark's StreamingQuery, a job as its `Outcome`. Importing this package loads no Spark.

`Pipeline`, `FolderOptions`, `StreamOptions`, `option`, `Run` and `Outcome` are what a pipeline of one's own is made of
(docs/pipelines.md); `begin` starts it.
"""

from __future__ import annotations

from typing import Any

from metaq.option_table import option
from metaq.pipelines.catalogue import Pipeline
from metaq.pipelines.configuration import ConfigLike
from metaq.pipelines.driver import begin
from metaq.pipelines.options import FolderOptions, PipelineOptions, StreamOptions
from metaq.pipelines.run import OnBatch, Outcome, Run

__all__ = [
    "FolderOptions",
    "Outcome",
    "Pipeline",
    "PipelineOptions",
    "Run",
    "StreamOptions",
    "archive",
    "audit",
    "begin",
    "changes",
    "compact",
    "metrics",
    "mirror",
    "option",
    "redrive",
]


def archive(spark: Any, config: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Start `archive`: topics → Parquet, every message once. Raises ConfigError, StoreLocked."""
    return begin("archive", spark, config, on_batch)


def audit(spark: Any, config: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Run an `audit`: compare what was sent with what each group consumed. Returns its `Outcome`; exit_status 0: clean.

    Raises ConfigError, StoreLocked, NoRoute.
    """
    return begin("audit", spark, config, on_batch)


def changes(spark: Any, config: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Start `changes`: row changes → the latest state of their tables. Raises ConfigError, StoreLocked."""
    return begin("changes", spark, config, on_batch)


def compact(config: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Merge the small files of an archive that no run writes into. Needs no Spark. Returns its `Outcome`.

    Raises: ConfigError, StoreLocked, StoreCorrupt.
    """
    return begin("compact", None, config, on_batch)


def metrics(spark: Any, config: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Start `metrics`: figures of topics, groups and brokers per window, and alerts. Raises ConfigError, StoreLocked, NoRoute."""
    return begin("metrics", spark, config, on_batch)


def mirror(spark: Any, config: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Start `mirror`: topics of one cluster → another. Raises ConfigError, StoreLocked, NotSupported, StoreCorrupt."""
    return begin("mirror", spark, config, on_batch)


def redrive(spark: Any, config: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Run `redrive` to its end: dead letters, chosen by SQL, back to their topics, each once. Returns its `Outcome`.

    Raises ConfigError, StoreLocked, and as `metaq.pipelines.redrive.job.start`.
    """
    return begin("redrive", spark, config, on_batch)
