"""Worker side of the archive: one slice of a queue → Parquet files in the staging folder, written where they were fetched.

Rows that passed through the JVM would cost most of the throughput, so Spark only carries the slices out and one summary
row per file back.
"""

from __future__ import annotations

import datetime as dt
import errno
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from metaq.client import arrow
from metaq.errors import StoreError, StoreFailed, StoreFull
from metaq.model.queue import MessageQueue
from metaq.spark.cluster_client import client_of
from metaq.spark.fetch import FetchSettings, read_slice
from metaq.spark.offsets import Slice
from metaq.spark.pipelines.dedupe import KEY, OFF, Ids, ids_of, key_ids_of
from metaq.spark.schema import SLICE_SCHEMA

COLUMNS = (*arrow.LEAN[1:], "properties", "flag", "reconsume_times")
"""What is archived of a message; the topic is in the folder's name."""
ROW_GROUP_ROWS = 200_000

WRITTEN = pa.schema(
    [
        *SLICE_SCHEMA,
        pa.field("date", pa.string()),
        pa.field("staged", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("ids", pa.string()),
    ]
)
"""One row per file. `ids`: the file of its messages' unique ids, empty if repeats are not looked for."""

_DAY_MS = 86_400_000
_EPOCH = dt.date(1970, 1, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceWriter:
    """What `mapInArrow` runs: slices in, written files out. Plain values: it travels to the workers."""

    name_servers: str
    settings: FetchSettings
    staging: str
    """Folder of this run's files."""
    dedupe: str
    """What repeats are known by, one of `dedupe.DEDUPE`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                queue = MessageQueue(row["topic"], row["broker"], row["queue_id"])
                yield from self.write(Slice(queue, row["start_offset"], row["end_offset"]))

    def write(self, wanted: Slice) -> Iterator[pa.RecordBatch]:
        """Fetch one slice and write it, a file per store date. Raises: what `read_slice` does, StoreFull, StoreFailed."""
        try:
            files = self._written(wanted)
        except OSError as fault:
            raise disk_fault(fault, f"the messages {wanted} could not be written to {self.staging}") from fault
        topic, broker, queue_id = wanted.queue
        for day, (file, ids) in sorted(files.items()):
            row: dict[str, Any] = {
                "topic": topic, "broker": broker, "queue_id": queue_id, "start_offset": wanted.start,
                "end_offset": wanted.end, "date": date_of(day), "staged": str(file.path), "rows": file.rows, "ids": ids,
            }  # fmt: skip
            yield pa.RecordBatch.from_pylist([row], schema=WRITTEN)

    def _written(self, wanted: Slice) -> dict[int, tuple[_DayFile, str]]:
        """Per day the file, and the path of the file of its ids."""
        client = client_of(self.name_servers, self.settings.retry_seconds, self.settings.read_from)
        files: dict[int, _DayFile] = {}
        try:
            slices = read_slice(client, wanted, self.settings)
            for decoded in itertools.chain.from_iterable(found.pieces(COLUMNS) for found in slices):
                batch = decoded.to_batch(COLUMNS)
                store_ms = np.frombuffer(decoded.parts["store_ms"], np.int64, len(decoded))
                days = store_ms // _DAY_MS
                for day in np.unique(days).tolist():
                    if day not in files:
                        files[day] = _DayFile(self._stage(wanted, day))
                    rows = days == day
                    whole = bool(rows.all())
                    mine = batch if whole else batch.filter(pa.array(rows))
                    ids = self._ids(mine, store_ms[rows], decoded.queue_offsets[rows])
                    files[day].add(mine, ids)
        finally:
            for file in files.values():
                file.close()
        return {day: (file, str(file.save_ids()) if self.dedupe != OFF else "") for day, file in files.items()}

    def _ids(self, batch: pa.RecordBatch, store_ms: Any, queue_offsets: Any) -> Ids | None:
        if self.dedupe == OFF:
            return None
        if self.dedupe == KEY:
            return key_ids_of(batch["keys"], store_ms, queue_offsets)
        return ids_of(batch["message_id"], store_ms, queue_offsets)

    def _stage(self, wanted: Slice, day: int) -> Path:
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        folder = Path(self.staging)
        folder.mkdir(parents=True, exist_ok=True)
        # By attempt: a retried task must not write into a file that a dying one still holds.
        return folder / f"{attempt}-{wanted.queue.queue_id}-{wanted.start}-{date_of(day)}.parquet"


class _DayFile:
    """The messages of one slice stored on one day, under way to a Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0
        self._ids: list[Ids] = []
        self._writer = parquet_writer(path, arrow.schema_of(COLUMNS))

    def add(self, batch: pa.RecordBatch, ids: Ids | None) -> None:
        self._writer.write_batch(batch, row_group_size=ROW_GROUP_ROWS)
        self.rows += len(batch)
        if ids is not None:
            self._ids.append(ids)

    def close(self) -> None:
        self._writer.close()
        sync_file(self.path)

    def save_ids(self) -> Path:
        path = self.path.with_suffix(".ids")
        Ids.join(self._ids).save(path)
        return path


def parquet_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Settings that suit messages: bodies, ids and keys hardly repeat, so a dictionary of them only costs."""
    return pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=1,
        use_dictionary=["broker", "tag", "properties.key_value.key"],
        column_encoding={
            "queue_offset": "DELTA_BINARY_PACKED", "born_time": "DELTA_BINARY_PACKED", "store_time": "DELTA_BINARY_PACKED"
        },
    )  # fmt: skip


def without_offsets(path: Path, drop: Any) -> int:
    """Rewrite a staged file without the messages at the queue offsets `drop`. Returns the rows that are left."""
    making, rows = path.with_suffix(".tmp"), 0
    with pq.ParquetFile(path) as old, parquet_writer(making, old.schema_arrow) as new:
        for group in range(old.num_row_groups):
            table = old.read_row_group(group)
            table = table.filter(pc.invert(pc.is_in(table["queue_offset"], pa.array(drop, pa.int64()))))
            new.write_table(table)
            rows += len(table)
    sync_file(making)
    making.rename(path)
    return rows


def disk_fault(fault: OSError, what: str) -> StoreError:
    """Our error for a fault of the file system: one sentence, and what to do."""
    why = fault.strerror or str(fault)
    where = f" ({fault.filename})" if fault.filename else ""
    if fault.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFull(f"{what}: {why}{where}. Make room and start again: it goes on from there")
    return StoreFailed(f"{what}: {why}{where}. Mend that and start again: it goes on from there")


def date_of(day: int) -> str:
    """YYYY-MM-DD of a number of days since 1970. A broker's clock may be wild; the folder's name may not."""
    return str(_EPOCH + dt.timedelta(days=min(max(day, -700_000), 2_900_000)))


def sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
