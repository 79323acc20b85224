"""The ready-made pipelines as functions: `archive(spark, config)` starts one in this process.

`config` is a mapping of options, the path of a TOML file, or the pipeline's option table (`metaq pipeline describe NAME`).
A stream is returned as Spark's StreamingQuery, a job as its `Outcome`. Importing this package loads no Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from metaq.spark.pipelines.options import PipelineOptions


def archive(
    spark: Any,
    config: Mapping[str, Any] | str | Path | PipelineOptions,
    on_batch: Callable[[str, Mapping[str, Any]], None] | None = None,
) -> Any:
    """Start `archive`: topics → Parquet, every message once. Raises ConfigError, StoreLocked."""
    from metaq.spark.pipelines.driver import begin

    return begin("archive", spark, config, on_batch)
