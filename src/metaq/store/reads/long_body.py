"""The records of a long pull, read piece by piece: a slow client holds one piece in memory, not the whole answer.

The extent is decided first: units of a queue from one to another whose tag fits, with their records in one log file. Units
and records never change, and the open files stay readable although retention deletes them, so all pieces together have
exactly the bytes that were counted then, and announced in the frame's length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from metaq.errors import StoreError
from metaq.store.mapped_file import MappedFile
from metaq.store.queues.consume_queue import UNIT_BYTES
from metaq.wire import hot

LONG_BYTES: Final = 256 * 1024
"""RocketMQ's limit of one pull, `maxTransferBytesOnMessageInMemory`. More than that comes in pieces."""
PIECE_BYTES: Final = 128 * 1024
"""Size of a piece, at most; a larger record is a piece by itself."""
_VIEW_BYTES_MIN: Final = 16 * 1024
_UNITS_READ: Final = 1024
# Bytes read for one byte wanted, at most: beyond that single reads are cheaper.
_EXTENT_MAX: Final = 8
_COUNT_MAX: Final = 1 << 30


class Guard(NamedTuple):
    """What `hot.check` compares each record with before it is served, and whom to tell of damage."""

    owner: hot.QueueTail
    fresh_from: int
    on_damage: Callable[[int], None]
    """Takes the queue offset."""


class Extent(NamedTuple):
    """The records of a pull: those of the units [start, stop) that pass `wanted`, `size` bytes in one log file."""

    start: int
    stop: int
    size: int
    wanted: hot.Filter | None
    guard: Guard
    log_file: MappedFile
    log_min: int
    log_stop: int
    """Units that point below `log_min` are passed over; one that points behind `log_stop` ends the pull."""


class NotInMemory(Exception):
    """The read would wait for the disk, on the event loop."""


class Scratch:
    """A buffer for reads on the event loop whose bytes are not kept: the next read overwrites them."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray())

    def reader(self, file: MappedFile) -> Callable[[int, int], memoryview]:
        """Return a function that reads (offset, size) of the file. It raises NotInMemory instead of waiting, OSError."""

        def read(offset: int, size: int) -> memoryview:
            if (view := file.view_cached(offset, size)) is not None:
                return view  # not a copy of all that lies between the records
            if len(self._memory) < size:
                self._memory = memoryview(bytearray(size))
            if not file.read_cached(offset, self._memory[:size]):
                raise NotInMemory
            return self._memory[:size]

        return read


class LongBody:
    """A body in pieces. `len` is its size in bytes, `bytes` joins all pieces."""

    cold = False
    """Pieces may come from the disk: read them in a thread."""

    def __init__(self, extent: Extent) -> None:
        self._unit, self._stop, self._wanted, self._guard = extent.start, extent.stop, extent.wanted, extent.guard
        self._size = self._left = extent.size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes | memoryview]:
        while len(piece := self.next()):
            yield piece

    def __bytes__(self) -> bytes:
        return b"".join(self)

    def next(self) -> bytes | memoryview:
        """The next piece; empty behind the last. Raises OSError, StoreError."""
        while self._left:
            before = self._unit
            # One record at least, whatever its size: else a record above PIECE_BYTES would never go out.
            piece = self._read()
            if 0 < len(piece) <= self._left:
                self._left -= len(piece)
                return piece
            if len(piece) or not before < self._unit < self._stop:
                # The frame's length is on the wire, so nothing can be left out. The next pull ends before it, or finds it mended.
                self._guard.on_damage(self._unit)
                raise StoreError(f"{self._left} of {self._size} bytes of a pull are not where they were")
        return b""

    def _read(self) -> bytes | memoryview:
        """Read a piece from `_unit` on, and move `_unit` behind it; may be empty where no unit fits."""
        raise NotImplementedError


class MappedBody(LongBody):
    """Recent records, through the mappings of one queue file and one log file."""

    def __init__(self, units: Any, first_unit: int, extent: Extent) -> None:
        """`units` is the queue file's buffer, its first unit `first_unit`."""
        super().__init__(extent)
        self._units, self._first_unit = units, first_unit
        self._log, self._log_start = extent.log_file.buffer, extent.log_file.start
        self._log_min, self._log_stop = max(extent.log_min, extent.log_file.start), extent.log_stop

    def _read(self) -> bytes | memoryview:
        _, size, self._unit, first_log, _, body, _ = hot.read(
            self._units, self._first_unit, self._unit, self._stop, self._wanted, _COUNT_MAX, PIECE_BYTES,
            self._log_min, self._log_stop, self._log, self._log_start, _VIEW_BYTES_MIN,
            self._guard.owner, self._guard.fresh_from,
        )  # fmt: skip
        if body is None:
            start = first_log - self._log_start
            return memoryview(self._log)[start : start + size]
        return body


class ColdBody(LongBody):
    """Old records, by pread of one queue file and one log file."""

    cold = True

    def __init__(self, queue_file: MappedFile, extent: Extent, scratch: Scratch) -> None:
        super().__init__(extent)
        self._read_units: Callable[[int, int], bytes | memoryview] = queue_file.read
        self._read_log: Callable[[int, int], bytes | memoryview] = extent.log_file.read
        self._cached = scratch.reader(queue_file), scratch.reader(extent.log_file)
        self._path = extent.log_file.path
        self._log_min, self._log_stop = extent.log_min, extent.log_stop
        _ = queue_file.descriptor, extent.log_file.descriptor  # open from now on, whatever retention deletes

    def next_cached(self) -> bytes | memoryview | None:
        """The next piece, as `next`, if all of it is in memory; None: call `next`, in a thread. Raises OSError, StoreError."""
        before, old = self._unit, (self._read_units, self._read_log)
        self._read_units, self._read_log = self._cached
        try:
            return self.next()
        except NotInMemory:
            # The thread begins with the same unit.
            self._unit = before
            return None
        finally:
            self._read_units, self._read_log = old

    def _read(self) -> bytes:
        count = min(self._stop - self._unit, _UNITS_READ)
        units = self._read_units(self._unit * UNIT_BYTES, count * UNIT_BYTES)
        found = hot.select(
            units, self._unit, self._unit, self._unit + count, self._wanted, _COUNT_MAX, PIECE_BYTES,
            self._log_min, self._log_stop,
        )  # fmt: skip
        body = read_cold(self._read_log, found) if found.count else b""
        if body is None:
            raise StoreError(f"{self._path} is shorter than the queue says")
        _, size, self._unit = hot.check(found, body, self._guard.owner, self._guard.fresh_from)
        return body[:size]


def read_cold(read: Callable[[int, int], bytes | memoryview], found: hot.Selection) -> bytes | None:
    """Return the records found, by `read(log offset, size)`; None if retention has taken some of them."""
    extent = found.last_log_end - found.first_log
    if extent <= _EXTENT_MAX * found.size:  # one read costs less than many, also when others' records lie between
        data = read(found.first_log, extent)
        return hot.gather(found, data, found.first_log) if len(data) == extent else None
    parts = [bytes(read(offset, size)) for offset, size in found.spans()]
    return b"".join(parts) if sum(map(len, parts)) == found.size else None
