"""Worker side of the archive: fetch one slice of a queue and write it to Parquet files in the staging folder.

Rows through the JVM would cost most of the throughput, so Spark only carries the slices to the workers and a summary row per
file back.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from metaq.archive.decoding import CORRUPT
from metaq.archive.parquet import ROW_GROUP_BYTES, ROW_GROUP_ROWS, parquet_writer, sha256_of, with_views
from metaq.archive.records import COLUMNS
from metaq.durable import disk_fault, sync_file
from metaq.model.offsets import Slice
from metaq.pipelines.archive.archived_rows import SCHEMA, archived_batch, chosen, marked, with_prepared_offsets
from metaq.pipelines.archive.decoding import BodyColumns
from metaq.pipelines.archive.dedupe import KEPT_LEAST, KEY, OFF, Ids, ids_of, key_ids_of
from metaq.pipelines.archive.parting import Parting
from metaq.spark.cluster.client import client_of
from metaq.spark.schema import RANGE, slices_of
from metaq.spark.source.fetch import FetchSettings, read_slice

WRITTEN = pa.schema(
    [
        *RANGE,
        pa.field("date", pa.string()),
        pa.field("part", pa.string()),
        pa.field("staged", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("ids", pa.string()),
        pa.field("corrupt", pa.int64()),
        pa.field("sha256", pa.string()),
    ]
)
"""Schema of the summary, a row per file. `part`: folder of its part. `staged`: path of the file. `ids`: path of the file of
its messages' ids, empty without deduplication. `corrupt`: messages whose bodies did not decode. `sha256`: of the file, in hex.
"""

_FORCED_BYTES = 32 << 20
"""Written bytes between two fsyncs in the background: left to the end, the last fsync of a file would stall the task."""
_DAY_MS = 86_400_000
_EPOCH = dt.date(1970, 1, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceWriter:
    """Function for `mapInArrow`: slices in, a row per written file out. Plain values: it is pickled for the workers."""

    name_servers: str
    settings: FetchSettings
    staging: str
    """Folder of the batch's unfinished files."""
    dedupe: str
    """Identity for deduplication, one of `dedupe.DEDUPE`."""
    parting: Parting = field(default_factory=Parting)
    decoding: BodyColumns | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for wanted in slices_of(batches):
            yield from self.write(wanted)

    def write(self, wanted: Slice) -> Iterator[pa.RecordBatch]:
        """Fetch one slice and write it, a file per store date and part. Yields a batch of WRITTEN per file.

        Raises: as `read_slice`; StoreFull, StoreFailed; ConfigError: too many parts.
        """
        try:
            files = self._written(wanted)
        except OSError as fault:
            raise disk_fault(fault, f"the messages {wanted} could not be written to {self.staging}") from fault
        topic, broker, queue_id = wanted.queue
        for (day, part), (file, ids) in sorted(files.items()):
            row: dict[str, Any] = {
                "topic": topic, "broker": broker, "queue_id": queue_id, "start_offset": wanted.start,
                "end_offset": wanted.end, "date": date_of(day), "part": part, "staged": str(file.path), "rows": file.rows, "ids": ids, "corrupt": file.corrupt,
                "sha256": file.sha256,
            }  # fmt: skip
            yield pa.RecordBatch.from_pylist([row], schema=WRITTEN)

    def _written(self, wanted: Slice) -> dict[tuple[int, str], tuple[_DayFile, str]]:
        """Write the slice. Returns (day, part) → its file, and the path of its file of ids."""
        files: dict[tuple[int, str], _DayFile] = {}
        # Bodies stay views of the received bytes until Parquet copies them, unless they are decoded: decoders take binaries.
        columns, fetched = None, with_views(SCHEMA)
        schema = fetched
        if self.decoding is not None:
            fetched = SCHEMA
            columns, schema = self.decoding.ready(), self.decoding.schema(SCHEMA)
        with ThreadPoolExecutor(1, "metaq-archive") as helper, ThreadPoolExecutor(1, "metaq-archive-disk") as disk:
            try:
                for one in fetch_rows(wanted, self.name_servers, self.settings, self.parting, fetched):
                    if one.place not in files:
                        files[one.place] = _DayFile(self._stage(wanted, one.place[0], len(files)), schema, helper, disk)
                    batch = one.batch if columns is None else columns(one.batch)
                    # All files of the slice share the bytes of one row group: memory must not grow with days and parts.
                    files[one.place].add(
                        batch, self._ids(one.batch, one.store_ms, one.queue_offsets), ROW_GROUP_BYTES // len(files)
                    )
            finally:
                for file in files.values():
                    file.close()
            # While the last fsyncs run in the other threads: `settle` waits for them.
            done = {place: (file, str(file.save_ids()) if self.dedupe != OFF else "") for place, file in files.items()}
            for file in files.values():
                file.settle()
        return done

    def _ids(self, batch: pa.RecordBatch, store_ms: Any, queue_offsets: Any) -> Ids | None:
        return None if self.dedupe == OFF else ids_by(self.dedupe, batch, store_ms, queue_offsets)

    def _stage(self, wanted: Slice, day: int, number: int) -> Path:
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        folder = Path(self.staging)
        folder.mkdir(parents=True, exist_ok=True)
        # By attempt: a retried or speculative task must not write into the file of another attempt, which may still run.
        return folder / f"{attempt}-{wanted.queue.queue_id}-{wanted.start}-{date_of(day)}-{number}.parquet"


