"""Walking the log from record to record, without changing or trusting it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from metaq.store.mapped_file import FileRun
from metaq.store.queues.dispatch import is_queued
from metaq.wire import hot

# Bounds the memory of a walk, however large the log is.
_STEP: Final = 4096
BACKWARDS_MS_MAX: Final = 2000
"""Tolerated step back of store times, ms: a clock may be set. Records behind a tail that was cut off are older than that,
since a broker takes longer to start."""

QueueKey = tuple[bytes, int]


class LogScan:
    """Iterates over the records from `start` on, in lists, up to the first bytes that are none, or to `stop`.

    After the walk, `end` is the LogOffset where it stopped, and `why` says at what.
    """

    def __init__(self, run: FileRun, start: int, stop: int | None = None, *, check_crc: bool) -> None:
        self._run, self._stop, self._check_crc = run, stop, check_crc
        self.end, self.why = start, "the end of the files"

    def __iter__(self) -> Iterator[list[hot.RecordHead]]:
        while (self._stop is None or self.end < self._stop) and (file := self._run.find(self.end)):
            limit = file.end if self._stop is None else min(file.end, self._stop)
            heads, place, outcome = hot.scan_records(
                file.buffer, self.end - file.start, limit - file.start, file.start, _STEP, self._check_crc
            )
            if heads:
                yield heads
            self.end = file.end if outcome == hot.END_BLANK else file.start + place
            # END_CLEAN at a limit that is no file's end: the loop's condition ends the walk.
            if outcome not in {hot.END_BLANK, hot.END_CLEAN}:
                self.why = WHY[outcome]
                return


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


class Judge:
    """Tells the log's records from leftovers behind its end.

    Behind a tail that RocketMQ has cut off lie whole records with right checksums and log offsets. When newer records have
    grown up to one of them exactly, only two things give it away: it is older than its predecessor, and its queue offset
    does not continue its queue.
    """

    def __init__(
        self,
        ends: dict[QueueKey, int],
        last_ms: int,
        has_unit: Callable[[hot.RecordHead], bool],
        *,
        whole_log: bool,
        deleted: Mapping[bytes, int] | None = None,
    ) -> None:
        """
        Args:
            ends: queue offset that each queue goes on with.
            has_unit: whether a unit points at the record.

        deleted: topic → LogOffset below which its records belong to queues that are gone.
        """
        self._ends, self._has_unit, self._whole_log = dict(ends), has_unit, whole_log
        self._deleted = deleted or {}
        self.last_ms = last_ms
        """Store time of the newest record judged."""
        self._seen: set[QueueKey] = set()
        self.restarted: set[QueueKey] = set()
        """Queues to rebuild: their oldest record in the log does not continue their units."""

    def refusal(self, head: hot.RecordHead) -> str:
        """Return why the record cannot follow those before it; "" if it can. Raises NeedsWholeLog."""
        # A record with a unit was dispatched, so it is the log's, however far the clock was set back.
        if head.store_ms < self.last_ms - BACKWARDS_MS_MAX and not self._has_unit(head):
            return f"a record stored {self.last_ms - head.store_ms} ms before the one in front of it"
        of_deleted = head.log_offset < self._deleted.get(head.topic, 0)
        if not of_deleted and is_queued(head.sys_flag):
            key = (head.topic, head.queue_id)
            wanted = self._ends.get(key, 0)
            if head.queue_offset not in {wanted, 0}:  # 0: the topic was deleted and made again
                if key in self._seen:
                    return (
                        f"a record with queue offset {head.queue_offset} where queue {head.queue_id} of topic "
                        f"{head.topic.decode('utf-8', 'replace')} goes on with {wanted}"
                    )
                if not self._whole_log:
                    raise NeedsWholeLog(key)
                self.restarted.add(key)
            self._seen.add(key)
            self._ends[key] = head.queue_offset + 1
        self.last_ms = max(self.last_ms, head.store_ms)
        return ""
