"""Worker side of an archive on a file system of Hadoop's: rows, which Spark's own Parquet writer takes from there.

Workers are Pythons without a JVM, so they cannot write to such a file system. What keeps a message exact in spite of tried
again and speculative tasks is Spark's commit of files: only those of one attempt of each task are there in the end. So
nothing that an attempt counted is believed; the files are read again, for what they hold.
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
from metaq.pipelines.archive.slices import date_of, found_in, ids_by
from metaq.spark import schema
from metaq.spark.source.fetch import FetchSettings

PLACE: Final = ("_topic", "_date", "_part", "_slice")
"""Partition columns of the written rows: Spark makes a folder of each value, so that each file has a folder of its own."""
DDL: Final = schema.ddl(pa.schema([*SCHEMA, *(pa.field(name, pa.string()) for name in PLACE)]))
WHOLE: Final = "-"
"""Part folder of an archive without parts: Spark takes an empty text for null."""

READ: Final = pa.schema([pa.field("place", pa.string()), pa.field("ids", pa.binary())])
"""Schema of what is read back from a piece of a file."""
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
        """Raises: what `found_in` does."""
        for one in found_in(wanted, self.name_servers, self.settings, self.parting):
            day, part = one.place
            place = (wanted.queue.topic, date_of(day), part or WHOLE, slice_text(wanted))
            constants = [pa.repeat(pa.scalar(value), len(one.batch)) for value in place]
            yield pa.RecordBatch.from_arrays([*one.batch.columns, *constants], names=[*SCHEMA.names, *PLACE])


def slice_text(wanted: Slice) -> str:
    return f"{wanted.queue.queue_id}-{wanted.start}-{wanted.end}-{wanted.queue.broker}"


def slice_of(topic: str, text: str) -> Slice:
    queue_id, start, end, broker = text.split("-", 3)
    return Slice(MessageQueue(topic, broker, int(queue_id)), int(start), int(end))


@dataclass(frozen=True, kw_only=True, slots=True)
class IdsOf:
    """Function for `mapInArrow` over written files: the ids of their messages, packed."""

    dedupe: str

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
    """Function for `mapInArrow` over one written file: its rows without those at some queue offsets."""

    drop: Any
    """An array of int64."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keep = ~np.isin(batch["queue_offset"].to_numpy(), self.drop)
            yield batch.filter(pa.array(keep))


def staged_place(values: Sequence[str]) -> tuple[Slice, str, str]:
    """Slice, date and part's folder that the values of PLACE stand for."""
    topic, date, part, text = values
    return slice_of(topic, text), date, "" if part == WHOLE else part
