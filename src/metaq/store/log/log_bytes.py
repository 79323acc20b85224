"""Reads log files by `pread`, and finds the next whole record behind bytes that are none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final, Self

from msgspec import Struct

from metaq.model.message import SysFlag
from metaq.wire import hot
from metaq.wire.record import HOST_V4, HOST_V6, MAGIC, RECORD_BYTES_MIN, TOPIC_BYTES_MAX

BLOCK_BYTES: Final = 4 * 1024 * 1024
ROWS_MAX: Final = 10_000
"""Records of one `LogBytes.run`, at most."""
AHEAD_BYTES_MAX: Final = 1024 * 1024
"""Bytes of records that have their units before the first of them has its size, at most: the native module makes 256 KiB ahead."""
SIZE_BYTES: Final = 4
"""With its size a record begins; the first of these bytes is always zero."""
_LOG_OFFSET_AT: Final = 28
"""Byte of a record at which its LogOffset stands."""
_MAGIC: Final = MAGIC.to_bytes(4, "big")
_BLANK: Final = bytes(BLOCK_BYTES)


class LogFile(Struct, frozen=True):
    """One file of a log."""

    start: int
    """LogOffset of its first byte."""
    path: str
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class LogBytes:
    """A log file, read by `pread` into a buffer: not mapped, since a failing disk would be a SIGBUS instead of an OSError."""

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self._descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        self._block = bytearray(min(BLOCK_BYTES, file.size))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def read(self, place: int, size: int) -> memoryview:
        """Read bytes from `place` of the file on, fewer at its end. The view is valid until the next call."""
        if size > len(self._block):
            self._block = bytearray(size)
        view, count = memoryview(self._block)[:size], 0
        try:
            while count < size and (more := os.preadv(self._descriptor, [view[count:]], place + count)):
                count += more
        except OSError as fault:
            why = f"{fault.strerror}, at byte {place + count}"
            raise OSError(fault.errno, why, self.file.path) from None
        return view[:count]

    def data_from(self, place: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [place, stop) that were ever written, as far as the file system knows."""
        while place < stop:
            try:
                begin = os.lseek(self._descriptor, place, os.SEEK_DATA)
                end = os.lseek(self._descriptor, begin, os.SEEK_HOLE)
            except OSError:  # nothing but a hole up to the end; or the file system does not tell
                with contextlib.suppress(OSError):
                    if os.lseek(self._descriptor, place, os.SEEK_HOLE) == place:
                        return
                begin, end = place, stop
            if begin < stop:
                yield begin, min(end, stop)
            place = end

    def run(self, place: int, limit: int, until: int, *, check_crc: bool) -> tuple[memoryview, int, int, int]:
        """Read whole records from `place` to `limit` of the file, as many as a block holds, that begin before `until`.

        Returns the block, the number of records, their bytes, and END_*.
        """
        size = BLOCK_BYTES
        while True:
            wanted = min(size, limit - place)
            block = self.read(place, wanted)
            rows, stop, outcome = hot.record_run(
                block, 0, len(block), self.file.start + place, ROWS_MAX, until - place, check_crc
            )
            cut_here = outcome == hot.END_SHORT and len(block) == wanted < limit - place
            if cut_here and rows:
                return block, rows, stop, hot.END_CLEAN
            needed = int.from_bytes(block[:4], "big", signed=True) if cut_here else 0
            if not wanted < needed <= limit - place or not self._parts_fit(place, needed):
                return block, rows, stop, outcome
            size = needed

    def is_record(self, place: int, limit: int, *, check_crc: bool) -> int:
        """Return the size of the record at `place`; 0: none begins there."""
        head = self.read(place, min(RECORD_BYTES_MIN, limit - place))
        size = int.from_bytes(head[:4], "big", signed=True)
        if len(head) < RECORD_BYTES_MIN or head[4:8] != _MAGIC or not RECORD_BYTES_MIN <= size <= limit - place:
            return 0
        # Before it is read: bodies may be full of heads that claim the rest of the file.
        if int.from_bytes(head[_LOG_OFFSET_AT : _LOG_OFFSET_AT + 8], "big") != self.file.start + place:
            return 0
        if size > BLOCK_BYTES and not self._parts_fit(place, size):
            return 0
        rows, _, _ = hot.record_run(self.read(place, size), 0, size, self.file.start + place, 1, size, check_crc)
        return size if rows else 0

    def _parts_fit(self, place: int, size: int) -> bool:
        """Whether the parts of a large record add up to its size. Else a forged size would have up to a whole file read."""
        return self.sum_of_parts(place) == size

    def sum_of_parts(self, place: int) -> int:
        """Return the size that the record at `place` has by the lengths of its parts; 0: they are impossible."""
        head = bytes(self.read(place, 48 + 2 * HOST_V6 + 24))
        sys_flag = int.from_bytes(head[36:40], "big")
        hosts = (HOST_V6 if sys_flag & SysFlag.BORN_HOST_V6 else HOST_V4) + 8
        hosts += HOST_V6 if sys_flag & SysFlag.STORE_HOST_V6 else HOST_V4
        body = 48 + hosts + 16
        topic = body + int.from_bytes(head[body - 4 : body], "big", signed=True)
        if not body <= topic <= self.file.size - place - 3:
            return 0
        rest = bytes(self.read(place + topic, 1 + TOPIC_BYTES_MAX + 2))
        behind = 1 + rest[0] if rest else 0
        return topic + behind + 2 + int.from_bytes(rest[behind : behind + 2], "big")

    def is_unpublished(self, place: int) -> bool:
        """Whether an append begins at `place` that was cut short, or is under way: its first record is whole but for its size.

        That is written last. Units may point at the records of such an append: they are made while it is.
        """
        if any(self.read(place, SIZE_BYTES)):
            return False
        size, left = self.sum_of_parts(place), self.file.size - place
        if not RECORD_BYTES_MIN <= size <= min(left, AHEAD_BYTES_MAX):
            return False
        record = bytearray(self.read(place, size))
        record[:SIZE_BYTES] = size.to_bytes(SIZE_BYTES, "big")
        rows, _, _ = hot.record_run(record, 0, len(record), self.file.start + place, 1, size, True)
        # Nothing was appended behind it: what has more records behind itself was once published, and is damaged.
        return bool(rows) and (
            left <= AHEAD_BYTES_MAX or self.next_record(place + AHEAD_BYTES_MAX, self.file.size) == self.file.size
        )

    def next_record(self, place: int, limit: int) -> int:
        """Return where the next whole record at or behind `place` begins; `limit` if there is none."""
        for begin, end in self.data_from(place, limit):
            at = begin
            while at < end:
                # Read little beyond what was written: in a file that was copied sparsely, each run of zeros is a hole.
                read = self.read(at, min(BLOCK_BYTES, limit - at, end - at + 2 * len(_MAGIC)))
                if not read:
                    return limit
                # Most is the blank rest of a file: telling so takes a tenth of looking for something in it.
                blank = len(read) == len(self._block) == BLOCK_BYTES and self._block == _BLANK
                block = b"" if blank else bytes(read)
                found = block.find(_MAGIC)
                while found >= 0:
                    record = at + found - 4
                    if record >= place and self.is_record(record, limit, check_crc=True):
                        return record
                    found = block.find(_MAGIC, found + 1)
                if at + len(read) >= limit:
                    return limit
                at += len(read) if blank else max(len(read) - len(_MAGIC) + 1, 1)
        return limit