class FileRows(NamedTuple):
    """Messages of one slice that belong into one file."""

    place: tuple[int, str]
    """Days since 1970, and the folder of the part."""
    batch: pa.RecordBatch
    """The messages, as `archived_batch` makes them."""
    store_ms: Any
    """Store times, an array."""
    queue_offsets: Any
    """Queue offsets, an array."""


def fetch_rows(
    wanted: Slice, name_servers: str, settings: FetchSettings, parting: Parting, schema: pa.Schema = SCHEMA
) -> Iterator[FileRows]:
    """Fetch a slice, divided by file. Raises: as `read_slice`; ConfigError: too many parts.

    Args: schema: of the batches, see `archived_batch`.
    """
    client = client_of(name_servers, settings.retry_seconds, settings.read_from, settings.access)
    places: set[tuple[int, str]] = set()
    slices = read_slice(client, wanted, settings)
    # Cut where expanded bodies are large: a pull of a few MB of compressed ones may be gigabytes.
    for decoded in itertools.chain.from_iterable(with_prepared_offsets(found).pieces(COLUMNS) for found in slices):
        batch = archived_batch(decoded, schema)
        store_ms = np.frombuffer(decoded.parts["store_ms"], np.int64, len(decoded))
        for place, rows in parting.parts(batch, store_ms // _DAY_MS):
            if place not in places:
                parting.check(len(places), wanted)
                places.add(place)
            mine = batch if bool(rows.all()) else chosen(batch, pa.array(rows))
            yield FileRows(place, mine, store_ms[rows], decoded.queue_offsets[rows])


def ids_by(dedupe: str, batch: pa.RecordBatch, store_ms: Any, queue_offsets: Any) -> Ids:
    """Return ids of messages, for deduplication. Args: batch: with the column that `dedupe` needs."""
    if dedupe == KEY:
        return key_ids_of(batch["keys"], store_ms, queue_offsets)
    return ids_of(batch["message_id"], store_ms, queue_offsets)


class _DayFile:
    """Writer of one Parquet file: the messages of one slice stored on one day.

    The thread of `helper` encodes and writes row groups while the task fetches the next messages, so that a task that runs
    alone uses two cores: 2.1 µs a row instead of 3.4. The thread of `disk` syncs the file piece by piece meanwhile, which
    makes the last fsync short.
    """

    def __init__(self, path: Path, schema: pa.Schema, helper: Executor, disk: Executor) -> None:
        self.path, self.rows, self.corrupt, self.sha256 = path, 0, 0, ""
        self._helper, self._disk = helper, disk
        self._under_way: Future[None] | None = None
        self._forced: Future[None] | None = None
        self._unforced = 0
        self._ids: list[Ids] = []
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = self._waiting_rows = 0
        self._writer = parquet_writer(path, schema)

    def add(self, batch: pa.RecordBatch, ids: Ids | None, most: int) -> None:
        """Add messages. Args: most: bytes to gather for one row group; as many may be on their way to the file meanwhile.

        A row group per pull would be of some 900 rows of 1 KB, too small for readers.
        """
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self._waiting_rows += len(batch)
        self.rows += len(batch)
        if CORRUPT in batch.schema.names:
            self.corrupt += len(batch) - batch.column(CORRUPT).null_count
        else:
            self.corrupt += int(np.count_nonzero(marked(batch)))
        if ids is not None:
            self._ids.append(ids)
        if self._waiting_bytes >= most or self._waiting_rows >= ROW_GROUP_ROWS:
            self._write()

    def _write(self) -> None:
        waiting, self._waiting, self._waiting_bytes, self._waiting_rows = self._waiting, [], 0, 0
        self.settle()
        if waiting:
            self._under_way = self._helper.submit(self._write_group, pa.Table.from_batches(waiting))

    def _write_group(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._unforced += table.nbytes
        # One fsync at a time: a disk that is slower than the task gets no queue of them.
        if self._unforced >= _FORCED_BYTES and (self._forced is None or self._forced.done()):
            self._see_forced()
            self._unforced, self._forced = 0, self._disk.submit(sync_file, self.path)

    def _see_forced(self) -> None:
        """Raise the fault of a background fsync: the kernel reports a failed write-back once, later fsyncs succeed."""
        if self._forced is not None:
            self._forced.result()

    def _force(self) -> None:
        self._see_forced()
        sync_file(self.path)
        # From the page cache: the bytes that Parquet's writer has made.
        self.sha256 = sha256_of(self.path)

    def settle(self) -> None:
        """Wait for pending writes; after `close` for the whole file, synced. Raises OSError."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def close(self) -> None:
        """Write the rest and close the file; after a fault the file is incomplete. Raises OSError."""
        try:
            self._write()
            self.settle()
        finally:
            self._writer.close()
        self._under_way = self._helper.submit(self._force)

    def save_ids(self) -> Path:
        """Save the ids, sorted, and return the path. Synced if the file will be kept.

        Sorted here, in parallel: all tasks would wait for the driver to do it.
        """
        path, ids = self.path.with_suffix(".ids"), Ids.join(self._ids)
        # The driver then only merges runs: 0.17 s instead of 0.6 s for a batch of 2 million.
        ids.in_order().save(path)
        if len(ids) >= KEPT_LEAST:
            sync_file(path)
        return path


def date_of(day: int) -> str:
    """Return YYYY-MM-DD of days since 1970, bounded to dates that exist: a broker's clock may be far off."""
    return str(_EPOCH + dt.timedelta(days=min(max(day, -700_000), 2_900_000)))
