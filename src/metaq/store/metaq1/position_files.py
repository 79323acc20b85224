"""The files of one queue's byte positions: 8 bytes a message, derived from the log (docs/formats/positions.md)."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

from metaq.errors import StoreError
from metaq.store.disk import Disk
from metaq.store.mapped_file import FileRun, MappedFile
from metaq.wire import hot

UNIT_BYTES: Final = 8
FILE_BYTES: Final = 2 * 1024 * 1024
RESERVE_BYTES: Final = 16 * 1024
POSITIONS_END: Final = 1 << 48
"""No unit holds a larger position."""


class PositionFiles:
    """Unit n is the position of the message with queue offset n; the one behind the newest message has one too."""

    __slots__ = ("run",)

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.run = FileRun(folder, FILE_BYTES, disk)

    def load(self) -> bool:
        """Find the files. Returns False: there are none, or not only files of positions."""
        try:
            self.run.load("", derived=True)
            if self.run.is_whole:
                return bool(self.run.files)
            self.run.remove_leftovers()
        except StoreError:
            return False
        return bool(self.run.files)

    @property
    def first(self) -> int:
        """The first unit of the files that there are."""
        return self.run.files[0].start // UNIT_BYTES

    def create(self, first: int, last: int) -> None:
        """Make empty files for units [first, last]; files that were there are deleted. Raises StoreFull, OSError."""
        import shutil  # here and not above: it brings every kind of compression along, at each start

        self.run.drop_from(0)
        shutil.rmtree(self.run.folder, ignore_errors=True)
        place = first * UNIT_BYTES - first * UNIT_BYTES % FILE_BYTES
        self.reserve(place // UNIT_BYTES, last)

    def reserve(self, first: int, last: int) -> MappedFile:
        """Reserve blocks for units [first, last]. Returns the file of the last. Raises StoreFull, OSError.

        `first` is in one of the files, or begins the next.
        """
        place, stop = first * UNIT_BYTES, (last + 1) * UNIT_BYTES
        file = None
        while place < stop:
            file = self.run.find(place)
            start = place - place % FILE_BYTES
            wanted = min(FILE_BYTES, -(-(stop - start) // RESERVE_BYTES) * RESERVE_BYTES)
            if file is None:
                file = self.run.add(start, reserved=wanted)
            else:
                file.reserve(place, start + wanted - place)
            place = file.end
        assert file is not None
        return file

    def attach(self, tail: hot.PositionTail, ahead: int = 1) -> None:
        """Give the tail room for `ahead` messages at least, or to the end of their file. Raises StoreFull, OSError."""
        unit = tail.next_offset + 1
        file_last = (unit * UNIT_BYTES // FILE_BYTES + 1) * FILE_BYTES // UNIT_BYTES - 1
        last = min(unit + ahead - 1, file_last)
        file = self.reserve(unit, last)
        # As in consume queues: read-ahead would make a whole file of pages for each of many queues.
        file.touch_singly()
        reserved = min(FILE_BYTES, -(-((last + 1) * UNIT_BYTES - file.start) // RESERVE_BYTES) * RESERVE_BYTES)
        tail.attach(file.buffer, file.start // UNIT_BYTES, reserved // UNIT_BYTES)

    # ------------------------------------------------------------------ units

    def read(self, offset: int) -> int | None:
        """Return the position of a queue offset; None: its unit is not written, or damaged."""
        file = self.run.find(offset * UNIT_BYTES)
        found = hot.position_of(file.read(offset * UNIT_BYTES, UNIT_BYTES), offset) if file else -1
        return found if found >= 0 else None

    def read_many(self, first: int, stop: int) -> list[int]:
        """Return the positions of queue offsets [first, stop); -1 where `read` returns None."""
        data = self.read_bytes(first, stop)
        return [
            hot.position_of(data[at : at + UNIT_BYTES], first + at // UNIT_BYTES)
            for at in range(0, len(data), UNIT_BYTES)
        ]

    def read_bytes(self, first: int, stop: int) -> bytes:
        """Return the units as stored; zeros where there is no file."""
        data = bytearray()
        while (place := first * UNIT_BYTES + len(data)) < stop * UNIT_BYTES:
            file = self.run.find(place)
            size = (file.end if file else place - place % FILE_BYTES + FILE_BYTES) - place
            size = min(size, stop * UNIT_BYTES - place)
            found = file.read(place, size) if file else b""
            data += found + bytes(size - len(found))
        return bytes(data)

    def write(self, first: int, start: int, sizes: array[int]) -> int:
        """Write the units of messages of these frame sizes from queue offset `first` on, whose position is `start`.

        Also the unit behind them. All are reserved. Returns the position behind them.
        """
        units, end = hot.position_units(sizes, first, start)
        data = memoryview(units)
        place, written = first * UNIT_BYTES, 0
        while written < len(data):
            file = self.run.find(place + written)
            assert file is not None, "they are reserved"
            at = place + written - file.start
            size = min(FILE_BYTES - at, len(data) - written)
            file.buffer[at : at + size] = data[written : written + size]
            written += size
        return end

    def write_one(self, offset: int, position: int) -> None:
        """Write the unit of one queue offset, which is reserved."""
        self.write(offset, position, array("i"))

    def lowest(self, first: int, known: int) -> int:
        """Return the first of the units that are written without a hole up to `known`. By bisection: a hole may be missed."""
        files = self.run.files
        low = max(first, files[0].start // UNIT_BYTES) if files else known
        return low + bisect_left(range(low, known), True, key=lambda offset: self.read(offset) is not None)

    def highest(self) -> int | None:
        """Return the last unit that is written; None: none is."""
        for file in reversed(self.run.files):
            # A written unit is never all zeros: its first bit is set.
            data = file.read(file.start, FILE_BYTES).rstrip(b"\0")
            if data:
                return (file.start + len(data) - 1) // UNIT_BYTES
        return None

    def last_position(self) -> int:
        """Return the position in the last unit that is written; 0: none is, or it is damaged."""
        highest = self.highest()
        return (self.read(highest) or 0) if highest is not None else 0

    # ------------------------------------------------------------------ the disk

    def sync(self, first: int, stop: int) -> None:
        """Make units [first, stop) durable, and the names of their files. Raises OSError."""
        if self.run.unsynced:
            # The queue's folder, its topic's, and `positions` itself may be new.
            self.run.sync_folder(above=3)
        for file in self.run.files:
            start, end = max(file.start, first * UNIT_BYTES), min(file.end, stop * UNIT_BYTES)
            if start < end:
                file.sync(start, end)

    def drop_below(self, offset: int) -> None:
        """Delete files all of whose units lie below. Raises OSError."""
        self.run.drop_before(offset * UNIT_BYTES)

    def release(self) -> None:
        """Drop the mappings of all files but the newest."""
        for file in self.run.files[:-1]:
            file.release()


def sizes_agree(positions: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether positions (one more than sizes) differ by just these sizes."""
    return positions[0] >= 0 and list(accumulate(sizes, initial=positions[0])) == list(positions)
