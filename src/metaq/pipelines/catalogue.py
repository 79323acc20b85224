"""The ready-made pipelines: summary, options and module of each. Loads neither Spark nor the pipelines' modules."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from metaq.errors import ConfigError
from metaq.option_table import nearest
from metaq.pipelines.archive.options import ArchiveOptions
from metaq.pipelines.audit.options import AuditOptions
from metaq.pipelines.changes.options import ChangesOptions
from metaq.pipelines.compact.options import CompactOptions
from metaq.pipelines.metrics.options import MetricsOptions
from metaq.pipelines.mirror.options import MirrorOptions
from metaq.pipelines.options import PipelineOptions
from metaq.pipelines.redrive.options import RedriveOptions
from metaq.pipelines.uris import is_uri, plain_path

if TYPE_CHECKING:
    from metaq.pipelines.run import Run


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One kind of pipeline."""

    name: str
    """Name of the pipeline, as in `metaq pipeline run NAME`."""
    summary: str
    """A sentence, for lists."""
    options: type[PipelineOptions]
    """Table of its options."""
    home: str | Callable[[Any, Any, Run], Any]
    """Module of this package that has `start`; of a user's own pipeline, its `start` function."""
    prepare: Callable[[Any], None] | None = None
    """Checks that need no Spark, called while the run has the folder's lease: they fail before Spark takes seconds to start."""
    needs_spark: bool = True
    """False: no session is made, and `start` gets None."""

    def start(self, spark: Any, options: PipelineOptions, run: Run) -> Any:
        """Start the work. The run has the lease of the pipeline's folder.

        Returns: a StreamingQuery, or, where the work is done when this returns, an `Outcome`.
        Raises: MetaqError: it cannot be done; ModuleNotFoundError: an extra is not installed.
        """
        if callable(self.home):
            return self.home(spark, options, run)
        return importlib.import_module(f"metaq.pipelines.{self.home}").start(spark, options, run)


def _prepare_archive(options: ArchiveOptions) -> None:
    from metaq.archive.folder import ArchiveFolder
    from metaq.pipelines.compact.tabling import tables_of

    if is_uri(options.output):
        return  # Only the JVM's Hadoop client can look there.
    folder = ArchiveFolder(plain_path(options.output), options.staging)
    folder.prepare()
    tables_of(folder, options.table_format, options.grace_seconds)


def _prepare_changes(options: ChangesOptions) -> None:
    if options.target:
        from metaq.pipelines.changes.to_database import try_to_reach
        from metaq.sql.address import address_of

        try_to_reach(address_of(options.target, options.password_env, os.environ))


def _prepare_redrive(options: RedriveOptions) -> None:
    from metaq.pipelines.redrive.topics import check_source

    check_source(options)


def _prepare_metrics(options: MetricsOptions) -> None:
    from metaq.pipelines.metrics.folder import check_place

    check_place(options.place, options.window_ms)


PIPELINES: dict[str, Pipeline] = {
    one.name: one
    for one in (
        Pipeline(
            "archive",
            "Write topics to Parquet files by topic and day, every message once.",
            ArchiveOptions,
            "archive.service",
            _prepare_archive,
        ),
        Pipeline(
            "audit",
            "Compare what was sent with what each group consumed: missing, repeated, late, out of order.",
            AuditOptions,
            "audit.job",
        ),
        Pipeline(
            "changes",
            "Apply row changes of databases, as Canal and Debezium write them, to the latest state of the tables.",
            ChangesOptions,
            "changes.service",
            _prepare_changes,
        ),
        Pipeline(
            "compact",
            "Merge the small files of an archive, and delete dates after their retention time.",
            CompactOptions,
            "compact.service",
            needs_spark=False,
        ),
        Pipeline(
            "redrive",
            "Send dead letters, chosen by SQL, back to their topics or to another one, each once.",
            RedriveOptions,
            "redrive.job",
            _prepare_redrive,
        ),
        Pipeline(
            "metrics",
            "Compute rates, bytes, latencies and lag of topics, groups and brokers by time window, with alerts by rules.",
            MetricsOptions,
            "metrics.service",
            _prepare_metrics,
        ),
        Pipeline(
            "mirror",
            "Copy topics of one cluster, of RocketMQ or MetaQ, into another, with their order and the progress of groups.",
            MirrorOptions,
            "mirror.service",
        ),
    )
}


def pipeline(name: str) -> Pipeline:
    """Return the pipeline of a name. Raises ConfigError: there is none; the text proposes the nearest name."""
    if name not in PIPELINES:
        raise ConfigError(f"there is no pipeline {name}{nearest(name, PIPELINES)}; there are {', '.join(PIPELINES)}")
    return PIPELINES[name]


def load(path: str | Path) -> Pipeline:
    """Run a user's Python file (`metaq pipeline init` writes one) and return its `PIPELINE`.

    Raises ConfigError: the file cannot be read, fails, or has no PIPELINE.
    """
    place = Path(path).absolute()
    if not place.is_file():
        raise ConfigError(f"there is no file {place}: a pipeline of your own is a Python file (metaq pipeline init)")
    spec = importlib.util.spec_from_file_location(place.stem, place)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A file called `json.py` would take the place of the module that others import.
    if place.stem in sys.modules:
        raise ConfigError(f"{place}: a module {place.stem} is loaded already; give the file another name")
    sys.modules[place.stem] = module  # Before it runs: dataclasses look their module up.
    try:
        spec.loader.exec_module(module)
    except Exception as fault:
        del sys.modules[place.stem]
        raise ConfigError(f"{place} cannot be loaded: {type(fault).__name__}: {fault}") from fault
    found = getattr(module, "PIPELINE", None)
    if not isinstance(found, Pipeline) or not callable(found.home):
        del sys.modules[place.stem]
        raise ConfigError(f"{place} has no PIPELINE = Pipeline(name, summary, options, start)")
    return Pipeline(found.name, found.summary, found.options, _Start(module, found.home), found.prepare)


class _Start:
    """Calls the file's `start`. Workers cannot import the file, so its functions are pickled by value."""

    def __init__(self, module: ModuleType, start: Any) -> None:
        self._module, self._start = module, start

    def __call__(self, spark: Any, options: PipelineOptions, run: Run) -> Any:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(self._module)
        return self._start(spark, options, run)
