"""Target: the Parquet snapshot. Tasks rewrite the buckets, the driver commits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel, TaskContext
from pyspark.sql import functions as sql

from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError
from metaq.pipelines.changes.bucket import Rewriting, rewrite
from metaq.pipelines.changes.change import Sequence_
from metaq.pipelines.changes.folding import KEY
from metaq.pipelines.changes.options import ChangesOptions
from metaq.pipelines.changes.reading import (
    CHANGE,
    ORDER,
    PROBLEM,
    ROW_DDL,
    ROW_SCHEMA,
    Notes,
    change_in,
    problem_in,
    problem_row,
    touch_row,
)
from metaq.pipelines.changes.snapshot import BucketFiles, Manifest, SnapshotFolder, TableState
from metaq.pipelines.changes.target import Applied, Judge, joined_columns

_RESULT_DDL = (
    ROW_DDL + ", path string, rows bigint, gone string, applied bigint, puts bigint, deletes bigint, repeats bigint"
)
_RESULT_SCHEMA = pa.schema([
    *ROW_SCHEMA,
    pa.field("path", pa.string()), pa.field("rows", pa.int64()), pa.field("gone", pa.string()),
    pa.field("applied", pa.int64()), pa.field("puts", pa.int64()), pa.field("deletes", pa.int64()),
    pa.field("repeats", pa.int64()),
])  # fmt: skip
BUCKET = "bucket"
"""`note` of a bucket's result row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketWriter:
    """Second function for `mapInArrow`: changes sorted by table and bucket in, a result per bucket out."""

    batch: Rewriting

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
        for (table, bucket), group in itertools.groupby(rows, lambda row: (row["source"], row["bucket"])):
            yield self.write(table, bucket, group, attempt)

    def write(self, table: str, bucket: int, rows: Iterator[dict[str, Any]], attempt: int) -> pa.RecordBatch:
        changes = (change_in(row) for row in rows if row["note"] == CHANGE)
        done = rewrite(self.batch, table, bucket, changes, attempt)
        result = {
            "note": BUCKET, "source": table, "bucket": bucket, "path": done.files.path, "rows": done.files.rows,
            "gone": done.files.gone, "applied": done.applied, "puts": done.puts, "deletes": done.deletes,
            "repeats": done.repeats,
        }  # fmt: skip
        return pa.RecordBatch.from_pylist([result, *map(problem_row, done.problems)], schema=_RESULT_SCHEMA)


