"""Spark's readers of a topic of MetaQ 1.x, for batch and streaming queries. A row per message, under the names of `metaq`:

`queue_offset` and `position` are the byte offset, `queue_id` the partition at its broker, `broker` the broker id, `tag` and
`attribute` the attribute, `message_id` and `metaq1_id` the server's id.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from metaq.client.arrow import records
from metaq.clock import SYSTEM
from metaq.errors import BadRequest, MetaqError
from metaq.spark import schema
from metaq.spark.metaq1.cluster import Bound, Offsets
from metaq.spark.metaq1.fetch import Damaged, Found, Range, RangeReader
from metaq.spark.metaq1.plan import Metaq1Planner
from metaq.spark.metaq1.settings import EARLIEST, LATEST, Metaq1Options
from metaq.wire.metaq1.frame import split_attribute

_LOG = logging.getLogger(__name__)

COLUMNS = (
    "topic", "broker", "queue_id", "queue_offset", "message_id", "tag", "body", "flag", "attribute", "metaq1_id", "position",
)  # fmt: skip
IDLE_SECONDS = 1.0
"""Time that `latestOffset` waits for messages before it reports none: Spark asks again at once."""
LOOK_SECONDS = 0.2
"""Pause between two looks."""


def ddl() -> str:
    """Return the schema of the rows."""
    return schema.ddl(records.schema_of(COLUMNS))


class RangePartition(InputPartition):  # type: ignore[misc]
    """One Spark partition: a range of one partition of MetaQ 1.x."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(f"{wanted.topic} {wanted.partition} [{wanted.start}, {wanted.stop})")
        self.wanted = wanted


class _Reading:
    def __init__(self, options: Metaq1Options, struct: Any) -> None:
        """Args: options: the query's. struct: Spark's StructType, ours or the user's; it chooses the columns."""
        self.options = options
        self.columns = schema.columns_of_struct(struct, records.schema_of(COLUMNS))

    def read(self, partition: RangePartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the partition's rows, a batch for each fetch. Runs in an executor. Raises as `RangeReader.read`."""
        if partition is None:
            return
        options = self.options
        reader = RangeReader(
            partition.wanted,
            options.group,
            fetch_bytes=options.fetch_bytes,
            retry_seconds=options.retry_seconds,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for found in reader.read():
            yield batch_of(partition.wanted, found, self.columns)


def batch_of(wanted: Range, found: list[Found], columns: tuple[str, ...]) -> pa.RecordBatch:
    """Return messages as rows. Raises Damaged: a body does not hold the attribute that its flag promises."""
    broker, _, number = wanted.partition.rpartition("-")
    attributes, bodies = [], []
    for offset, frame in found:
        try:
            attribute, body = split_attribute(frame.flag, frame.body)
        except BadRequest as fault:
            raise Damaged(f"{wanted.place} is damaged at offset {offset}: {fault}") from None
        attributes.append(None if attribute is None else attribute.decode(errors="replace"))
        bodies.append(body)
    offsets, ids = [one.offset for one in found], [one.frame.message_id for one in found]
    values: dict[str, list[Any]] = {
        "topic": [wanted.topic] * len(found),
        "broker": [broker] * len(found),
        "queue_id": [int(number)] * len(found),
        "queue_offset": offsets,
        "message_id": [str(one) for one in ids],
        "tag": attributes,
        "body": bodies,
        "flag": [one.frame.flag for one in found],
        "attribute": attributes,
        "metaq1_id": ids,
        "position": offsets,
    }
    wanted_schema = records.schema_of(columns)
    arrays = [pa.array(values[field.name], field.type) for field in wanted_schema]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted_schema)


class Metaq1Reader(_Reading, DataSourceReader):  # type: ignore[misc]
    """A batch read, from startingOffsets (earliest) to endingOffsets (latest) as they are when the query is planned."""

    def partitions(self) -> list[InputPartition]:
        with contextlib.closing(Metaq1Planner(self.options)) as planner:
            return [RangePartition(wanted) for wanted in planner.ranges(planner.start(EARLIEST), planner.end())]


class Metaq1StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A streaming read. Batch 0 is empty and pins the start, as `MetaqStreamReader` says."""

    def __init__(self, options: Metaq1Options, struct: Any) -> None:
        super().__init__(options, struct)
        self._planner: Metaq1Planner | None = None
        """Has connections: made in the process that plans the query, and never pickled."""
        self._initial: Offsets | None = None
        """First answer of `initialOffset`."""
        self._pinned = False
        """Whether the start is the end of a logged batch."""
        self._target: dict[str, Bound] | None = None
        """End of a run with `trigger(availableNow=True)`; None: the run has no end."""
        self._seen: Offsets = {}
        """Ends of the partitions at the last look."""
        self._reported: Offsets | None = None
        """Offsets last stored for `progressGroup`."""

    @property
    def planner(self) -> Metaq1Planner:
        if self._planner is None:
            self._planner = Metaq1Planner(self.options, stream=True)
        return self._planner

    # The camelCase names are Spark's.
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        # Spark asks twice on a new checkpoint, and both answers must be the same.
        if self._initial is None:
            # Asked only where no batch is committed, so none of the group's offsets can be this query's.
            self.planner.check_progress_group()
            self._initial = self.planner.start(LATEST)
        return self.planner.to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.options.max_bytes_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxBytes(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.planner.ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        planner = self.planner
        begin = planner.from_json(start)
        pinned, self._pinned = self._pinned, True
        if not pinned and begin == self._initial:
            # With startingOffsets=latest the start was asked for after the target, and messages may have come in between: the
            # run then ends where it begins.
            if self._target is not None:
                self._target = {
                    partition: bound._replace(offset=max(bound.offset, begin.get(partition, 0)))
                    for partition, bound in self._target.items()
                }
            return start
        self._report(begin)
        until = SYSTEM.monotonic() + IDLE_SECONDS
        while True:
            end = self._seen = planner.advance(begin, self._target)
            if end != begin or self._target is not None or SYSTEM.monotonic() >= until:
                break
            threading.Event().wait(LOOK_SECONDS)
        # ReadAllAvailable: Spark wants one batch, for `trigger(once=True)` or a second source without AvailableNow.
        if not isinstance(limit, ReadAllAvailable):
            end = planner.limited(begin, end)
        return planner.to_json(end) if end != begin else start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        # Spark shows this as `latestOffset` in its progress.
        return self.planner.to_json(self._seen) if self._seen else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        # Depends on its arguments alone: Spark replays a batch that was logged and not committed with the same offsets. It then
        # calls this without `latestOffset`: the start was pinned by an earlier run.
        self._pinned = True
        planner = self.planner
        return [RangePartition(wanted) for wanted in planner.ranges(planner.from_json(start), planner.from_json(end))]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark calls this one batch late, and never for the last batch of an AvailableNow run (`_report`)."""

    def stop(self) -> None:
        """End the connections, where Spark calls this: it mostly ends the process."""
        if self._planner is not None:
            self._planner.close()

    def _report(self, done: Offsets) -> None:
        # `latestOffset` is called only after a batch is committed, so the start that it is given is the query's progress.
        if done == self._reported:
            return
        try:
            if self.planner.report(done):
                self._reported = done
        except MetaqError as fault:
            _LOG.warning("the progress of group %s was not stored: %s", self.options.progress_group, fault)
