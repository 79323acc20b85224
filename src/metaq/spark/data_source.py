"""`format("metaq")`: topics as DataFrames, in batch and streaming queries.

What runs where: `MetaqDataSource` and batch planning in Python processes beside the driver, a stream's planning in one such
process for as long as the query runs, `read` in the executors' Python workers, on a pickled copy. Readers therefore hold
plain values only; connections are made where they are used and cached per process (`client_of`).
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from metaq.client.arrow import records
from metaq.clock import SYSTEM, Clock
from metaq.errors import BodyUnreadable, ConfigError, MetaqError
from metaq.model import offsets
from metaq.model.filters.subscription import checked_expression, subscribe
from metaq.model.offsets import Generations, Positions, Slice
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.spark import daemon, interpreter, schema
from metaq.spark.sink.settings import SinkOptions
from metaq.spark.sink.sink import MetaqStreamWriter, MetaqWriter
from metaq.spark.source import slicing
from metaq.spark.source.fetch import read_slice
from metaq.spark.source.plan import Planner, differ, planner_of
from metaq.spark.source.pushdown import Pushed, push
from metaq.spark.source.settings import EARLIEST, LATEST, RAW, SourceOptions
from metaq.spark.source.watch import FAIL

_LOG = logging.getLogger(__name__)

daemon.quiet_here()

IDLE_SECONDS = 1.0
"""Time that `latestOffset` waits for new messages before it reports none: Spark asks again at once, 60-85 times a second, and
each time the brokers are asked."""
LOOK_SECONDS = 0.02
"""Shortest pause between two such requests for the queues' ends."""
LOOK_SHARE = 0.05
"""Largest share of idle time that is spent on asking brokers."""


class SlicePartition(InputPartition):  # type: ignore[misc]
    """One Spark partition: a range of offsets of one queue."""

    def __init__(self, wanted: Slice) -> None:
        """Plain values: Spark pickles it for the task."""
        super().__init__(str(wanted))
        self.wanted = wanted