class SnapshotTarget:
    """Target in a Parquet snapshot."""

    def __init__(self, place: Path, options: ChangesOptions, clock: Clock = SYSTEM) -> None:
        """
        Args:
            place: the pipeline's folder.
            options: of the pipeline.
            clock: times of generations and deletions.

        Raises: ConfigError: the folder cannot be created, or its snapshot has another number of buckets. StoreCorrupt.
        """
        self._folder, self._options, self._clock = SnapshotFolder(place), options, clock
        self._folder.prepare()
        self._known = self._folder.last()
        if self._known is not None and self._known.buckets != options.buckets:
            raise ConfigError(
                f"the snapshot in {self._folder.path} has {self._known.buckets} buckets, which stay: set buckets = "
                f"{self._known.buckets}, or begin in another folder"
            )
        # Files of a batch that a crash kept from being committed.
        self._clean()

    def guard(self, checkpoint: Path) -> None:
        self._folder.guard(checkpoint)

    @property
    def last(self) -> dict[str, Sequence_]:
        return {name: tuple(numbers) for name, numbers in (self._known.last if self._known else {}).items()}

    def has(self, query: str, batch: int) -> bool:
        known = self._known
        if known is None or known.query != query or known.batch < batch:
            return False
        if known.batch > batch:
            raise ConfigError(
                f"the snapshot in {self._folder.path} has batch {known.batch}, and the checkpoint is about to do batch {batch}: "
                "it is an older copy. Give the newest checkpoint, or begin in another folder"
            )
        return True

    def apply(self, query: str, batch: int, rows: Any, judge: Judge) -> Applied:
        """Apply a batch, a DataFrame of `ROW_SCHEMA`."""
        # Two actions use the rows, notes and changes; without this the second would fetch the messages again.
        rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            return self._apply(query, batch, rows, judge)
        finally:
            rows.unpersist()

    def _apply(self, query: str, batch: int, rows: Any, judge: Judge) -> Applied:
        notes = Notes.of(rows.where(sql.col("note") != CHANGE).toArrow().to_pylist())
        # Before any bucket is written: these problems are found while queues are read.
        judge(notes.problems, last=False)
        if not notes.messages:
            return Applied()
        work, touched = self.plan(notes)
        results = self._written(rows, work, touched) if notes.keys else []
        problems = [*notes.problems, *(problem_in(row) for row in results if row["note"] == PROBLEM)]
        judge(problems, last=True)
        total = self.commit(query, batch, work, notes, [row for row in results if row["note"] == BUCKET])
        return Applied(**total, messages=notes.messages, others=notes.others, problems=problems)

    def plan(self, notes: Notes) -> tuple[Rewriting, list[tuple[str, int]]]:
        """Return the parameters of all buckets of a batch, and (table, bucket) of those to rewrite without a change.

        Raises: ConfigError: as `joined_columns`.
        """
        tables = self._tables
        columns, widened = joined_columns(
            {name: table.columns for name, table in tables.items()},
            {name: tuple(table.key) for name, table in tables.items()},
            notes,
        )
        now = self._clock.now_ms()
        work = Rewriting(
            folder=str(self._folder.path),
            generation=self._known.generation + 1 if self._known is not None else 1,
            columns=columns,
            buckets={
                name: {number: (files.path, files.gone) for number, files in table.buckets.items()}
                for name, table in tables.items()
            },
            by_key=self._options.sequence_scope == KEY,
            dense=self._options.dense,
            now_ms=now,
            forget_ms=now - round(self._options.forget_deleted_seconds * 1000),
        )
        return work, [(name, number) for name in sorted(widened) for number in tables[name].buckets]

    def commit(
        self, query: str, batch: int, work: Rewriting, notes: Notes, done: list[dict[str, Any]]
    ) -> dict[str, int]:
        """Commit the tasks' files as the newest generation. Args: done: a row per bucket. Returns the sums of their figures."""
        fresh = {
            (row["source"], row["bucket"]): BucketFiles(path=row["path"], rows=row["rows"], gone=row["gone"])
            for row in done
        }
        manifest = Manifest(
            generation=work.generation, query=query, batch=batch, buckets=self._options.buckets, written_ms=work.now_ms,
            tables=next_tables(self._tables, notes, work.columns, fresh),
            last={**(self._known.last if self._known is not None else {}), **notes.last},
        )  # fmt: skip
        self._folder.commit(manifest, {path for one in fresh.values() for path in (one.path, one.gone) if path})
        self._known = manifest
        self._clean()
        total = {name: sum(row[name] for row in done) for name in ("applied", "puts", "deletes", "repeats")}
        total["repeats"] += notes.repeats
        return total

    @property
    def _tables(self) -> dict[str, TableState]:
        return self._known.tables if self._known is not None else {}

    def _written(self, rows: Any, work: Rewriting, touched: list[tuple[str, int]]) -> list[dict[str, Any]]:
        session = rows.sparkSession
        changes = rows.where(sql.col("note") == CHANGE)
        if touched:
            more = [tuple(touch_row(*one).values()) for one in touched]
            changes = changes.unionByName(session.createDataFrame(more, ROW_DDL))
        parts = min(session.sparkContext.defaultParallelism * 4, self._options.buckets)
        # The writer goes through a bucket in one pass: its rows lie side by side, in the order of their queue.
        changes = changes.repartition(parts, "source", "bucket").sortWithinPartitions(*ORDER)
        found: list[dict[str, Any]] = changes.mapInArrow(BucketWriter(batch=work), _RESULT_DDL).toArrow().to_pylist()
        return found

    def _clean(self) -> None:
        now = self._clock.now_ms()
        since = now - round(self._options.keep_seconds * 1000)
        self._folder.clean(generations=self._options.keep_generations, since_ms=since, now_ms=now)

    def close(self) -> None:
        """Do nothing: no file stays open."""


def next_tables(
    before: Mapping[str, TableState],
    notes: Notes,
    columns: Mapping[str, Mapping[str, str]],
    fresh: Mapping[tuple[str, int], BucketFiles],
) -> dict[str, TableState]:
    """Return the tables of the next generation."""
    names = sorted({*before, *notes.keys})
    result = {}
    for name in names:
        old = before.get(name)
        key = list(old.key) if old is not None else list(next(iter(notes.keys[name])))
        mine = {bucket: files for (table, bucket), files in fresh.items() if table == name}
        buckets = {**(old.buckets if old is not None else {}), **mine}
        result[name] = TableState(
            key=key,
            columns=dict(columns[name]),
            buckets={number: files for number, files in sorted(buckets.items()) if files.path or files.gone},
        )
    return result
