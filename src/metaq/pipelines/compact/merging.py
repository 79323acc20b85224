"""Merge of small Parquet files into a large one, row group by row group, ordered by queue and offset.

Each source is sorted, so they are merged as streams: a source is opened when its first row is due, before that only its first
key is read. At most `GROUP_ROWS` rows, or `GROUP_BYTES`, and one batch of each open source are in memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from metaq.archive.parquet import ROW_GROUP_ROWS, batch_rows, opened, parquet_writer
from metaq.durable import sync_file
from metaq.errors import StoreCorrupt

GROUP_ROWS = ROW_GROUP_ROWS
GROUP_BYTES = 64 * 1024 * 1024
BATCH_ROWS = 20_000
BATCH_BYTES = 8 * 1024 * 1024
"""Approximate bytes of a row group, by the mean size of a row."""
_THIN_MANY = 64
_THICK_BYTES = 1024 * 1024
"""Batches that are joined into one, or fewer if they have so many bytes."""
_PAGE_BYTES = 1024 * 1024
"""Bytes of a column chunk that are read at a time."""
KEY = ["broker", "queue_id", "queue_offset"]

Key = tuple[str, int, int]


def schema_of(path: Path) -> pa.Schema:
    """Return columns and types of a file. Raises StoreCorrupt: not a Parquet file."""
    with _opened(path) as file:
        return file.schema_arrow.remove_metadata()


def merge(sources: Sequence[Path], target: Path) -> int:
    """Write the rows of all sources, which have one schema, to a new file, and sync it.

    Returns: the number of rows. Raises: StoreCorrupt: a source cannot be read; OSError.
    """
    try:
        with parquet_writer(target, schema_of(sources[0])) as writer:
            # Joined twice: 64 batches of one row each are still a thin one.
            rows = sum(_write(writer, group) for group in _groups(_thick(_thick(in_order(sources)))))
    finally:
        # Arrow's allocator keeps freed memory, some 100 MB here and fragmented: a driver that merges for days would grow.
        pa.default_memory_pool().release_unused()
    sync_file(target)
    return rows


def _thick(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches: each has some 50 KB of overhead, and a group of small files has thousands."""
    thin: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        thin.append(batch)
        size += batch.nbytes
        if len(thin) >= _THIN_MANY or size >= _THICK_BYTES:
            yield _joined(thin)
            thin, size = [], 0
    if thin:
        yield _joined(thin)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yield the batches of one row group each."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        size += batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield waiting
            waiting, rows, size = [], 0, 0
    yield waiting


def in_order(sources: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all sources in the order of `KEY`. Raises StoreCorrupt."""
    streams = [
        (key, number, _Stream(path)) for number, path in enumerate(sources) if (key := first_key(path)) is not None
    ]
    heapq.heapify(streams)
    try:
        while streams:
            _, number, stream = heapq.heappop(streams)
            yield from stream.below(streams[0][0] if streams else None)
            if (key := stream.head()) is not None:
                heapq.heappush(streams, (key, number, stream))
    finally:
        for _, _, stream in streams:
            stream.close()


class _Stream:
    """A source file: opened for its first row, closed after its last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: pq.ParquetFile | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._left: pa.RecordBatch | None = None

    def below(self, limit: Key | None) -> Iterator[pa.RecordBatch]:
        """Yield the next row, and those after it with keys below `limit`; None: all."""
        # At least one row, so that two sources with equal keys, which no archive should have, cannot loop for ever.
        least = 1
        while (batch := self._next()) is not None:
            count = len(batch) if limit is None else max(least, _count_below(batch, limit))
            least = 0
            if count:
                yield batch.slice(0, count)
            if count < len(batch):
                self._left = batch.slice(count)
                return
            self._left = None

    def head(self) -> Key | None:
        """Return the key of the next row; None: there is none."""
        batch = self._next()
        return None if batch is None else _key(batch)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _next(self) -> pa.RecordBatch | None:
        if self._file is None:
            # Only now: a date may have thousands of files, and a process may open a thousand.
            self._file = _opened(self._path)
            most = batch_rows(self._file.metadata, BATCH_ROWS, BATCH_BYTES)
            # Arrow's threads gain nothing here, and each keeps freed memory that no other can release.
            self._batches = self._file.iter_batches(most, use_threads=False)
        try:
            while self._left is None or not len(self._left):
                self._left = next(self._batches)
        except StopIteration:
            self.close()
            return None
        except (pa.ArrowException, OSError) as fault:
            raise StoreCorrupt(f"{self._path} cannot be read: {fault}") from fault
        return self._left


def first_key(path: Path) -> Key | None:
    """Return the key of a file's first row; None: it has no rows. Raises StoreCorrupt: not a Parquet file."""
    with _opened(path) as file:
        try:
            # One row of the key's columns: sources of thousands are asked.
            batch = next(file.iter_batches(1, columns=KEY, use_threads=False), None)
        except (pa.ArrowException, OSError) as fault:
            raise StoreCorrupt(f"{path} cannot be read: {fault}") from fault
    return None if batch is None or not len(batch) else _key(batch)


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return opened(path, _PAGE_BYTES)
    except FileNotFoundError:
        raise StoreCorrupt(f"{path} is missing: its batch was published, and somebody took it away since") from None


def _key(batch: pa.RecordBatch) -> Key:
    broker, queue_id, offset = (batch.column(name)[0].as_py() for name in KEY)
    return broker, queue_id, offset


def _count_below(batch: pa.RecordBatch, limit: Key) -> int:
    """Return the number of rows with keys below `limit`. The batch is sorted, so they are its first ones."""
    broker, queue_id, offset = limit
    same = pc.equal(batch.column("broker"), broker)
    earlier = np.asarray(pc.less(batch.column("broker"), broker))
    queues, offsets = batch.column("queue_id").to_numpy(), batch.column("queue_offset").to_numpy()
    mine = np.asarray(same) & ((queues < queue_id) | ((queues == queue_id) & (offsets < offset)))
    return int((earlier | mine).sum())


def _write(writer: pq.ParquetWriter, batches: list[pa.RecordBatch]) -> int:
    if not batches:
        return 0
    table = pa.Table.from_batches(batches)
    writer.write_table(table, row_group_size=GROUP_ROWS)
    return len(table)
