"""Computes byte positions from the log, forward and backward from a known one. Runs in a thread, a chunk at a time."""

from __future__ import annotations

import itertools
import logging
from array import array
from collections.abc import Callable
from typing import NamedTuple

from metaq.store.message_store import MessageStore
from metaq.store.metaq1.position_bases import bases_below
from metaq.store.metaq1.position_files import PositionFiles, sizes_agree
from metaq.store.queues.consume_queue import UNIT_BYTES, ConsumeQueue
from metaq.wire import hot
from metaq.wire.frame_size import FRAME_HEAD_BYTES, expanded_bytes

log = logging.getLogger(__name__)
CHUNK: int = 16_384
"""Messages of a chunk. Measuring them holds the GIL for half a millisecond."""
_AGREE: int = 8
_SIZE_MAX: int = (1 << 31) - 1
_MISFITS_MAX: int = 1024


class Gone(Exception):
    """Retention has taken the messages meanwhile."""


class Sizes(NamedTuple):
    """Frame sizes of messages that follow each other."""

    sizes: array[int]
    lost: list[int]
    """Rows of messages that the log has lost; their size is 0 here."""


def sizes_of(
    store: MessageStore,
    queue: ConsumeQueue,
    first: int,
    stop: int,
    expanded: Callable[[bytes, int], int] | None = expanded_bytes,
) -> Sizes:
    """Measure the frames of messages [first, stop), also of those below the min offset that the log still has.

    Without `expanded` it ends before the first that is compressed.
    Raises Gone. ConfigError: a body is compressed in a way that takes an extra which is not installed.
    """
    units, count = _units(queue, first, stop), stop - first
    sizes = array("i", bytes(4 * count))
    lost, row, mended = list[int](), 0, -1
    while row < count:
        log_offset = int.from_bytes(units[row * UNIT_BYTES : row * UNIT_BYTES + 8], "big", signed=True)
        file = store.log.run.find(log_offset)
        why = hot.SIZES_DAMAGED
        if file is not None:
            try:
                buffer = file.buffer
            except FileNotFoundError:
                raise Gone from None
            row, why = hot.frame_sizes(
                buffer, file.start, units, row, count, queue.tail.topic, queue.queue_id, first, sizes, expanded
            )
        if why == hot.SIZES_COMPRESSED:
            return Sizes(sizes[:row], lost)
        if why == hot.SIZES_DAMAGED:
            if file is None and log_offset < store.log.min:
                raise Gone
            if expanded is None:
                return Sizes(sizes[:row], lost)
            if mended < row:  # repair the unit, once each: the record may be in the log all the same
                mended = row
                store.reader.repairs.repair(queue, first + row)
                units = _units(queue, first, stop)
                continue
            lost.append(row)
            row += 1
    return Sizes(sizes, lost)


def _units(queue: ConsumeQueue, first: int, stop: int) -> bytes:
    data = bytearray()
    while (place := first * UNIT_BYTES + len(data)) < stop * UNIT_BYTES:
        file = queue.run.find(place)
        if file is None or stop > queue.max_offset:
            raise Gone
        found = file.read(place, stop * UNIT_BYTES - place)
        if not found:
            raise Gone
        data += found
    return bytes(data)


