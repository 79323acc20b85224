"""Places of the log that hold no record though records follow: what is in the way, and where the log goes on behind it.

Everything here reads, and by `pread`. It is asked only where a walk over the log meets something that is no record.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.store.log.log_bytes import SIZE_BYTES, LogBytes, LogFile
from metaq.store.mapped_file import FileRun, MappedFile
from metaq.wire import hot

SECTOR_BYTES: Final = 512
"""What a disk writes whole or not at all."""


class DamagedPlace(Struct, frozen=True):
    """A place [start, stop) of the log that cannot be read. `path`: its file, in which it begins at byte `at`."""

    start: int
    stop: int
    path: str
    at: int
    why: str

    @property
    def size(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.path} holds {self.why} at byte {self.at} (log offset {self.start}, {self.size} bytes)"


def place_of(run: FileRun, start: int, stop: int, why: str) -> DamagedPlace:
    """Return the place, with the file that it begins in."""
    file = run.find(start)
    return DamagedPlace(start, stop, str(file.path if file else run.folder), start - file.start if file else start, why)


def behind(run: FileRun, place: int, limit: int | None = None) -> int | None:
    """Return where the log goes on behind a place that cannot be read; None: no whole record follows (before `limit`).

    Where only a record's body is damaged, or its head says rightly how long it is, that is behind this one record; what
    is there may be damaged, too.
    """
    file = run.find(place)
    if file is None:
        return None
    with LogBytes(_log_file(file)) as source:
        stop = told_end(source, place)
    following = next_record(run, max(place, stop - 1), limit)
    return None if following is None else stop or following


def told_end(source: LogBytes, place: int) -> int:
    """Return where the damaged record at LogOffset `place` ends by what it says itself; 0: it does not say, or wrongly.

    A body may hold bytes that look like a record, so this counts before what is found by looking for the next one.
    """
    at, limit = place - source.file.start, source.file.size
    # Only the body is damaged, or the record does not follow those before it.
    if size := source.is_record(at, limit, check_crc=False):
        return place + size
    # With a damaged head, if a record begins there.
    told = int.from_bytes(source.read(at, 4), "big", signed=True)
    for size in (told, source.sum_of_parts(at)):
        if 0 < size < limit - at and source.is_record(at + size, limit, check_crc=True):
            return place + size
    return 0


def next_record(run: FileRun, place: int, limit: int | None = None) -> int | None:
    """Return where the next whole record behind `place` begins: checksum and own log offset right; None: there is none."""
    start = place + 1
    for file in run.files:
        if file.end <= start or (limit is not None and file.start >= limit):
            continue
        stop = file.size if limit is None else min(file.size, limit - file.start)
        with LogBytes(_log_file(file)) as source:
            found = source.next_record(max(0, start - file.start), stop)
        if found < stop:
            return file.start + found
    return None


def is_unpublished(run: FileRun, place: int) -> bool:
    """Whether an append begins at `place` that was cut short before it was published (`LogBytes.is_unpublished`): the log ends there."""
    file = run.find(place)
    if file is None:
        return False
    with LogBytes(_log_file(file)) as source:
        unpublished = source.is_unpublished(place - file.start)
    return unpublished and next_record(run, file.end - 1) is None


def head_at(run: FileRun, place: int, *, check_crc: bool) -> hot.RecordHead | None:
    """Return the head of the record at `place`; None: there is none, or with `check_crc` its body is damaged."""
    file = run.find(place)
    if file is None:
        return None
    with LogBytes(_log_file(file)) as source:
        at = place - file.start
        size = source.is_record(at, file.size, check_crc=check_crc)
        heads, _, _ = hot.scan_records(source.read(at, size), 0, size, place, 1, check_crc=False)
    return heads[0] if heads else None


def whole_records(file: MappedFile, start: int, stop: int) -> int:
    """Return the number of whole records that begin in [start, stop), also behind bytes that are none."""
    count, place = 0, start - file.start
    with LogBytes(_log_file(file)) as source:
        while (place := source.next_record(place, stop - file.start)) < stop - file.start:
            _, rows, size, _ = source.run(place, stop - file.start, stop - file.start, check_crc=True)
            count, place = count + rows, place + max(size, 1)
    return count


def may_be_unwritten(run: FileRun, start: int, stop: int) -> bool:
    """Whether [start, stop), with a whole record behind it, may be what a power cut leaves of bytes that were never synced.

    What did not reach the disk is whole sectors, each of which holds zeros from some byte on: nothing else was written there
    before. A flipped bit looks otherwise.
    """
    for border in range(start - start % SECTOR_BYTES + SECTOR_BYTES, stop + SIZE_BYTES, SECTOR_BYTES):
        file = run.find(border - 1)
        # The record behind may begin in the last sector, if that ends in the zeros of its size.
        first = min(border, stop) - 1
        if file is None or not any(file.read(first, border - first)):
            return True
    return False


def _log_file(file: MappedFile) -> LogFile:
    return LogFile(file.start, str(file.path), file.size)
