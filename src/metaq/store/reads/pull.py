"""Reading a queue: what one pull gets (docs/architecture.md, "The log")."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from metaq.options import StoreOptions
from metaq.store.log.commit_log import CommitLog
from metaq.store.mapped_file import MappedFile
from metaq.store.queues.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from metaq.store.queues.table import Queues
from metaq.store.reads.long_body import (
    LONG_BYTES,
    ColdBody,
    Extent,
    Guard,
    LongBody,
    MappedBody,
    NotInMemory,
    Scratch,
    read_cold,
)
from metaq.store.reads.repair import Repairs
from metaq.wire import hot

# RocketMQ's: 800 units a pull, so that a filter that nothing passes does not hold up the broker.
_SCAN_BYTES_MIN: Final = 16_000
_VIEW_BYTES_MIN: Final = 64 * 1024
"""Runs of records from this size on go out as a view of the mapping; shorter ones are cheaper copied."""
_SIFT_BYTES: Final = 1024 * 1024
"""Bytes of old records that are read in one go to evaluate an expression on them."""
READ_ALL: Final = (1 << 63) - 1
"""`read_end` without a limit."""
_UNITS_MAPPED_MAX: Final = 1_000_000
"""Units further behind a queue's end are read in the thread, with the records: their pages may not be in memory."""