class Filler:
    """Computes the positions of one queue, and writes them into its files."""

    def __init__(self, store: MessageStore, files: PositionFiles, queue: ConsumeQueue) -> None:
        self._store, self._files, self._queue = store, files, queue

    def agrees(self, offset: int) -> bool:
        """Whether the last units up to this one fit the sizes of their messages."""
        # A few will do: units that were computed from other sizes differ everywhere behind the place.
        first = max(self._queue.min_offset, offset - _AGREE)
        if first >= offset:
            return True
        try:
            units, sizes = self._files.read_many(first, offset + 1), sizes_of(self._store, self._queue, first, offset)
        except Gone:
            return True
        return bool(sizes.lost) or sizes_agree(units, sizes.sizes)

    def forward(self, offset: int, position: int, stop: int) -> int:
        """Write the units behind `offset`, which is at `position`, up to `stop`. Returns the position of `stop`. Raises Gone."""
        found = sizes_of(self._store, self._queue, offset, stop)
        if found.lost:
            log.error(
                "queue %d of topic %s: %d messages from queue offset %d on are damaged in the log: they take the room in its byte "
                "positions that they are known to have had, or none. Consumers of MetaQ 1.x pass over them",
                self._queue.queue_id, self._queue.topic, len(found.lost), offset + found.lost[0],
            )  # fmt: skip
            self._recall(offset, found)
        return self._files.write(offset, position, found.sizes)

    def _recall(self, first: int, found: Sizes) -> None:
        """Give lost messages the sizes that units of an earlier run say: clients may have seen those positions."""
        for row in found.lost:
            begin, end = self._files.read(first + row), self._files.read(first + row + 1)
            if begin is not None and end is not None and FRAME_HEAD_BYTES <= end - begin <= _SIZE_MAX:
                found.sizes[row] = end - begin

    def backward(self, low: int, first: int) -> int:
        """Write the units before `low`, which is known, down to `first`. Returns from where on they are known.
        Raises Gone, Begins."""
        found = sizes_of(self._store, self._queue, first, low)
        if found.lost:
            return self._bridge(low, first + found.lost[-1])
        end = self._files.read(low)
        if end is None:
            raise Gone
        start, sizes = end - sum(found.sizes), found.sizes
        before = 0
        while start < 0:
            start += sizes[before]
            before += 1
        self._files.write(first + before, start, sizes[before:])
        if before:
            raise Begins(first + before, start)
        return first

    def _bridge(self, low: int, lost: int) -> int:
        """Compute the units around a lost message: its size follows from the base before it and the position behind it."""
        queue, end = self._queue, self._files.read(low)
        base = bases_below(self._store, (queue.topic, queue.queue_id), lost)
        if base is None or base.queue_offset < queue.min_offset or end is None:
            first = max(queue.min_offset, lost - CHUNK)
            start = 0
            log.error(
                "queue %d of topic %s: the message at queue offset %d is damaged in the log, and no byte position before it is "
                "known: those of the messages before it may be others than were told", queue.queue_id, queue.topic, lost,
            )  # fmt: skip
        else:
            first, start = base.queue_offset, base.position
        found = sizes_of(self._store, queue, first, low)
        sizes, missing = found.sizes, found.lost
        if base is not None and end is not None and missing and first == base.queue_offset:
            span = end - start - sum(sizes)
            if 0 <= span <= _SIZE_MAX:
                sizes[missing[0]] = span
        elif end is not None:
            start = max(0, end - sum(sizes))
        self._files.write(first, start, sizes)
        return first

    def differences(self, low: int, high: int) -> tuple[bool, int]:
        """Compare the units [low, high) with the messages, going down from `high`, which is right.

        Returns whether the records are right, and how many units differ.
        """
        # A damaged record shifts all units below it, the lowest too. If that one fits, only the units in between are damaged.
        at, position = high, self._files.read(high)
        differ, believed, end = 0, True, position or 0
        while at > low and position is not None:
            first = max(low, at - CHUNK)
            found = sizes_of(self._store, self._queue, first, at)
            if found.lost:
                return False, differ + 1
            stored = self._files.read_many(first, at)
            for row in range(at - first - 1, -1, -1):
                position -= found.sizes[row]
                differ += stored[row] != position
                if 0 <= stored[row] <= end:
                    believed = stored[row] == position
            at = first
        return believed, differ

    def misfits(self, low: int, high: int) -> frozenset[int]:
        """Return messages of [low, high) that are in the log, with frames of another size than the units say; the first 1 024."""
        odd = set[int]()
        for at in range(low, high, CHUNK):
            stop = min(high, at + CHUNK)
            found, known = sizes_of(self._store, self._queue, at, stop), self._files.read_many(at, stop + 1)
            lost = set(found.lost)
            for row, size in enumerate(found.sizes):
                if known[row + 1] - known[row] != size and row not in lost:
                    odd.add(at + row)
                    if len(odd) == _MISFITS_MAX:
                        return frozenset(odd)
        return frozenset(odd)

    def fill_gaps(self, low: int, high: int) -> None:
        """Write the missing units of [low, high] from their neighbours: a damaged message makes sums over all of them wrong."""
        at, end = low, self._files.read(high) or 0
        while at < high:
            stop = min(high, at + CHUNK)
            known = self._files.read_many(at, stop)
            missing = [at + row for row, position in enumerate(known) if not 0 <= position <= end]
            if missing:
                last = next((one for one, after in itertools.pairwise(missing) if after != one + 1), missing[-1])
                self._fill_gap(missing[0], last, low)
                stop = last + 1
            at = stop

    def _fill_gap(self, first: int, last: int, low: int) -> None:
        """Write units [first, last], upward from the one before as far as messages are whole, downward from the one behind."""
        begin, end = max(low, first - 1), last + 1
        found = sizes_of(self._store, self._queue, begin, end)
        below, above = self._files.read(begin) if begin < first else None, self._files.read(end)
        lost = set(found.lost)
        up = begin
        while below is not None and up < last and up - begin not in lost:
            below += found.sizes[up - begin]
            up += 1
            self._files.write_one(up, below)
        down, bottom = end, up if below is not None else first - 1
        while above is not None and down - 1 > bottom and down - 1 - begin not in lost:
            down -= 1
            above -= found.sizes[down - begin]
            self._files.write_one(down, above)
        for offset in range(bottom + 1, down):  # several lost ones: they share what is between
            self._files.write_one(offset, below if below is not None else above or 0)


class Begins(Exception):
    """The messages before this one have no position: the queue began with it when a 1.x client first touched it.

    The others had left the log by then, and a power cut has brought their log file back.
    """

    def __init__(self, offset: int, position: int) -> None:
        super().__init__(offset, position)
        self.offset, self.position = offset, position