class MetaqDataSource(DataSource):  # type: ignore[misc]
    """The data source `metaq`. Spark finds it by itself through the module `pyspark_metaq`."""

    @classmethod
    def name(cls) -> str:
        # `spark.dataSource.register` asks for the name first: the place to tell the user, in one line, of workers that run
        # a Python without MetaQ.
        interpreter.check(interpreter.running_context())
        return "metaq"

    def schema(self) -> str:
        if self._files():
            from metaq.spark.files import files  # Lazily: see _files.
            from metaq.spark.files.settings import FilesOptions

            return files.files_ddl(FilesOptions.of(dict(self.options)))
        if self._metaq1():
            from metaq.spark.metaq1 import source

            return source.ddl()
        options = self._options()
        if options.rows == "slices":
            return schema.ddl(schema.SLICE_SCHEMA)
        return schema.ddl(records.schema_of(schema.columns_of(options.columns)))

    def reader(self, schema: Any) -> DataSourceReader:
        if self._files():
            from metaq.spark.files import files  # Lazily: see _files.
            from metaq.spark.files.settings import FilesOptions

            return files.FilesReader(FilesOptions.of(dict(self.options)), schema)
        if self._metaq1():
            from metaq.spark.metaq1 import settings, source

            return source.Metaq1Reader(settings.Metaq1Options.of(dict(self.options)), schema)
        options = self._options()
        return (MetaqReaderWithPushFilters if options.push_filters else MetaqReader)(options, schema)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        options = SinkOptions.of(dict(self.options))
        # Spark knows two save modes for Python sources, append and overwrite.
        if overwrite:
            raise ConfigError("a topic cannot be overwritten, only added to: write with .mode('append')")
        return MetaqWriter(options, schema)

    # Spark calls this by keyword when it commits a batch: a renamed parameter would fail only there.
    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        options = SinkOptions.of(dict(self.options))
        options.check_stream()
        if overwrite:
            raise ConfigError("a topic cannot be overwritten, only added to: .outputMode('append') or 'update'")
        return MetaqStreamWriter(options, schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        if self._files():
            from metaq.spark.files import files  # Lazily: see _files.

            files.refuse_stream()
        if self._metaq1():
            from metaq.spark.metaq1 import settings, source

            metaq1 = settings.Metaq1Options.of(dict(self.options))
            metaq1.check_stream()
            return source.Metaq1StreamReader(metaq1, schema)
        options = self._options()
        # Checked only here: `load` does not tell Spark's source what it is for.
        options.check_stream()
        return MetaqStreamReader(options, schema)

    def _files(self) -> bool:
        """Return whether files are read, not topics. Their modules are imported on demand: they take longer than all others."""
        return any(name.lower() in {"path", "paths"} for name in self.options)

    def _metaq1(self) -> bool:
        """Return whether a cluster of MetaQ 1.x is read. Its modules are imported on demand."""
        return any(name.lower() in {"zkconnect", "metaq1server"} for name in self.options)

    def _options(self) -> SourceOptions:
        return SourceOptions.of(dict(self.options))


class _SliceReading:
    """Base of batch and stream readers: reads a slice into Arrow batches."""

    def __init__(self, options: SourceOptions, struct: Any) -> None:
        """
        Args:
            options: the query's.
            struct: Spark's StructType, ours or the user's; it chooses the columns.
        """
        self.options, self.fetch = options, options.fetch
        # All columns, not only the lean ones: the query's `.schema(...)` may name any.
        known = schema.SLICE_SCHEMA if options.rows == "slices" else records.schema_of(tuple(records.TYPES))
        self.columns = schema.columns_of_struct(struct, known)

    @property
    def planner(self) -> Planner:
        return planner_of(self.options)

    def read(self, partition: SlicePartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's rows. Runs in an executor's Python worker, on a pickled copy of the reader.

        Raises as `read_slice`.
        """
        if self.options.rows == "slices":
            yield schema.slice_batch(partition.wanted, self.columns)
            return
        for decoded in read_slice(self.planner.client, partition.wanted, self.fetch):
            for piece in decoded.pieces(self.columns):
                yield self._read(piece).to_batch(self.columns)

    def _partitions(self, slices: Iterable[Slice], of: Generations) -> list[InputPartition]:
        places = ((wanted, of.get((wanted.queue.topic, wanted.queue.broker))) for wanted in slices)
        return [SlicePartition(dataclasses.replace(wanted, generation=told)) for wanted, told in places]

    def _read(self, piece: records.Decoded) -> records.Decoded:
        """Return the records that become rows, by the option `corrupt`. Raises BodyUnreadable."""
        if not piece.marked or self.options.corrupt == RAW:
            return piece
        if self.options.corrupt == FAIL:
            row = piece.marked[0]
            assert piece.queue is not None
            why = "it cannot be decompressed. Set corrupt=raw or corrupt=skip to go on behind it"
            raise BodyUnreadable(piece.queue, int(piece.queue_offsets[row]), None, why)
        return piece.without_marked()


class MetaqReader(_SliceReading, DataSourceReader):  # type: ignore[misc]
    """A batch read, from startingOffsets (earliest) to endingOffsets (latest) as they are when the query is planned."""

    pushed: Pushed | None = None
    """Restrictions by the query's pushed-down conditions."""

    def partitions(self) -> list[InputPartition]:
        planner = self.planner
        start = planner.start(EARLIEST, self.pushed)
        slices = slicing.slices_between(start, planner.end(sorted(start)))
        # Narrowed before the cut: minPartitions is about slices that are read.
        if self.pushed is not None:
            slices = planner.narrowed(slices, self.pushed)
        slices = planner.cut(slices)
        # For an empty list Spark would run one task with read(None): give it an empty slice.
        empty = [Slice(queue, offset, offset) for queue, offset in sorted(start.items())[:1]]
        return self._partitions(slices or empty, planner.generations_now(start))

    def read(self, partition: SlicePartition | None) -> Iterator[pa.RecordBatch]:
        # None if a pattern matches no topic: there is no queue to make an empty slice of.
        if partition is not None and partition.wanted.messages:
            yield from super().read(partition)


class MetaqReaderWithPushFilters(MetaqReader):
    """A batch read with predicate pushdown.

    A class of its own: while `spark.sql.python.filterPushdown.enabled` is off, the default, Spark fails every read of a
    reader that overrides `pushFilters`.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        topics = {*self.options.topics, *(queue.topic for queue in self.options.assigned)}
        # Consume-queue units of the schedule topic hold the time of delivery in place of the tag's hash.
        by_tag = self.options.subscription.takes_all and SCHEDULE_TOPIC not in topics
        self.pushed, left = push(filters, by_tag=by_tag)
        # An empty set fits no message: `Pushed.takes` has left all slices out then.
        if self.pushed.tags:
            wanted = subscribe("", checked_expression("the query", self.pushed.tags))
            self.fetch = dataclasses.replace(self.fetch, subscription=wanted)
        return left


class MetaqStreamReader(_SliceReading, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A streaming read. One instance, in a process beside the driver, plans the query as long as it runs; copies `read`.

    **The start is pinned by an empty batch 0.** Spark writes only the *ends* of batches into its checkpoint, and asks
    `initialOffset` again when it replays a batch 0 that was not committed. With startingOffsets=latest the answer would
    have moved, and the messages between would be lost. So the first `latestOffset` returns the first `initialOffset`
    unchanged: the end of batch 0 in the checkpoint is the start of the query, whatever happens later.
    """

    clock: ClassVar[Clock] = SYSTEM

    def __init__(self, options: SourceOptions, struct: Any) -> None:
        super().__init__(options, struct)
        self._initial: Positions | None = None
        """First answer of `initialOffset`."""
        self._begun: Generations = {}
        """Generations of the topics, at the last look."""
        self._pinned = False
        """Whether the start is the end of a logged batch."""
        self._target: Positions | None = None
        """End of a run with `trigger(availableNow=True)`; None: the run has no end."""
        self._seen: Positions = {}
        """Ends of the queues at the last look."""
        self._reported: Positions | None = None
        """Positions last stored for `progressGroup`."""
        self._waiting_since: float | None = None
        """Time since which there are messages, but fewer than `minOffsetsPerTrigger`."""
        self._watch = self.planner.watch()
        self._completed = False
        """Whether `_target` has the queues of brokers that were away when the run began."""
        self.fetch = options.fetch_of_stream

    # The camelCase names are Spark's.
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        # Spark asks twice on a new checkpoint, and both answers must be the same.
        if self._initial is None:
            # Asked only where no batch is committed, so none of the group's progress can be this query's.
            self.planner.check_progress_group(own=False)
            self._initial = self.planner.start(LATEST)
            self._begun = self.planner.generations_now(self._initial)
        return offsets.to_json(self._initial, self._begun)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.options.max_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        # Spark's limits are by rows or by bytes, and one per source. It hands ours back to `latestOffset` unread, so any
        # limit will do to say that there is one.
        return ReadMaxRows(1 << 62) if self.options.max_bytes_per_trigger is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # Called before anything else, so a checkpoint's offsets are not known yet: `latestOffset` completes the target.
        self._target = self.planner.target(self._watch)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin, then = offsets.from_json(start), offsets.generations_of(start)
        pinned, self._pinned = self._pinned, True
        if not pinned and begin == self._initial:
            # With startingOffsets=latest the start was asked for after the target, and messages may have come in between:
            # the run then ends where it begins.
            if self._target is not None:
                self._target = {queue: max(end, begin.get(queue, end)) for queue, end in self._target.items()}
            return start
        self._report(begin)
        planner = self.planner
        # Once per run: a broker that comes back later is for the next run.
        if self._target is not None and not self._completed:
            self._target, self._completed = planner.completed(self._target, begin, self._watch), True
        self._begun = dict(then)
        end = self._news(planner, begin, then)
        # Of a topic made anew this batch reads nothing: its first message becomes the next one's start.
        anew = {queue: end[queue] for queue in begin if differ(self._begun, then, queue)}
        # ReadAllAvailable: Spark wants one batch, for `trigger(once=True)` or a second source without AvailableNow.
        if not isinstance(limit, ReadAllAvailable):
            rest = {queue: offset for queue, offset in end.items() if queue not in anew}
            end = planner.limited({queue: begin[queue] for queue in begin if queue not in anew}, rest) | anew
        # Spark compares text: generations that are told only now would be news to it.
        return offsets.to_json(end, self._begun) if end != begin or anew else start

    def _enough(self, begin: Positions, end: Positions, *, anew: bool) -> bool:
        """Return whether to begin a batch: `minOffsetsPerTrigger` messages are there, or have waited `maxTriggerDelay`."""
        least, fresh = self.options.min_offsets_per_trigger, set(end) - set(begin)
        # A run with a target takes what is left, however little: it must end.
        if least is None or self._target is not None or fresh or anew:
            # New queues are pinned at once: the checkpoint gets their start as the end of this batch.
            return True
        messages = sum(end[queue] - begin[queue] for queue in begin)
        now = self.clock.monotonic()
        if messages and self._waiting_since is None:
            self._waiting_since = now
        waited = now - self._waiting_since if self._waiting_since is not None else 0.0
        assert self.options.trigger_delay is not None
        if 0 < messages < least and waited < self.options.trigger_delay:
            return False
        self._waiting_since = None
        return True

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        # Spark shows this as `latestOffset` in its progress. Queues of a broker that is away stand where the query is, which
        # would show as no lag.
        known = {queue: end for queue, end in self._seen.items() if not self._watch.is_away(queue.broker)}
        return offsets.to_json(known, self._begun) if known else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        # Depends on its arguments alone: Spark replays a batch that was logged and not committed with the same offsets, and
        # it must read the same rows. It then calls this without `latestOffset`: the start was pinned by an earlier run.
        self._pinned = True
        begin, then, now = offsets.from_json(start), offsets.generations_of(start), offsets.generations_of(end)
        # The positions of a topic and of the one made anew under its name have nothing between them.
        begin = {queue: offset for queue, offset in begin.items() if not differ(now, then, queue)}
        slices = slicing.slices_between(begin, offsets.from_json(end))
        return self._partitions(self.planner.cut(slices), now)

    def _news(self, planner: Planner, begin: Positions, then: Generations) -> Positions:
        """Return the queues' ends; waits up to IDLE_SECONDS for enough messages, and returns `begin` without.

        Blocking is safe: `query.stop()` ends this process without waiting for the call.
        """
        give_up = SYSTEM.monotonic() + IDLE_SECONDS
        while True:
            asked_at = SYSTEM.monotonic()
            end = self._seen = planner.advance(begin, self._target, self._watch, self._begun)
            anew = any(differ(self._begun, then, queue) for queue in begin)
            enough = self._enough(begin, end, anew=anew)
            now = SYSTEM.monotonic()
            # Also waits while there are too few messages: Spark would ask again at once, 60 times a second.
            if (enough and (end != begin or anew)) or self._target is not None or now >= give_up:
                return end if enough else begin
            threading.Event().wait(min(max(LOOK_SECONDS, (now - asked_at) / LOOK_SHARE), give_up - now))

    def _report(self, done: Positions) -> None:
        # Spark's commit() comes one batch late, and never for the last batch of an AvailableNow run. But `latestOffset` is
        # called only after a batch is committed, so the start that it is given is the query's progress.
        if done == self._reported:
            return
        try:
            if self.planner.report(done, self._watch):
                self._reported = done
        except MetaqError as fault:
            _LOG.warning("the progress of group %s was not stored: %s", self.options.progress_group, fault)
