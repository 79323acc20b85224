"""One queue: where in the log its messages are, 20 bytes each (docs/formats/consumequeue.md)."""

from __future__ import annotations

import functools
import itertools
import struct
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from metaq.store.disk import Disk
from metaq.store.mapped_file import FileRun, MappedFile
from metaq.wire import hot

UNIT: Final = struct.Struct(">qiq")
UNIT_BYTES: Final = UNIT.size
RESERVE_BYTES: Final = 64 * 1024
"""Step in which blocks are reserved: whole files (6 MB) would take 60 GB for 10 000 queues."""
_FILL_BYTES: Final = 0x7FFFFFFF


class Unit(NamedTuple):
    """Where one message is. `tags_code` is its tag's hash; in the schedule topic, when to deliver it."""

    log_offset: int
    size: int
    tags_code: int

    @property
    def is_fill(self) -> bool:
        """Whether it stands for messages that were gone before this queue's file was made (RocketMQ's fill unit)."""
        return self.log_offset == 0 and self.size == _FILL_BYTES

    @property
    def log_end(self) -> int:
        return 0 if self.is_fill else self.log_offset + self.size


FILL: Final = Unit(0, _FILL_BYTES, 0)


def _in_steps(size: int, file_bytes: int) -> int:
    """Bytes to reserve of a file for its first `size`: whole steps, at most all of it."""
    return min(file_bytes, -(-size // RESERVE_BYTES) * RESERVE_BYTES)


class ConsumeQueue:
    """The units of one queue, [min_offset, max_offset), and their writable end.

    The disk is touched when the first unit is put, so that a topic of 1 024 queues costs nothing before.
    """

    # A broker may have 10 000 of these, most of them idle.
    __slots__ = ("_prepared", "min_offset", "queue_id", "run", "synced", "tail", "topic")

    def __init__(self, root: Path, topic: str, queue_id: int, file_bytes: int, disk: Disk) -> None:
        self.topic, self.queue_id = topic, queue_id
        self.run = FileRun(root / topic / str(queue_id), file_bytes, disk)
        self.tail = hot.QueueTail(topic.encode(), queue_id)
        self.min_offset = 0
        self.synced = 0
        """QueueOffset up to which the units are durable."""
        self._prepared = 0
        """Byte up to which `prepare` has reserved further files for units to come."""

    @property
    def max_offset(self) -> int:
        """One past the newest message."""
        return self.tail.next_offset

    # ------------------------------------------------------------------ writing

    def grow(self, needed: int = 1) -> bool:
        """Reserve room for `needed` units behind the newest, in its file. Raises StoreFull; nothing has changed then.

        Returns False if they do not all fit into that file: put them one by one, growing where it ends.
        """
        place = self.tail.next_offset * UNIT_BYTES
        file = self.run.find(place) or self._next_file(place)
        wanted = place - file.start + needed * UNIT_BYTES
        reserved = _in_steps(wanted, file.size)
        file.reserve(place, reserved - (place - file.start))
        file.touch_singly()  # 10 000 queues are written a unit at a time: read-ahead would make a whole file of pages for each
        self.tail.attach(file.buffer, file.start // UNIT_BYTES, reserved // UNIT_BYTES)
        return wanted <= file.size

    def prepare(self, count: int) -> None:
        """Reserve and map room for `count` units, in the files to come too: `advance` asks nothing of the disk then.

        Raises StoreFull.
        """
        if self.tail.room() >= count or self.grow(count):
            return
        self._prepared = (self.tail.next_offset + count) * UNIT_BYTES
        place = self._next_start()
        while place < self._prepared:
            size = _in_steps(self._prepared - place, self.run.file_bytes)
            if file := self.run.find(place):  # an earlier `prepare` made it, and its messages were refused then
                file.reserve(place, size)
            else:
                file = self.run.add(place, reserved=size)
            file.touch_singly()
            place = file.end

    def advance(self) -> None:
        """Go on in the next file, which `prepare` has made and reserved as far as it is needed. Cannot fail."""
        # It must not: the record is in the log already.
        file = self.run.find(self.tail.next_offset * UNIT_BYTES)
        assert file is not None, "`prepare` has made it"
        reserved = _in_steps(self._prepared - file.start, file.size)
        self.tail.attach(file.buffer, file.start // UNIT_BYTES, reserved // UNIT_BYTES)

    def _next_start(self) -> int:
        """Where the file behind the current one begins."""
        place = self.tail.next_offset * UNIT_BYTES
        return place - place % self.run.file_bytes + self.run.file_bytes

    def _next_file(self, place: int) -> MappedFile:
        """The file for the unit at byte `place`. In an empty queue, the units before it are filled."""
        start = place - place % self.run.file_bytes
        file = self.run.add(start, reserved=min(self.run.file_bytes, place - start + RESERVE_BYTES))
        file.touch_singly()
        if missing := (place - start) // UNIT_BYTES:  # as RocketMQ does where retention has taken the first messages
            file.buffer[: missing * UNIT_BYTES] = UNIT.pack(*FILL) * missing
        return file

    def put(self, unit: Unit) -> None:
        """Append one unit (while recovering). Raises StoreFull."""
        while not self.tail.put(*unit):
            self.grow()

    def mend(self, offset: int, unit: Unit) -> None:
        """Write one damaged unit again; the size last, since a unit without a size counts as unwritten."""
        place = offset * UNIT_BYTES
        if offset < self.max_offset and (file := self.run.find(place)):
            at, data = place - file.start, UNIT.pack(*unit)
            file.buffer[at + 8 : at + 12] = bytes(4)
            file.buffer[at : at + 8] = data[:8]
            file.buffer[at + 12 : at + 20] = data[12:]
            file.buffer[at + 8 : at + 12] = data[8:12]
            # The next checkpoint writes it again.
            self.synced = min(self.synced, offset)

    def start_at(self, next_offset: int, log_end: int) -> None:
        """Go on with unit `next_offset`; the newest record that has a unit ends at LogOffset `log_end`."""
        self.tail.detach()
        # A power cut has taken the names of the files before them, and with them all units that count.
        if self.run.files and self.run.files[0].start > next_offset * UNIT_BYTES:
            self.run.drop_from(0)
        self.tail.next_offset = self.synced = next_offset
        self.tail.log_end = log_end

    def restart_at(self, next_offset: int) -> None:
        """Delete all units; the next one has queue offset `next_offset`."""
        self.tail.detach()
        self.run.drop_from(0)
        self.start_at(next_offset, 0)
        self.min_offset = next_offset

    def cut(self) -> None:
        """Delete what lies behind the newest unit: the next start would take it for units."""
        place = self.max_offset * UNIT_BYTES
        self.run.drop_from(place)
        if file := self.run.find(place):
            file.zero(place)

    @property
    def is_synced(self) -> bool:
        """Whether all units, and the names of their files, are durable."""
        return self.synced == self.max_offset and not self.run.unsynced

    def mark_unsynced(self) -> None:
        """Make the next `sync` write all units behind `synced`, and the files' names, also if the kernel takes them for
        written."""
        stop = self.max_offset * UNIT_BYTES
        for file in self.run.files:
            file.rewrite(max(file.start, self.synced * UNIT_BYTES), min(file.end, stop))
        self.run.unsynced = True

    def sync(self) -> None:
        """Make all units durable, and the names of their files. Raises OSError."""
        stop = self.max_offset
        # The name first: units in a file whose name is lost are lost.
        if self.run.unsynced:
            self.run.sync_folder(above=2)  # the folder may be new, the topic's too
        for file in self.run.files:
            if file.end > self.synced * UNIT_BYTES:
                file.sync(max(file.start, self.synced * UNIT_BYTES), min(file.end, stop * UNIT_BYTES))
        self.synced = stop

    # ------------------------------------------------------------------ reading

    def unit(self, offset: int) -> Unit | None:
        """The unit at a queue offset, read without mapping its file; None if no file holds it."""
        file = self.run.find(offset * UNIT_BYTES)
        data = file.read(offset * UNIT_BYTES, UNIT_BYTES) if file else b""
        return Unit(*UNIT.unpack(data)) if len(data) == UNIT_BYTES else None

    def peek(self, offset: int) -> Unit | None:
        """Read as `unit`, but leave no file open: for a look at thousands of queues."""
        file = self.run.find(offset * UNIT_BYTES)
        data = file.peek(offset * UNIT_BYTES, UNIT_BYTES) if file else b""
        return Unit(*UNIT.unpack(data)) if len(data) == UNIT_BYTES else None

    def oldest(self) -> Unit | None:
        """Return the first unit that is no fill unit; None if there is none."""
        for file in self.run.files:
            places = range(file.start, file.end - UNIT_BYTES + 1, UNIT_BYTES)
            first = bisect_left(
                places, True, key=lambda place: not Unit(*UNIT.unpack(file.read(place, UNIT_BYTES))).is_fill
            )
            if first < len(places):
                return Unit(*UNIT.unpack(file.read(places[first], UNIT_BYTES)))
        return None

    def units(self, start: int, count: int) -> list[Unit]:
        """Up to `count` units from queue offset `start`; fewer at the end of the queue, none outside it."""
        return list(map(Unit._make, UNIT.iter_unpack(self.unit_bytes(start, count))))

    def unit_bytes(self, start: int, count: int, *, peek: bool = False) -> bytes:
        """Return the same as stored, 20 bytes each. Args: peek: leave no file open."""
        # Crosses file borders, unlike a pull: searches and repairs want the whole range.
        found = b""
        stop = min(start + count, self.max_offset)
        while max(start, self.min_offset) == start < stop and (file := self.run.find(start * UNIT_BYTES)):
            ends = min(stop, file.end // UNIT_BYTES)
            read = file.peek if peek else file.read
            found += read(start * UNIT_BYTES, (ends - start) * UNIT_BYTES)
            start = ends
        return found

    def first_at(self, log_offset: int) -> int:
        """The first queue offset whose record begins at or behind `log_offset`; max_offset if none does."""
        low = self.run.files[0].start // UNIT_BYTES if self.run.files else self.max_offset

        def begins(offset: int) -> int:
            while (unit := self.unit(offset)) and unit.size <= 0 and offset > low:
                offset -= 1  # damaged: the one before it keeps the order that the search relies on
            return -1 if unit is None or unit.is_fill else unit.log_offset

        return low + bisect_left(range(low, self.max_offset), log_offset, key=begins)

    def offset_at(self, store_time: Callable[[int], int], timestamp_ms: int) -> int:
        """Return the queue offset of the message stored at `timestamp_ms`, or of the one stored closest to it.

        Args: store_time: LogOffset → milliseconds, -1 if no record is there.
        Returns: an exact hit (the first of several); else the closer neighbour, the older one of two equally close; for a
        time behind the newest message its offset (not max); 0 for an empty queue or an unreadable record.
        """
        # RocketMQ narrows the search by the files' modification times, which a copy of the folder loses: search all of it.
        low, high = self.min_offset, self.max_offset
        if low >= high:
            return 0

        def time_of(offset: int) -> int:
            units = self.units(offset, 1)
            return store_time(units[0].log_offset) if units else -1

        # A record that retention has taken counts as -1, older than every time: it lies at the begin.
        right = low + bisect_left(range(low, high), timestamp_ms, key=time_of)
        if right == low:
            return right if time_of(right) >= 0 else 0
        left_ms = time_of(right - 1)
        if right == high:
            return right - 1 if left_ms >= 0 else 0
        right_ms = time_of(right)
        if left_ms < 0 or right_ms < 0:
            return 0
        # RocketMQ's choice: the closer one, of two equally close the older.
        return right - 1 if timestamp_ms - left_ms <= right_ms - timestamp_ms else right

    def end_below(self, log_end: int, guess: int = 0) -> int:
        """Return one past the last unit of a record that ends at or below `log_end`; unwritten and torn units lie behind it.

        `guess`: tried first; if it is right, as after a stop in order, it saves the bisection.
        """
        # Bisection will do: units below `log_end` are known to be durable, so there is no hole among them.

        def is_past(file: MappedFile, place: int) -> bool:
            data = file.read(place, UNIT_BYTES)
            unit = Unit(*UNIT.unpack(data))
            return unit.log_offset < 0 or unit.size <= 0 or unit.log_end > log_end

        place = guess * UNIT_BYTES
        before, behind = self.run.find(place - UNIT_BYTES), self.run.find(place)
        if before and not is_past(before, place - UNIT_BYTES) and (behind is None or is_past(behind, place)):
            return guess
        for file in reversed(self.run.files):
            if not is_past(file, file.start):
                places = range(file.start, file.end - UNIT_BYTES + 1, UNIT_BYTES)
                return file.start // UNIT_BYTES + bisect_left(places, True, key=functools.partial(is_past, file))
        return self.run.files[0].start // UNIT_BYTES if self.run.files else 0

    def readable_end(self, read_end: int) -> int:
        """Return `max_offset` for those who may read the log up to `read_end`: one past the last message that ends there or before."""
        end = self.tail.end_below(read_end)
        # A queue whose file is not attached, or has just begun.
        return max(self.min_offset, end if end >= 0 else self.end_below(read_end))

    # ------------------------------------------------------------------ retention

    def correct_min(self, log_min: int) -> int:
        """Move `min_offset` to the first message at or behind `log_min`, and delete files that point below it wholly.

        Returns the number of files deleted.
        """
        gone = 0
        oldest = self.run.files[0].start // UNIT_BYTES if self.run.files else 0
        unit = self.unit(oldest)
        if unit and unit.log_offset >= log_min and not unit.is_fill:
            self.min_offset = max(self.min_offset, min(oldest, self.max_offset))
            return 0
        while len(self.run.files) > 1:  # the newest stays: its offsets say where the queue goes on counting
            first, second = self.run.files[:2]
            last = self.unit(second.start // UNIT_BYTES - 1)
            if last is None or (last.log_offset >= log_min and not last.is_fill):
                break
            self.run.drop_before(first.end)
            gone += 1
        self.min_offset = max(self.min_offset, self.first_at(log_min))
        return gone

    def files_below(self, log_min: int) -> list[int]:
        """Return the sizes of the files that `correct_min` would delete."""
        found = list[int]()
        for file, following in itertools.pairwise(self.run.files):
            last = self.peek(following.start // UNIT_BYTES - 1)
            if last is None or (last.log_offset >= log_min and not last.is_fill):
                break
            found.append(file.size)
        return found

    def delete(self) -> None:
        """Remove the queue with its folder."""
        self.tail.detach()
        for file in self.run.drop_from(0):
            file.close()
        import shutil  # here and not above: it brings every kind of compression along, at each start

        shutil.rmtree(self.run.folder, ignore_errors=True)

    def give_up(self) -> None:
        """Stop using the files: the topic's folder is renamed next, see `FileRun.give_up`."""
        self.tail.detach()
        self.run.give_up()

    def close(self) -> None:
        self.tail.detach()
        self.run.close()
