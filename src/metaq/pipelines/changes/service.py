"""The pipeline `changes`: row changes in topics → the latest state of their tables, each change applied exactly once.

All changes of a key are in one queue, in order; a micro-batch is one slice of each queue. Workers fetch and decode the slices,
and the target applies them key by key. Exactly once, because the slices are absolute offsets in Spark's checkpoint, and the
target commits a batch atomically together with its batch id: a replayed batch finds itself applied.

    FOLDER/_checkpoint        Spark's checkpoint
    FOLDER/_problems/...      a file per batch with problems, a line of JSON each
    FOLDER/_snapshot, data    the tables, if they are Parquet (metaq.pipelines.changes.snapshot)
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from metaq.amounts import count
from metaq.clock import SYSTEM
from metaq.durable import make_folder, write_whole
from metaq.errors import ChangesBroken
from metaq.pipelines.changes.change import GAP, Problem, keys_named
from metaq.pipelines.changes.decoding import Decoder
from metaq.pipelines.changes.folding import NONE
from metaq.pipelines.changes.options import STOP, ChangesOptions
from metaq.pipelines.changes.reading import ROW_DDL, ChangeReader
from metaq.pipelines.changes.target import Applied, Target
from metaq.pipelines.checkpoints import CHECKPOINT, Checkpoint
from metaq.pipelines.job import BatchJob, SliceStream, check_session
from metaq.pipelines.options import names
from metaq.pipelines.run import Run
from metaq.spark.source.settings import SourceOptions

_LOG = logging.getLogger(__name__)

PROBLEMS = "_problems"
_OPTION_OF = {"gap": "onGap", "step_back": "onStepBack", "corrupt": "onCorrupt", "statement": "onStatement"}


def start(spark: Any, options: ChangesOptions, run: Run) -> Any:
    """Start the pipeline `changes`, see `catalogue.Pipeline.start`. Returns the StreamingQuery.

    Raises: ConfigError: an option is wrong, or the target was written by another query.
    """
    check_session(spark, run.status.pipeline)
    stream = SliceStream.of(options, {"subscribe": ",".join(options.topics_read)})
    target = target_of(options, run.place, lambda: run.stopping)
    target.guard(run.place / CHECKPOINT)
    applier = _Applier(options, stream.source, target, run)
    run.at_end(applier.close)
    return stream.start(spark, applier)


def target_of(options: ChangesOptions, place: Path, stopping: Callable[[], bool] = lambda: False) -> Target:
    """Return the target that the options name. Args: stopping: whether to stop waiting for a database. Raises ConfigError."""
    if options.target:
        from metaq.pipelines.changes.to_database import DatabaseTarget

        return DatabaseTarget(place, options, stopping=stopping)
    from metaq.pipelines.changes.to_snapshot import SnapshotTarget

    return SnapshotTarget(place, options)


class _Applier(BatchJob):
    """Applies a micro-batch to the target."""

    NAME, DONE = "changes", "applied"

    def __init__(self, options: ChangesOptions, source: SourceOptions, target: Target, run: Run) -> None:
        super().__init__(Checkpoint(run.place / CHECKPOINT))
        self._options, self._source, self._target, self._run = options, source, target, run

    def close(self) -> None:
        # The target first: it wakes a batch that waits for its database, which has the lock that `super().close()` waits for.
        self._target.close()
        super().close()

    def _after_fault(self) -> str:
        return f"{self._run.place} is as before it"

    def _process(self, frame: Any, batch: int, query: str) -> None:
        """Apply the batch. Raises: ChangesBroken: a problem that the options stop at. What the target raises."""
        began = SYSTEM.monotonic()
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
            # By place, whichever task reported it first.
            first = min(fatal, key=lambda problem: problem.place)
            more = f", and {len(fatal) - 1} more like it" if len(fatal) > 1 else ""
            text = first.text.removesuffix("; it was left out")
            raise ChangesBroken(
                f"{first.place}: {text}{more}. Nothing of batch {batch} was applied. Mend the topic's source and begin "
                f"anew, or set {_OPTION_OF[first.what]} = report and start again: it goes on from there"
            )

    def _save(self, problems: list[Problem], query: str, batch: int) -> None:
        """Save problems before the batch is committed, so that a crash loses none. A replay writes the same file again."""
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
        others = [f"{figures[name]:,} {name.replace('_', ' ')}" for name in list(figures)[4:] if figures[name]]
        line = (
            f"batch {batch}: {count(done.applied, 'change')}, {count(done.puts, 'row')} written, {done.deletes:,} deleted"
            f"{''.join(f', {one}' for one in others)} ({seconds:.1f} s, {rate:,.0f} messages/s)"
        )
        if done.problems:
            line += f"; see {self._run.place / PROBLEMS}"
            _LOG.warning(
                "changes: batch %d: %s, the first: %s", batch, count(len(done.problems), "problem"), done.problems[0]
            )
        self._run.tell(line, batch=batch, **figures, seconds=round(seconds, 3))
