"""Walking the log from record to record, without changing or trusting it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from metaq.store.log.broken import DamagedPlace, behind, place_of
from metaq.store.mapped_file import FileRun, MappedFile
from metaq.store.queues.dispatch import is_queued
from metaq.wire import hot
from metaq.wire.record import RECORD_BYTES_MIN

# Bounds the memory of a walk, however large the log is.
_STEP: Final = 4096
_STEP_BYTES: Final = 4 << 20
"""Bytes that are looked at in a step, unless a record is longer: other threads of the process wait for it."""
BACKWARDS_MS_MAX: Final = 2000
"""Tolerated step back of store times, ms: a clock may be set. Records behind a tail that was cut off are older than that,
since a broker takes longer to start."""

QueueKey = tuple[bytes, int]


class LogScan:
    """Iterates over the records from `start` on, in lists, up to the first bytes that are none, or to `stop`.

    After the walk, `end` is the LogOffset where it stopped, and `why` says at what.
    """

    def __init__(
        self,
        run: FileRun,
        start: int,
        stop: int | None = None,
        *,
        check_crc: bool,
        past: Callable[[int, str], int] | None = None,
        told: Callable[[int], None] | None = None,
    ) -> None:
        """
        Args:
            past: told where the walk would stop and why; returns the LogOffset to go on at, the same one to stop.
            told: gets the LogOffset that the walk has come to, after each step.
        """
        self._run, self._stop, self._check_crc, self._past, self._told = run, stop, check_crc, past, told
        self.end, self.why = start, END_OF_FILES

    def __iter__(self) -> Iterator[list[hot.RecordHead]]:
        while (self._stop is None or self.end < self._stop) and (file := self._run.find(self.end)):
            limit = file.end if self._stop is None else min(file.end, self._stop)
            heads, place, outcome = self._step(file, limit)
            if heads:
                yield heads
            self.end = file.end if outcome == hot.END_BLANK else file.start + place
            if self._told is not None:
                self._told(self.end)
            # END_CLEAN at a limit that is no file's end: the loop's condition ends the walk.
            if outcome not in {hot.END_BLANK, hot.END_CLEAN}:
                following = self._past(self.end, WHY[outcome]) if self._past is not None else self.end
                if following <= self.end:
                    self.why = WHY[outcome]
                    return
                self.end = following

    def _step(self, file: MappedFile, limit: int) -> tuple[list[hot.RecordHead], int, int]:
        """Scan some bytes of a file from `end` on, as `hot.scan_records`. A record that goes on behind them is left for the next step."""
        size = _STEP_BYTES
        while True:
            stop = min(limit, self.end + size)
            heads, place, outcome = hot.scan_records(
                file.buffer, self.end - file.start, stop - file.start, file.start, _STEP, self._check_crc
            )
            if outcome != hot.END_SHORT or stop == limit:
                return heads, place, outcome
            if heads:
                return heads, place, hot.END_CLEAN
            size *= 2


def past_damage(run: FileRun, stop: int, places: list[DamagedPlace]) -> Callable[[int, str], int]:
    """Return a `past` of a walk over a log that is known to reach to `stop`: what cannot be read before it is stepped over.

    It is added to `places`.
    """

    def past(place: int, why: str) -> int:
        following = behind(run, place, stop) or stop
        places.append(place_of(run, place, following, why))
        return following

    return past


def past_places(places: Sequence[DamagedPlace]) -> Callable[[int, str], int]:
    """Return a `past` of a walk that knows the places that cannot be read."""
    starts = [place.start for place in places]

    def past(at: int, _why: str) -> int:
        found = bisect_right(starts, at) - 1
        return max(at, places[found].stop) if found >= 0 else at

    return past


END_OF_FILES: Final = "the end of the files"
WHY: Final = {
    hot.END_ZERO: "untouched bytes",
    hot.END_BAD: "a broken record",
    hot.END_SHORT: "a record that runs past the end of its file",
}


class NeedsWholeLog(Exception):
    """A record's queue offset is not the one that its consume queue goes on with: units were lost, the whole log is to
    be read."""

    def __init__(self, queue: QueueKey) -> None:
        super().__init__(queue)
        self.queue = queue


class Judged(NamedTuple):
    """What a `Judge` knows at a moment."""

    ends: dict[QueueKey, int]
    last_ms: int
    seen: set[QueueKey]
    restarted: set[QueueKey]
    missing: dict[QueueKey, list[range]]


class Judge:
    """Tells the log's records from leftovers behind its end, and counts the messages that are missing between them.

    Behind a tail that RocketMQ has cut off lie whole records with right checksums and log offsets. When newer records have
    grown up to one of them exactly, only two things give it away: it is older than its predecessor, and its queue offset
    does not continue its queue.

    Where the log is damaged, queue offsets are missing as well: as many as fit into the damaged bytes at most.
    """

    def __init__(
        self,
        ends: dict[QueueKey, int],
        last_ms: int,
        has_unit: Callable[[hot.RecordHead], bool],
        *,
        whole_log: bool,
        from_zero: bool = False,
        exact: bool = False,
        promised: Callable[[int], bool] = lambda _place: False,
        deleted: Mapping[bytes, int] | None = None,
    ) -> None:
        """
        Args:
            ends: queue offset that each queue goes on with.
            has_unit: whether a unit points at the record.
            from_zero: nothing of the log was ever deleted, so each queue begins with queue offset 0.
            exact: `ends` is known, so what is missing behind it is not in the log before the walk's begin.
            promised: whether what is at a LogOffset was promised to be there: no leftover.

        deleted: topic → LogOffset below which its records belong to queues that are gone.
        """
        self._ends, self._has_unit, self._whole_log = dict(ends), has_unit, whole_log
        self._from_zero, self._exact, self._promised = from_zero and whole_log, exact or whole_log, promised
        self._deleted = deleted or {}
        self.last_ms = last_ms
        """Store time of the newest record judged."""
        self._seen: set[QueueKey] = set()
        self.restarted: set[QueueKey] = set()
        """Queues to rebuild: their oldest record in the log does not continue their units."""
        self.missing: dict[QueueKey, list[range]] = {}
        """Queue offsets of messages that the log has lost, in order."""
        self._room = 0
        """Bytes of damaged places whose messages are unknown: so many messages may be missing."""
        self._refused: dict[QueueKey, int] = {}

    def refusal(self, head: hot.RecordHead) -> str:
        """Return why the record cannot follow those before it; "" if it can. Raises NeedsWholeLog."""
        last_ms = max(self.last_ms, head.store_ms)
        # A record with a unit was dispatched, so it is the log's, however far the clock was set back.
        if head.store_ms < self.last_ms - BACKWARDS_MS_MAX:
            if not self._has_unit(head):
                return f"a record stored {self.last_ms - head.store_ms} ms before the one in front of it"
            last_ms = head.store_ms  # those behind it follow this clock, not the one before
        of_deleted = head.log_offset < self._deleted.get(head.topic, 0)
        if not of_deleted and is_queued(head.sys_flag):
            key = (head.topic, head.queue_id)
            wanted = self._ends.get(key, 0)
            if head.queue_offset not in {wanted, 0}:  # 0: the topic was deleted and made again
                if head.queue_offset < wanted and self._was_counted(key, head.queue_offset):
                    pass
                elif self._may_miss(head, key, wanted):
                    gap = range(wanted, head.queue_offset)
                    self._miss(key, gap, len(gap) * RECORD_BYTES_MIN)
                elif key in self._seen or (self._from_zero and not wanted and self._promised(head.log_offset)):
                    return (
                        f"a record with queue offset {head.queue_offset} where queue {head.queue_id} of topic "
                        f"{head.topic.decode('utf-8', 'replace')} goes on with {wanted}"
                    )
                elif not self._whole_log:
                    raise NeedsWholeLog(key)
                else:
                    self.restarted.add(key)
            self._seen.add(key)
            self._ends[key] = head.queue_offset + 1
        self.last_ms = last_ms
        return ""

    # ------------------------------------------------------------------ damage

    def saved(self) -> Judged:
        """Return what is known now, for `restore`."""
        missing = {key: list(known) for key, known in self.missing.items()}
        return Judged(dict(self._ends), self.last_ms, set(self._seen), set(self.restarted), missing)

    def restore(self, known: Judged) -> None:
        """Forget all that came since."""
        self._ends, self.last_ms, self._seen = known.ends, known.last_ms, known.seen
        self.restarted, self.missing = known.restarted, known.missing

    def end_of(self, key: QueueKey) -> int:
        """Return the queue offset that a queue goes on with."""
        return self._ends.get(key, 0)

    def lost(self, size: int) -> None:
        """Take note of so many bytes of records that are unknown."""
        self._room += size

    def lost_message(self, key: QueueKey, size: int = 0) -> int:
        """Take note that the next message of a queue is lost, in so many of the bytes of `lost`. Returns its queue offset."""
        offset = self._ends.get(key, 0)
        self._miss(key, range(offset, offset + 1), size)
        self._seen.add(key)
        self._ends[key] = offset + 1
        return offset

    def refused(self, head: hot.RecordHead) -> None:
        """Take note that a whole record was taken for damage, since it does not follow those before it."""
        self.lost(head.size)
        self._refused[head.topic, head.queue_id] = head.queue_offset

    def _may_miss(self, head: hot.RecordHead, key: QueueKey, wanted: int) -> bool:
        """Whether the messages from `wanted` up to the record's queue offset may be lost, and the record right."""
        count = head.queue_offset - wanted
        if count < 0 or (key not in self._seen and not (wanted or self._from_zero) and self._whole_log):
            return False
        if count * RECORD_BYTES_MIN <= self._room and (key in self._seen or self._exact):
            return True
        # Two records say the same, or a unit: a single damaged field does not.
        known = self._refused.get(key) == head.queue_offset - 1 or self._has_unit(head)
        return known and self._exact and self._promised(head.log_offset) and (key in self._seen or self._from_zero)

    def _miss(self, key: QueueKey, offsets: range, size: int) -> None:
        known = self.missing.setdefault(key, [])
        if known and known[-1].stop == offsets.start:
            known[-1] = range(known[-1].start, offsets.stop)
        else:
            known.append(offsets)
        self._room = max(0, self._room - size)

    def _was_counted(self, key: QueueKey, offset: int) -> bool:
        """Whether a message was counted as lost last that is there; it is not counted any more."""
        known = self.missing.get(key, [])
        if not known or offset not in known[-1] or known[-1].stop != self._ends[key]:
            return False
        known[-1] = range(known[-1].start, offset)
        return True
