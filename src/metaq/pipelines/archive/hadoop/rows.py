"""Worker side of an archive on a Hadoop file system: rows for Spark's own Parquet writer.

Workers are Pythons without a JVM, so they cannot write to such a file system. Retried and speculative tasks do no harm because
of Spark's commit of files: only those of one attempt of each task are there in the end. So counts of an attempt are not used;
the files are read again for what they contain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.archived_rows import SCHEMA
from metaq.pipelines.archive.dedupe import KEY
from metaq.pipelines.archive.parting import Parting
from metaq.pipelines.archive.slices import date_of, fetch_rows, ids_by
from metaq.spark import schema
from metaq.spark.source.fetch import FetchSettings

PLACE: Final = ("_topic", "_date", "_part", "_slice")
"""Partition columns of the written rows: Spark makes a folder per value, and so each file gets a folder of its own."""
DDL: Final = schema.ddl(pa.schema([*SCHEMA, *(pa.field(name, pa.string()) for name in PLACE)]))
WHOLE: Final = "-"
"""Part of an archive without parts, in a folder's name: Spark writes an empty text as null."""

READ: Final = pa.schema([pa.field("place", pa.string()), pa.field("ids", pa.binary())])
"""Schema of the ids that are read back from a piece of a file."""
PLACE_END: Final = "\x00"
"""Separator of the values of PLACE in READ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceRows:
    """Function for `mapInArrow`: slices in, their messages out. Plain values: it is pickled for the workers."""

    name_servers: str
    settings: FetchSettings
    parting: Parting = field(default_factory=Parting)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for wanted in schema.slices_of(batches):
            yield from self.rows(wanted)

    def rows(self, wanted: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a slice. Raises as `fetch_rows`."""
        for one in fetch_rows(wanted, self.name_servers, self.settings, self.parting):
            day, part = one.place
            place = (wanted.queue.topic, date_of(day), part or WHOLE, slice_text(wanted))
            constants = [pa.repeat(pa.scalar(value), len(one.batch)) for value in place]
            yield pa.RecordBatch.from_arrays([*one.batch.columns, *constants], names=[*SCHEMA.names, *PLACE])


def slice_text(wanted: Slice) -> str:
    # The broker last: its name may contain the separator.
    return f"{wanted.queue.queue_id}-{wanted.start}-{wanted.end}-{wanted.queue.broker}"


def slice_of(topic: str, text: str) -> Slice:
    queue_id, start, end, broker = text.split("-", 3)
    return Slice(MessageQueue(topic, broker, int(queue_id)), int(start), int(end))


@dataclass(frozen=True, kw_only=True, slots=True)
class IdsOf:
    """Function for `mapInArrow` over written files: the ids of their messages, a row of READ per file."""

    dedupe: str
    """One of `dedupe.DEDUPE`."""

    @property
    def columns(self) -> tuple[str, ...]:
        return ("keys" if self.dedupe == KEY else "message_id", "store_time", "store_ms", "queue_offset")

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self.packed(batch)

    def packed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        places = batch["place"].dictionary_encode()
        codes = places.indices.to_numpy()
        rows = []
        for code, place in enumerate(places.dictionary.to_pylist()):
            mine = batch.filter(pa.array(codes == code))
            shown = mine["store_time"].cast(pa.int64())
            ms = pc.coalesce(mine["store_ms"], pc.divide(shown, pa.scalar(1000, pa.int64()))).to_numpy(
                zero_copy_only=False
            )
            found = ids_by(self.dedupe, mine, ms, mine["queue_offset"].to_numpy())
            rows.append({"place": place, "ids": found.in_order().to_bytes()})
        return pa.RecordBatch.from_pylist(rows, schema=READ)


@dataclass(frozen=True, kw_only=True, slots=True)
class WithoutOffsets:
    """Function for `mapInArrow` over one written file: its rows without some queue offsets."""

    drop: Any
    """Queue offsets to leave out, an array of int64."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keep = ~np.isin(batch["queue_offset"].to_numpy(), self.drop)
            yield batch.filter(pa.array(keep))


def staged_place(values: Sequence[str]) -> tuple[Slice, str, str]:
    """Return slice, date and part of values of PLACE."""
    topic, date, part, text = values
    return slice_of(topic, text), date, "" if part == WHOLE else part