class ReadStatus(enum.Enum):
    """How a look-up ended. The names are those of RocketMQ's own store."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    COLD = "COLD"
    """Ours: the read may wait for the disk. Run `ReadResult.job` in a thread; it returns the result."""

    __hash__ = object.__hash__  # Enum's is a call, and every answer is looked up by its status


class ReadResult(Struct):
    """Result of a pull. Offsets are queue offsets; `body` is raw records back to back, or a view of the mapping."""

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes | memoryview = b""
    count: int = 0
    last_log: int = 0
    """LogOffset behind the last record found."""
    job: Callable[[], ReadResult] | None = None
    cached: Callable[[], ReadResult | None] | None = None
    """With COLD, for the event loop: returns what `job` would if all of it is in memory, else None."""
    long: LongBody | None = None
    """The records of a pull with `in_pieces` that found more than `LONG_BYTES`; `body` is empty then."""


class Puller:
    """Answers pulls from log and queues.

    Records within `hot_bytes` of the log's end that this process has written are read through the mappings, in the
    calling thread; older ones by pread, in a job for another thread. A page fault on the event loop stalls everybody
    (measured: 2 000 random reads of 4 KiB stall it for up to 18 ms through mappings, 0.8 ms through pread in threads;
    and the log's mapping reads nothing ahead).
    """

    def __init__(self, commit_log: CommitLog, queues: Queues, options: StoreOptions, repairs: Repairs) -> None:
        self._log, self._queues, self.options, self._repairs = commit_log, queues.table, options, repairs
        self._fresh_from = commit_log.end
        """LogOffset of the start. Records behind it were written by this process. Those before it come from a disk: their
        checksums are verified whenever they are served, and reading them may wait."""
        self._hot_bytes = options.hot_bytes
        self._scratch = Scratch()
        self.take_options()

    def take_options(self) -> None:
        """Take over options that have changed, as the numbers that each pull compares with."""
        # RocketMQ's rule: within `accessMessageInMemoryMaxRatio` percent of the machine's memory a record counts as in memory.
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._bytes_in_memory = self.options.max_transfer_bytes_on_message_in_memory
        self._recent_bytes = memory * self.options.access_message_in_memory_max_ratio // 100

    def are_plain(self) -> bool:
        """Whether the fast path answers as `pull` does: no known losses to pass over, no answers in pieces."""
        return not self._repairs.losses and self._bytes_in_memory <= LONG_BYTES

    def fast_path(self) -> hot.PullPath:
        """Return a path without gates, valid until an option changes.

        It answers pulls of records that this process has written, in the log and queue files that are being written.
        """
        return hot.PullPath(
            self._log.tail,
            fresh_from=self._fresh_from,
            # Beyond either, `pull` answers: from the disk, or in the small portions for old records.
            near_bytes=min(self._hot_bytes, self._recent_bytes),
            behind_max=_UNITS_MAPPED_MAX,
            # Larger ones go out as a view, which the path does not make.
            body_bytes_max=_VIEW_BYTES_MIN - 1,
            bytes_max=self._bytes_in_memory,
            count_max=self.options.max_transfer_count_on_message_in_memory,
        )

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int | None = None,
        wanted: hot.Filter | None = None,
        *,
        in_pieces: bool = False,
        read_end: int = READ_ALL,
    ) -> ReadResult:
        """Read records of a queue from `offset` on that pass `wanted` (None: all). Status COLD: run `job` in a thread.

        Args:
            count_max, bytes_max: at most so many, None for RocketMQ's 256 KiB. Up to that size of pull, records far
                behind the log's end come by 8 and in 64 KiB, as there; a pull that asks for more gets more of those,
                too.
            in_pieces: more than `LONG_BYTES` comes as `ReadResult.long`. At least one record is returned if one
                matches, whatever its size.
            read_end: LogOffset. The queue ends before the first record that ends behind it; offsets from there to its real
                end are answered OFFSET_OVERFLOW_ONE.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        # Both ends are read once: the writer's thread moves them, and the answer must not contradict itself.
        low, high = queue.min_offset, queue.tail.next_offset
        # RocketMQ's order of checks: its clients get code 19 or 21 by these names.
        if high == 0:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        stored = high
        if queue.tail.log_end > read_end:
            high = queue.readable_end(read_end)
        if offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
        if high <= offset <= stored:  # the usual end; or what lies there is not to be read yet, or not any more
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        try:
            file = queue.run.find(offset * UNIT_BYTES)
            if file is None:  # retention took it: as RocketMQ, send the client to where the next file begins
                per_file = queue.run.file_bytes // UNIT_BYTES
                return ReadResult(ReadStatus.OFFSET_FOUND_NULL, (offset // per_file + 1) * per_file, low, high)
            first_unit, units, log_end = file.start // UNIT_BYTES, file.buffer, self._log.end
            units_max = max(_SCAN_BYTES_MIN, count_max * UNIT_BYTES) // UNIT_BYTES
            # Never across the end of a queue file, as in RocketMQ: the client goes on with the next pull.
            stop = min(high, file.end // UNIT_BYTES, offset + units_max)
            if self._repairs.losses:  # a pull ends before a lost message, or begins behind it
                following, stop = self._repairs.after_lost(queue, offset), self._repairs.lost_from(queue, offset, stop)
                if following > offset:  # the log file of the broker told of it when it was found
                    return ReadResult(ReadStatus.NO_MATCHED_MESSAGE, following, low, high)
            first_log: int = UNIT.unpack_from(units, (offset - first_unit) * UNIT_BYTES)[0]
            is_cold = first_log < max(log_end - self._hot_bytes, self._fresh_from) or (
                high - offset > _UNITS_MAPPED_MAX and not self._is_small()
            )
            # Recent records, and not more than RocketMQ's clients ask for: most pulls. One call, no intermediate objects.
            is_plain = not is_cold and log_end - first_log <= self._recent_bytes
            is_plain = is_plain and (not in_pieces or bytes_max is None or bytes_max <= LONG_BYTES)
            log_file = self._log.run.find(first_log) if is_plain else None
            if log_file is None:
                look = _Look(
                    queue,
                    offset,
                    stop,
                    low,
                    high,
                    count_max=count_max,
                    bytes_max=bytes_max,
                    wanted=wanted,
                    in_pieces=in_pieces,
                )
                return self._cold(file, look) if is_cold else self._answer(units, first_unit, look, None)
            # `_answer` comes to the same, at twice the price.
            log_start, log_stop = log_file.start, min(log_end, log_file.end)
            if bytes_max is None:
                bytes_max = self._bytes_in_memory
            log_data = log_file.buffer
            count, size, next_offset, first_log, last_log, body, damaged = hot.read(
                units, first_unit, offset, stop, wanted, count_max, bytes_max, log_start, log_stop,
                log_data, log_start, _VIEW_BYTES_MIN, queue.tail, self._fresh_from,
            )  # fmt: skip
            if not count:
                if damaged or next_offset == offset:
                    return self._nothing(queue, offset, next_offset, low, high)
                return ReadResult(ReadStatus.NO_MATCHED_MESSAGE, next_offset, low, high)
            if body is None:
                start = first_log - log_start
                # The bytes are not copied: the mapping lives as long as the view does.
                view = memoryview(log_data)[start : start + size]
                return ReadResult(ReadStatus.FOUND, next_offset, low, high, view, count, last_log)
            return ReadResult(ReadStatus.FOUND, next_offset, low, high, body, count, last_log)
        except FileNotFoundError:  # retention took it between two looks; the next pull finds the new min offset
            return ReadResult(ReadStatus.OFFSET_FOUND_NULL, offset, low, high)

    def _nothing(self, queue: ConsumeQueue, offset: int, place: int, low: int, high: int) -> ReadResult:
        """Return the answer when nothing was found and the unit at `place` cannot be served: new, or damaged."""
        unit = queue.unit(place)
        if unit is None or (unit.size > 0 and unit.log_offset == self._log.end):  # its record is just being written
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, place, low, high)
        # The consumer must not hang at it: the thread mends the unit or declares the message lost, and the next pull
        # goes on.
        self._repairs.ask(queue, place)
        if place > offset:
            return ReadResult(ReadStatus.NO_MATCHED_MESSAGE, place, low, high)
        return ReadResult(ReadStatus.OFFSET_FOUND_NULL, place, low, high)

    def is_recent(self, log_offset: int) -> bool:
        """Whether the record counts as in memory, by RocketMQ's rule; whether it really is, is not asked."""
        return self._log.end - log_offset <= self._recent_bytes

    def _is_small(self) -> bool:
        return self._log.end - self._log.min <= self.options.hot_bytes

    def _cold(self, file: MappedFile, look: _Look) -> ReadResult:
        # The range is fixed before the thread runs: the queue grows meanwhile.
        place, size = look.offset * UNIT_BYTES, (look.stop - look.offset) * UNIT_BYTES

        def read() -> ReadResult:
            try:
                return self._answer(file.read(place, size), look.offset, look, file)
            except FileNotFoundError:
                return ReadResult(ReadStatus.OFFSET_FOUND_NULL, look.offset, look.low, look.high)

        def cached() -> ReadResult | None:
            if look.wanted is not None and look.wanted.reads:  # many records, for a few of them
                return None
            try:
                units = bytes(self._scratch.reader(file)(place, size))
                return self._answer(units, look.offset, look, file, self._scratch)
            except (NotInMemory, FileNotFoundError):
                return None

        return ReadResult(ReadStatus.COLD, look.offset, look.low, look.high, job=read, cached=cached)

    def _answer(
        self,
        units: Any,
        first_unit: int,
        look: _Look,
        cold: MappedFile | None,
        scratch: Scratch | None = None,
    ) -> ReadResult:
        """Select units and read their records.

        Args:
            cold: the queue's file; records are then read by pread, not through the mapping.
            scratch: buffer for reads on the event loop.

        Raises NotInMemory: with `scratch`, the read would wait for the disk.
        """
        log_min, log_end = self._log.min, self._log.end
        first_log, _, _ = UNIT.unpack_from(units, (look.offset - first_unit) * UNIT_BYTES)
        count_max, bytes_max = self._limits(first_log, look)
        # One file of the log at a time: its records are read out of one mapping.
        log_file = self._log.run.find(max(first_log, log_min))
        log_stop = min(log_end, log_file.end) if log_file else log_end
        reads = look.wanted is not None and look.wanted.reads
        if reads and cold:
            return self._sift(units, look, count_max, bytes_max)
        wanted = look.wanted
        log_data, log_start = None, 0
        if reads and log_file is not None:
            log_data, log_start = log_file.buffer, log_file.start
        elif reads:  # retention took the file: without it, the read below fails and answers MESSAGE_WAS_REMOVING
            wanted = None
        found = hot.select(
            units, first_unit, look.offset, look.stop, wanted, count_max, bytes_max, max(log_min, log_start),
            log_stop, log_data, log_start,
        )  # fmt: skip
        body: bytes | memoryview | None = b""
        long: LongBody | None = None
        if look.in_pieces and found.size > LONG_BYTES and log_file is not None:
            guard = Guard(look.queue.tail, self._fresh_from, lambda unit: self._repairs.ask(look.queue, unit))
            extent = Extent(
                look.offset, found.next_offset, found.size, look.wanted, guard,
                log_file=log_file, log_min=log_min, log_stop=log_stop,
            )  # fmt: skip
            long = ColdBody(cold, extent, self._scratch) if cold else MappedBody(units, first_unit, extent)
        elif found.count:
            if scratch is not None and log_file is not None:
                # Copied out of the scratch buffer, which the next read overwrites.
                body = read_cold(scratch.reader(log_file), found)
            else:
                body = read_cold(self._log.read, found) if cold else self._read_mapped(found)
        if body is None:  # retention was faster than the reader
            return ReadResult(ReadStatus.MESSAGE_WAS_REMOVING, found.next_offset, look.low, look.high)
        if found.count:
            count, size, next_offset = found.count, found.size, found.next_offset
            if long is None:  # else each piece is checked when its turn comes
                count, size, next_offset = hot.check(found, body, look.queue.tail, self._fresh_from)
            if count:
                last_log = found.last_log_end if size == found.size else found.first_log + size
                return ReadResult(
                    ReadStatus.FOUND, next_offset, look.low, look.high, body[:size], count, last_log, long=long
                )
            return self._nothing(look.queue, look.offset, next_offset, look.low, look.high)
        if found.damaged or found.next_offset == look.offset:
            return self._nothing(look.queue, look.offset, found.next_offset, look.low, look.high)
        status = ReadStatus.MESSAGE_WAS_REMOVING if first_log < log_min else ReadStatus.NO_MATCHED_MESSAGE
        return ReadResult(status, found.next_offset, look.low, look.high)

    def _sift(self, units: Any, look: _Look, count_max: int, bytes_max: int) -> ReadResult:
        """Read old records that an expression is true of: it needs their properties, so all are read, `_SIFT_BYTES` at a time."""
        assert look.wanted is not None
        low, high, place = look.low, look.high, look.offset
        while place < look.stop:
            log_file = self._log.run.find(
                max(UNIT.unpack_from(units, (place - look.offset) * UNIT_BYTES)[0], self._log.min)
            )
            log_stop = min(self._log.end, log_file.end) if log_file else self._log.end
            found = hot.select(
                units, look.offset, place, look.stop, None, look.stop, _SIFT_BYTES, self._log.min, log_stop
            )
            body = read_cold(self._log.read, found) if found.count else b""
            if body is None:
                return ReadResult(ReadStatus.MESSAGE_WAS_REMOVING, found.next_offset, low, high)
            _, size, next_offset = (
                hot.check(found, body, look.queue.tail, self._fresh_from) if found.count else (0, 0, found.next_offset)
            )
            count, taken, behind, last_log = hot.sift(memoryview(body)[:size], look.wanted, count_max, bytes_max)
            if count:
                following = behind if behind >= 0 else next_offset
                return ReadResult(ReadStatus.FOUND, following, low, high, taken, count, last_log)
            if next_offset == place or found.damaged or size < found.size:
                return self._nothing(look.queue, look.offset, next_offset, low, high)
            place = next_offset
        return ReadResult(ReadStatus.NO_MATCHED_MESSAGE, place, low, high)

    def _limits(self, first_log: int, look: _Look) -> tuple[int, int]:
        options = self.options
        in_memory = options.max_transfer_bytes_on_message_in_memory
        bytes_max = in_memory if look.bytes_max is None else look.bytes_max
        if bytes_max > in_memory or self.is_recent(first_log):
            return look.count_max, bytes_max
        # As RocketMQ: old records come in small portions, by default 8 messages and 64 KiB.
        return (
            min(look.count_max, options.max_transfer_count_on_message_in_disk),
            min(bytes_max, options.max_transfer_bytes_on_message_in_disk),
        )

    def _read_mapped(self, found: hot.Selection) -> bytes | memoryview | None:
        file = self._log.run.find(found.first_log)
        if file is None:
            return None
        if found.contiguous and found.size >= _VIEW_BYTES_MIN:
            start = found.first_log - file.start
            return memoryview(file.buffer)[start : start + found.size]
        return hot.gather(found, file.buffer, file.start)


class _Look(Struct):
    """A pull whose offset is in range: units [offset, stop) of a queue that holds [low, high)."""

    queue: ConsumeQueue
    offset: int
    stop: int
    low: int
    high: int
    count_max: int
    bytes_max: int | None
    wanted: hot.Filter | None
    in_pieces: bool
