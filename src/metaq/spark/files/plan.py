"""Planning of Spark partitions from files: large ones are cut, small ones joined."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from metaq.errors import ConfigError
from metaq.option_table import MIB
from metaq.spark.files.found import FoundArchived, FoundFile, FoundLog, FoundSegment
from metaq.spark.files.settings import FilesOptions
from metaq.store.offline.damage import Damage
from metaq.store.offline.log_pieces import LogPiece, pieces_of, store_ms_at
from metaq.store.offline.segments import SegmentPiece

PIECE_BYTES_MIN = MIB
"""Smallest piece of a file: smaller ones cost more to find than they save, however many partitions are asked for."""
_TIMES_STEP_BACK_MS = 10_000
"""Tolerance for a broker's clock that was set back: a file is skipped only if its times are this far off."""


class LogPart(Struct, frozen=True):
    """A piece of a log."""

    piece: LogPiece
    hidden: dict[str, int]
    """Topic or queue (`metaq.model.upkeep.floors`) → log offset below which its records are gone, or of a topic that was deleted and made anew."""


class ArchivedPart(Struct, frozen=True):
    """A published Parquet file, or some row groups of it."""

    path: str
    topic: str
    groups: tuple[int, ...] = ()
    """Row groups to read; empty: all."""


Part = LogPart | SegmentPiece | ArchivedPart | Damage


def partitions(found: Sequence[FoundFile], options: FilesOptions) -> list[list[Part]]:
    """Return the parts of each Spark partition, in reading order.

    Raises: ConfigError: a time range, and files of MetaQ 1.x, which have no store times.
    """
    if options.has_times and any(isinstance(one, FoundSegment) for one in found):
        raise ConfigError(
            "startingTimestamp and endingTimestamp are for messages whose store time is known, and data files of MetaQ 1.x "
            "hold none: take them away, or leave those files out"
        )
    total = sum(_bytes(one) for one in found)
    least = options.min_partitions or os.cpu_count() or 1
    size = max(PIECE_BYTES_MIN, min(options.max_bytes_per_partition, -(-total // least)))
    return pack((sized for one in found for sized in _parts(one, options, size)), size)


def pack(parts: Iterable[tuple[Part, int]], bytes_max: int) -> list[list[Part]]:
    """Group neighbouring (part, bytes) up to `bytes_max`; a larger part is alone."""
    packed: list[list[Part]] = []
    filled = 0
    for part, size in parts:
        if not packed or filled + size > bytes_max:
            packed.append([])
            filled = 0
        packed[-1].append(part)
        filled += size
    return packed


def _bytes(found: FoundFile) -> int:
    if isinstance(found, FoundLog):
        return sum(max(0, min(file.end, found.end) - file.start) for file in found.files)
    if isinstance(found, FoundSegment):
        return found.bytes
    return found.file.size if isinstance(found, FoundArchived) else 0


def _parts(found: FoundFile, options: FilesOptions, size: int) -> Iterator[tuple[Part, int]]:
    if isinstance(found, FoundLog):
        yield from _log_parts(found, options, size)
    elif isinstance(found, FoundSegment):
        yield from _segment_parts(found, options, size)
    elif isinstance(found, FoundArchived):
        yield from _archived_parts(found, options, size)
    else:
        yield found, 0


def _log_parts(found: FoundLog, options: FilesOptions, size: int) -> Iterator[tuple[Part, int]]:
    # By the consume queues' borders: a body may hold bytes that look like a record, so none is guessed.
    pieces, missing = pieces_of(found.files, found.end, size, found.borders)
    for damage in missing:
        yield damage, 0
    passed = _files_out_of_time(found, options) if options.has_times else set()
    for piece in pieces:
        if piece.file.path not in passed:
            yield LogPart(piece, found.hidden), piece.stop - piece.start


def _files_out_of_time(found: FoundLog, options: FilesOptions) -> set[str]:
    """Return the paths of files without a message in the wanted time range, judged by each file's first store time."""
    begins = [store_ms_at(file) for file in found.files]
    out = set()
    for number, file in enumerate(found.files):
        first = begins[number]
        following = begins[number + 1] if number + 1 < len(begins) else None
        start, end = options.starting_timestamp, options.ending_timestamp
        # A file's newest message is no newer than the next file's first, but for a clock that was set back.
        if start is not None and following is not None and following + _TIMES_STEP_BACK_MS < start:
            out.add(file.path)
        if end is not None and first is not None and first - _TIMES_STEP_BACK_MS >= end:
            out.add(file.path)
    return out


def _segment_parts(found: FoundSegment, options: FilesOptions, size: int) -> Iterator[tuple[Part, int]]:
    segment = found.segment
    if not options.wanted.has(segment.topic):
        return
    # A zip file can only be decompressed from its beginning.
    count = 1 if segment.is_zip else max(1, -(-found.bytes // size))
    marks = [segment.start + found.bytes * step // count for step in range(count + 1)]
    for begin, stop in itertools.pairwise(marks):
        if begin < stop:
            yield SegmentPiece(segment, begin, stop, found.last), stop - begin


def _archived_parts(found: FoundArchived, options: FilesOptions, size: int) -> Iterator[tuple[Part, int]]:
    if not options.wanted.has(found.file.topic):
        return
    # Only of large files: the planner would open every file of an archive otherwise.
    groups = _row_groups(found.path) if found.file.size > size else []
    if len(groups) < 2:
        yield ArchivedPart(str(found.path), found.file.topic), found.file.size
        return
    for number, group_bytes in enumerate(groups):
        yield ArchivedPart(str(found.path), found.file.topic, (number,)), group_bytes


def _row_groups(path: Path) -> list[int]:
    """Return the bytes of each row group; [] for a file that cannot be read: its task reports that."""
    import pyarrow as pa  # Lazily: plans without large archived files do not need it.
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            about = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            return [sum(group.column(i).total_compressed_size for i in range(group.num_columns)) for group in about]
    except (pa.ArrowException, OSError):
        return []
