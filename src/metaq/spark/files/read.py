"""Worker side of the store reader: a part of a file to Arrow record batches, and its unreadable places."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metaq.client.arrow import records
from metaq.model.message import TRANSACTION_MASK, SysFlag
from metaq.model.upkeep.floors import topic_of
from metaq.spark.files.frames import frames_batch
from metaq.spark.files.plan import ArchivedPart, LogPart, Part
from metaq.spark.files.settings import FilesOptions, Topics
from metaq.store.offline.damage import Damage
from metaq.store.offline.log_pieces import gone, read_piece
from metaq.store.offline.segments import SegmentPiece, find_segments, read_segment

_LOG = logging.getLogger(__name__)

BATCH_ROWS = 5_000
# Above 1 MiB the copy costs more than the batch saves: 0.6 to 1.4 GB/s of a core with bodies of 1 KB.
BATCH_BYTES = 1024 * 1024
"""Batches below both are concatenated: each batch has a price in the pipe to the JVM, concatenating costs a copy."""


def read_parts(
    parts: Sequence[Part], options: FilesOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch | Damage]:
    """Yield the rows of the parts, in order, and the places that cannot be read.

    Raises: StoreCorrupt: a file has vanished that retention does not delete. OSError: the disk fails.
    """
    waiting: list[pa.RecordBatch] = []
    for part in parts:
        for found in _read(part, options, columns):
            if isinstance(found, Damage):
                yield found
                continue
            if found.num_rows:
                waiting.append(found)
            if sum(batch.num_rows for batch in waiting) >= BATCH_ROWS or sum(map(_bytes, waiting)) >= BATCH_BYTES:
                yield _together(waiting)
                waiting = []
    if waiting:
        yield _together(waiting)


def _bytes(batch: pa.RecordBatch) -> int:
    return int(batch.get_total_buffer_size())


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _read(part: Part, options: FilesOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch | Damage]:
    if isinstance(part, LogPart):
        return _read_log(part, options, columns)
    if isinstance(part, SegmentPiece):
        return _read_segment(part, columns)
    if isinstance(part, ArchivedPart):
        return _read_archived(part, options, columns)
    return iter([part])


# ------------------------------------------------------------------ logs of brokers
def _read_log(part: LogPart, options: FilesOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch | Damage]:
    chosen = _Chosen(options, part.hidden)
    try:
        for found in read_piece(part.piece):
            if isinstance(found, Damage):
                yield found
                continue
            yield from _rows(part, chosen.of(records.decode_log(found.data)), columns)
    except FileNotFoundError as fault:
        gone(part.piece, fault)


def _rows(part: LogPart, decoded: records.Decoded, columns: Sequence[str]) -> Iterator[pa.RecordBatch | Damage]:
    if not len(decoded):
        return
    for piece in decoded.pieces(columns):
        if piece.marked:
            yield from _unread(part, piece)
        yield piece.without_marked().to_batch(columns)


def _unread(part: LogPart, piece: records.Decoded) -> Iterator[Damage]:
    """Yield the damage of the records whose bodies cannot be decompressed."""
    sizes = np.frombuffer(piece.parts["size"], np.int32, len(piece))
    for row in piece.marked:
        place = int(piece.log_offsets[row]) - part.piece.file.start
        why = f"the compressed body of {piece.place(row)} cannot be read"
        yield Damage(part.piece.file.path, place, int(sizes[row]), why)


class _Chosen:
    """Chooses the records of a log that become rows: those that a consumer could get, of the wanted topics and times."""

    def __init__(self, options: FilesOptions, hidden: dict[str, int]) -> None:
        self._options, self._hidden = options, hidden
        self._queues = {
            (topic_of(key).encode(), int(queue_id)): floor
            for key, floor in hidden.items()
            if (queue_id := key.partition("@")[2]).isdecimal()
        }
        """Topic and queue id → log offset from which its records are rows, of queues that were trimmed alone."""
        self._wanted: Topics = options.wanted
        self._topics: dict[bytes, int] = {}
        """Topic → log offset from which its records are rows; -1: never."""

    def of(self, decoded: records.Decoded) -> records.Decoded:
        if not len(decoded):
            return decoded
        flags = np.frombuffer(decoded.parts["sys_flag"], np.int32, len(decoded)) & TRANSACTION_MASK
        # Half messages and rollback markers are no rows.
        chosen = (flags == 0) | (flags == SysFlag.COMMITTED)
        topics = records.topics_of(decoded)
        names, indices = topics.dictionary.to_pylist(), topics.indices.to_numpy()
        begins = np.array([self._begin(topic) for topic in names], np.int64)
        begin = begins[indices]
        chosen &= (begin >= 0) & (decoded.log_offsets >= begin)
        for key, floor in self._queues.items():
            if key[0] in names:
                queue_ids = np.frombuffer(decoded.parts["queue_id"], np.int32, len(decoded))
                of_queue = (indices == names.index(key[0])) & (queue_ids == key[1])
                chosen &= ~(of_queue & (decoded.log_offsets < floor))
        if self._options.has_times:
            ms = np.frombuffer(decoded.parts["store_ms"], np.int64, len(decoded))
            start, end = self._options.starting_timestamp, self._options.ending_timestamp
            chosen &= (ms >= (start or 0)) & (ms < (end if end is not None else np.iinfo(np.int64).max))
        return decoded.only(chosen)

    def _begin(self, topic: bytes) -> int:
        begin = self._topics.get(topic)
        if begin is None:
            name = topic.decode("utf-8", "replace")
            begin = self._hidden.get(name, 0) if self._wanted.has(name) else -1
            self._topics[topic] = begin
        return begin


# ------------------------------------------------------------------ data of MetaQ 1.x
def _read_segment(piece: SegmentPiece, columns: Sequence[str]) -> Iterator[pa.RecordBatch | Damage]:
    try:
        for found in read_segment(piece):
            yield found if isinstance(found, Damage) else frames_batch(found, columns)
    except FileNotFoundError:
        # A running server's retention deletes from the oldest on: that is no damage. A hole behind older files is.
        path = piece.segment.path
        left = find_segments(path.parent) if path.parent.is_dir() else []
        if left and left[0].start < piece.segment.start:
            yield Damage(str(path), 0, 0, "the file was there when the read was planned, and is not any more")
        else:
            _LOG.warning("%s was deleted while the read ran: its messages are not in it", path)


# ------------------------------------------------------------------ archives of the pipeline
def _read_archived(
    part: ArchivedPart, options: FilesOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch | Damage]:
    import pyarrow.parquet as pq  # Lazily: readers of logs do not need it.

    from metaq.archive.rows import offset_ids

    schema = records.schema_of(columns)
    try:
        with pq.ParquetFile(part.path, page_checksum_verification=True) as file:
            there = [name for name in columns if name in file.schema_arrow.names]
            # Archived files have store host and log offset instead of the offset id; those of version 1 lack these, too.
            ids = "offset_id" in columns and "log_offset" in file.schema_arrow.names
            more = ["store_time"] * options.has_times + ["store_host", "log_offset"] * ids
            asked = there + [name for name in more if name not in there]
            groups = part.groups or tuple(range(file.num_row_groups))
            for batch in file.iter_batches(BATCH_ROWS, row_groups=list(groups), columns=asked):
                rows = _in_times(batch, options) if options.has_times else batch
                arrays = [
                    pa.repeat(pa.scalar(part.topic), rows.num_rows)
                    if name == "topic"
                    else rows.column(name).cast(records.TYPES[name])
                    if name in there
                    else offset_ids(rows.column("store_host"), rows.column("log_offset"))
                    if name == "offset_id" and ids
                    else pa.nulls(rows.num_rows, records.TYPES[name])
                    for name in columns
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    except FileNotFoundError:
        yield Damage(
            part.path,
            0,
            0,
            "the file is missing: its batch was published, and it was taken away since, or was merged longer ago than graceSeconds",
        )
    except (pa.ArrowInvalid, pa.ArrowException, OSError) as fault:
        yield Damage(part.path, 0, 0, f"no Parquet file that can be read ({fault})")


def _in_times(batch: pa.RecordBatch, options: FilesOptions) -> pa.RecordBatch:
    ms = batch.column("store_time").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    start, end = options.starting_timestamp, options.ending_timestamp
    wanted = pc.greater_equal(ms, pa.scalar(start or 0, pa.int64()))
    if end is not None:
        wanted = pc.and_(wanted, pc.less(ms, pa.scalar(end, pa.int64())))
    return batch.filter(wanted)
