"""The ready-made pipelines as functions: `archive(spark, config)` starts one in this process.

`config` is a mapping of options, the path of a TOML file, or the pipeline's option table (`metaq pipeline describe NAME`).
A stream is returned as Spark's StreamingQuery (`awaitTermination()`, `stop()`), a job as its `Outcome` when it is done. `on_batch`
is called with a line for people and the figures of each batch, name → value, in the thread that has processed it. All raise
ConfigError: an option is wrong, or the folder is another's; StoreLocked: another run has the folder. Importing this package loads no
Spark.

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
from metaq.pipelines.run import OnBatch, Outcome, Run, RunStatus

__all__ = [
    "FolderOptions",
    "Outcome",
    "Pipeline",
    "PipelineOptions",
    "Run",
    "RunStatus",
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
    """Start `archive`: topics → Parquet, every message once (docs/archive.md). Returns the StreamingQuery.

    Raises ConfigError, StoreLocked.
    """
    return begin("archive", spark, config, on_batch)


def audit(spark: Any, config: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Run an `audit`: compare what was sent with what each group consumed (docs/audit.md). Returns its `Outcome`; exit_status 0: clean.

    Raises ConfigError, StoreLocked, NoRoute.
    """
    return begin("audit", spark, config, on_batch)


def changes(spark: Any, config: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Start `changes`: row changes → the latest state of their tables (docs/changes.md), for `metaq.spark.read_snapshot`.

    Returns the StreamingQuery. Raises ConfigError, StoreLocked.
    """
    return begin("changes", spark, config, on_batch)


def compact(config: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Merge the small files of an archive that no run writes into. Needs no Spark. Returns its `Outcome`.

    Raises ConfigError, StoreLocked; StoreCorrupt: a manifest of the archive cannot be read.
    """
    return begin("compact", None, config, on_batch)


def metrics(spark: Any, config: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Start `metrics`: figures of topics, groups and brokers per window, and alerts (docs/metrics.md). Returns the StreamingQuery.

    Raises ConfigError, StoreLocked, NoRoute.
    """
    return begin("metrics", spark, config, on_batch)


def mirror(spark: Any, config: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Start `mirror`: topics of one cluster → another (docs/mirror.md). Returns the StreamingQuery.

    Raises ConfigError, StoreLocked; NotSupported: the target is no MetaQ; StoreCorrupt: the state in the folder cannot be read.
    """
    return begin("mirror", spark, config, on_batch)


def redrive(spark: Any, config: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Run `redrive` to its end: dead letters, chosen by SQL, back to their topics, each once (docs/redrive.md). Returns its `Outcome`.

    Raises ConfigError: also if a topic to send to does not exist, or the SQL fails for a message; StoreLocked; NoRoute: the topic to
    read does not exist; NotSupported: the brokers are a RocketMQ's; what Spark raises.
    """
    return begin("redrive", spark, config, on_batch)
