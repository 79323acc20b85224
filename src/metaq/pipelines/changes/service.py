"""The pipeline `changes`: row changes in topics → the latest state of their tables, each change applied exactly once.

All changes of a key are in one queue, in their order; a micro-batch is one slice of each queue. Workers fetch and decode the
slices, and the target applies them key by key. Exactly once, because the slices are absolute offsets in Spark's checkpoint,
and the target takes a batch in one step together with the batch's number: one that is replayed is there already.

    FOLDER/_checkpoint        Spark's own
    FOLDER/_problems/...      per batch that had any, what was reported: one line of JSON each
    FOLDER/_snapshot, data    the tables, where they are Parquet (metaq.pipelines.changes.snapshot)
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from metaq.clock import SYSTEM
from metaq.durable import disk_fault, make_folder, write_whole
from metaq.errors import ChangesBroken, ClientClosed, ConfigError
from metaq.pipelines.changes.change import GAP, Problem, keys_named
from metaq.pipelines.changes.decoding import Decoder
from metaq.pipelines.changes.folding import NONE
from metaq.pipelines.changes.options import STOP, ChangesOptions
from metaq.pipelines.changes.reading import ROW_DDL, ChangeReader
from metaq.pipelines.changes.target import Applied, Target
from metaq.pipelines.checkpoints import CHECKPOINT, query_id, spark_path
from metaq.pipelines.options import names
from metaq.pipelines.run import Run
from metaq.spark import interpreter
from metaq.spark.source.settings import SourceOptions

_LOG = logging.getLogger(__name__)

PROBLEMS = "_problems"
_OPTION_OF = {"gap": "onGap", "step_back": "onStepBack", "corrupt": "onCorrupt", "statement": "onStatement"}


def start(spark: Any, options: ChangesOptions, run: Run) -> Any:
    """The pipeline `changes` (`metaq.pipelines.catalogue`). Returns the StreamingQuery.

    Raises: ConfigError: an option is wrong, or the target was written by another query.
    """
    if interpreter.is_remote(spark):
        raise ConfigError(
            "changes are applied in the process of the driver, and this session is a client of Spark Connect: use a session "
            "of metaq.spark.session() in a process without one, or `metaq pipeline run changes`"
        )
    interpreter.check(interpreter.running_context())
    pairs = {**options.source(), "subscribe": ",".join(options.topics_read), "rows": "slices"}
    source = SourceOptions.of(pairs)
    source.check_stream()
    checkpoint = run.place / CHECKPOINT
    target = target_of(options, run.place, lambda: run.stopping)
    target.guard(checkpoint)
    applier = _Applier(options, source, target, run)
    run.at_end(applier.close)
    reader = spark.readStream.format("metaq").options(**pairs).load()
    writer = reader.writeStream.queryName("changes").option("checkpointLocation", spark_path(checkpoint))
    return writer.foreachBatch(applier.process).trigger(**options.trigger()).start()


def target_of(options: ChangesOptions, place: Path, stopping: Callable[[], bool] = lambda: False) -> Target:
    """Where the options say that the tables are. Args: stopping: nobody wants to wait for a database any more. Raises ConfigError."""
    if options.target:
        from metaq.pipelines.changes.to_database import DatabaseTarget

        return DatabaseTarget(place, options, stopping=stopping)
    from metaq.pipelines.changes.to_snapshot import SnapshotTarget

    return SnapshotTarget(place, options)


class _Applier:
    """The driver's half: one call of `process` per micro-batch."""

    def __init__(self, options: ChangesOptions, source: SourceOptions, target: Target, run: Run) -> None:
        self._options, self._source, self._target, self._run = options, source, target, run
        self._busy = threading.Lock()
        self._closed = False

    def process(self, frame: Any, batch: int) -> None:
        """Spark's foreachBatch: apply the slices in `frame`. Raises: ChangesBroken: there is something to stop at. StoreFull,
        StoreFailed: a fault of the disk or the folder. What the target raises.
        """
        with self._busy:
            if self._closed:  # Not silently: Spark would take the batch for done.
                raise ClientClosed(f"the query was stopped before batch {batch} was applied")
            try:
                self._process(frame, batch)
            except OSError as fault:
                raise disk_fault(
                    fault, f"batch {batch} could not be applied, {self._run.place} is as before it"
                ) from fault

    def close(self) -> None:
        """Apply nothing any more. Returns when what was under way has ended."""
        self._target.close()  # A batch that waits for its database ends with that.
        with self._busy:
            self._closed = True

    def _process(self, frame: Any, batch: int) -> None:
        began = SYSTEM.monotonic()
        query = query_id(self._run.place / CHECKPOINT)
        if query is None:
            raise ConfigError(f"the checkpoint of {self._run.place} has lost its metadata while the query runs")
        if self._target.has(query, batch):
            self._run.tell(f"batch {batch}: was applied before the restart", batch=batch, replayed=True)
            return
        options = self._options
        reader = ChangeReader(
            name_servers=self._source.name_servers,
            settings=self._source.fetch_of_stream,
            decoder=Decoder(
                format=options.format,
                keys=keys_named(names(options.key_columns)),
                sequence=options.sequence,
                sequenced=options.sequence_scope != NONE,
            ),
            tables=frozenset(names(options.tables)),
            scope=options.sequence_scope,
            dense=options.dense,
            last=self._target.last,
            buckets=options.buckets,
        )
        rows = frame.mapInArrow(reader, ROW_DDL)

        def judge(problems: list[Problem], *, last: bool) -> None:
            self._stop_at(problems, batch)
            if last and problems:
                self._save(problems, query, batch)

        done = self._target.apply(query, batch, rows, judge)
        if done.messages:
            self._tell(done, batch, SYSTEM.monotonic() - began)

    def _stop_at(self, problems: list[Problem], batch: int) -> None:
        fatal = [problem for problem in problems if self._options.policies[problem.what] == STOP]
        if fatal:
            first = min(fatal, key=lambda problem: problem.place)
            more = f", and {len(fatal) - 1} more like it" if len(fatal) > 1 else ""
            text = first.text.removesuffix("; it was left out")
            raise ChangesBroken(
                f"{first.place}: {text}{more}. Nothing of batch {batch} was applied. Mend the topic's source and begin "
                f"anew, or set {_OPTION_OF[first.what]} = report and start again: it goes on from there"
            )

    def _save(self, problems: list[Problem], query: str, batch: int) -> None:
        """Before the batch is committed: what is reported is never lost. A replay writes the same file again."""
        folder = self._run.place / PROBLEMS
        make_folder(folder)
        lines = [
            msgspec.json.encode({"what": one.what, **one.place._asdict(), "text": one.text})
            for one in sorted(problems, key=lambda one: one.place)
        ]
        write_whole(folder / f"{query[:8]}-{batch:010d}.jsonl", b"".join(line + b"\n" for line in lines))

    def _tell(self, done: Applied, batch: int, seconds: float) -> None:
        counted = Counter(problem.what for problem in done.problems)
        figures = {
            "messages": done.messages, "changes": done.applied, "puts": done.puts, "deletes": done.deletes,
            "repeats": done.repeats, "others": done.others, "gaps": counted[GAP], "steps_back": counted["step_back"],
            "corrupt": counted["corrupt"], "statements": counted["statement"],
        }  # fmt: skip
        rate = done.messages / seconds if seconds else 0.0
        told = [f"{figures[name]:,} {name.replace('_', ' ')}" for name in list(figures)[4:] if figures[name]]
        line = (
            f"batch {batch}: {done.applied:,} changes, {done.puts:,} rows written, {done.deletes:,} deleted"
            f"{''.join(f', {one}' for one in told)} ({seconds:.1f} s, {rate:,.0f} messages/s)"
        )
        if done.problems:
            line += f"; see {self._run.place / PROBLEMS}"
            _LOG.warning("changes: batch %d: %d problems, the first: %s", batch, len(done.problems), done.problems[0])
        self._run.tell(line, batch=batch, **figures, seconds=round(seconds, 3))
