"""Index of an archive's files by queue, from file names and Parquet footers.

The name of a file that a batch published has its queue and first offset. A merged file has them in the statistics of its footer,
per row group; only for a row group of several queues are the key columns read.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from metaq.archive.parquet import opened
from metaq.archive.records import ArchivedFile
from metaq.errors import StoreCorrupt
from metaq.model.queue import MessageQueue

BUFFER_BYTES = 64 * 1024
"""Buffer per column of an open file: small, because one or two files per queue are open at a time."""
_KEY = ["broker", "queue_id", "queue_offset"]
_NAME = re.compile(r"[^-]{1,8}-\d{10}-(?P<broker>.+)-(?P<queue>\d+)-(?P<start>\d{20})\.parquet")

Place = tuple[str, int]
"""Broker and queue id; the topic is known."""


class Group(Struct, frozen=True):
    """The messages of one queue in one row group."""

    number: int
    first: int
    last: int
    newest_ms: int | None = None
    """Newest store time of the whole row group."""


class Entry(Struct, frozen=True):
    """The messages of one queue in one file."""

    file: ArchivedFile
    first: int
    """Lower bound of its offsets."""
    named: bool
    """Whether it is from the file's name: files of the queue with higher offsets in their names begin after its last one."""


def place_in_name(path: str) -> tuple[Place, int] | None:
    """Return queue and first offset from a file name of a batch; None: another kind of name."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    return None if found is None else ((unquote(found["broker"]), int(found["queue"])), int(found["start"]))


class Footers:
    """Cache of footers. A path's content never changes, so an entry is valid as long as the file is in use."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Place, list[Group]]] = {}
        self._lock = threading.Lock()

    def groups(self, file: ArchivedFile, at: Path) -> dict[Place, list[Group]]:
        """Return queue → its row groups. Raises: FileNotFoundError. StoreCorrupt: it cannot be read."""
        with self._lock:
            known = self._known.get(file.path)
        # The lock is not held while a file is read: two threads may read one footer, and both find the same.
        if known is None:
            with opened(at, BUFFER_BYTES) as parquet, parquet_faults(at):
                known = _groups(parquet)
            with self._lock:
                self._known[file.path] = known
        return known

    def forget_but(self, paths: frozenset[str]) -> None:
        with self._lock:
            for path in self._known.keys() - paths:
                del self._known[path]


class parquet_faults:  # noqa: N801  reads as a function
    """Translate Arrow's exceptions of reading a file into StoreCorrupt."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, fault: BaseException | None, __: object) -> None:
        if isinstance(fault, pa.ArrowException | OSError) and not isinstance(fault, FileNotFoundError):
            raise StoreCorrupt(f"{self._path} cannot be read: {fault}") from fault


def _groups(file: pq.ParquetFile) -> dict[Place, list[Group]]:
    found: dict[Place, list[Group]] = {}
    about = file.metadata
    columns = {about.schema.column(number).path: number for number in range(about.num_columns)}
    for number in range(about.num_row_groups):
        ends = [_ends(about.row_group(number).column(columns[name]).statistics) for name in _KEY]
        times = about.row_group(number).column(columns["store_time"]).statistics
        # `max_raw` is in µs, as `store_time`. `max` would make a datetime, which ends at the year 9999.
        newest = times.max_raw // 1000 if times is not None and times.has_min_max else None
        if all(end is not None for end in ends) and ends[0][0] == ends[0][1] and ends[1][0] == ends[1][1]:
            found.setdefault((ends[0][0], ends[1][0]), []).append(Group(number, ends[2][0], ends[2][1], newest))
            continue
        # A merged file has small queues together in one row group; statistics cannot tell them apart.
        for place, first, last in _queues(file.read_row_group(number, columns=_KEY)):
            found.setdefault(place, []).append(Group(number, first, last, newest))
    return found


def _ends(statistics: Any) -> Any:
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None


def _queues(keys: pa.Table) -> Iterator[tuple[Place, int, int]]:
    ends = keys.group_by(["broker", "queue_id"]).aggregate([("queue_offset", "min"), ("queue_offset", "max")])
    for row in ends.to_pylist():
        yield (row["broker"], row["queue_id"]), row["queue_offset_min"], row["queue_offset_max"]


def entries(topic: str, files: list[tuple[ArchivedFile, Path]], footers: Footers) -> dict[MessageQueue, list[Entry]]:
    """Return queue → its files, by first offset, of a topic. Raises: as `Footers.groups`."""
    found: dict[MessageQueue, list[Entry]] = {}
    for file, at in files:
        # The name of a batch's file tells its queue and first offset, so that it need not be opened yet.
        named = place_in_name(file.path)
        if named is not None:
            found.setdefault(MessageQueue(topic, *named[0]), []).append(Entry(file, named[1], True))
            continue
        for place, groups in footers.groups(file, at).items():
            first = min(group.first for group in groups)
            found.setdefault(MessageQueue(topic, *place), []).append(Entry(file, first, False))
    for mine in found.values():
        mine.sort(key=lambda entry: (entry.first, entry.file.path))
    return found


def mine(batch: pa.RecordBatch, queue: MessageQueue, start: int) -> pa.RecordBatch:
    """Return the rows of a queue from an offset on. A file is sorted by queue and offset, so they are consecutive."""
    wanted = np.asarray(pc.equal(batch.column("broker"), queue.broker)) & (
        batch.column("queue_id").to_numpy() == queue.queue_id
    )
    wanted &= batch.column("queue_offset").to_numpy() >= start
    rows = np.flatnonzero(wanted)
    if not len(rows):
        return batch.slice(0, 0)
    # A slice shares the batch's memory; `take` copies, and is only for a file that is not in order.
    if int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return batch.slice(int(rows[0]), len(rows))
    return batch.take(pa.array(rows))
