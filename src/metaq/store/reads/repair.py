"""Repairs units of consume queues that do not lead to their messages, and keeps account of messages that are lost.

A consume queue is derived, so a unit that points at no record of its own is no loss: the record is in the log, between
the last good unit before it and the first one behind it. If it is not, or its checksum is wrong, the message is lost;
pulls then pass over it. An error in the broker's log says so, and runtime information as long as the process lives.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Final

from metaq.store.log.commit_log import CommitLog
from metaq.store.queues.consume_queue import ConsumeQueue, Unit
from metaq.store.queues.dispatch import is_queued, tags_code
from metaq.store.worker import Worker
from metaq.wire import hot
from metaq.wire.record import MAGIC

log = logging.getLogger(__name__)
_STEP_BYTES: Final = 1024 * 1024
_HEADS: Final = 512
_SECONDS: Final = 60.0
_MAGIC: Final = MAGIC.to_bytes(4, "big")
_MAGIC_AT: Final = 4
Key = tuple[str, int]


class Repairs:
    """The thread that repairs what pulls could not read, and the messages that cannot be repaired."""

    def __init__(
        self, commit_log: CommitLog, delays_ms: tuple[int, ...], exclusive: contextlib.AbstractContextManager[object]
    ) -> None:
        """`exclusive`: housekeeping's lock. Held while units are written, so that no checkpoint calls them durable meanwhile."""
        self._log, self._delays_ms, self._exclusive = commit_log, delays_ms, exclusive
        self._lock = threading.Lock()
        self._asked: dict[Key, tuple[ConsumeQueue, int]] = {}
        self._lost: dict[Key, list[range]] = {}
        """Queue offsets, in order, of messages that the log has lost."""
        self.losses = False
        """Whether anything is known to be lost: one attribute for each pull to look at."""
        self.worker = Worker("repair", self.step, lambda: _SECONDS)

    def ask(self, queue: ConsumeQueue, offset: int) -> None:
        """Have the thread check the units from `offset` on. Cheap; from any thread."""
        with self._lock:
            # One request for a queue at a time: consumers meet the same unit again and again.
            self._asked.setdefault((queue.topic, queue.queue_id), (queue, offset))
        self.worker.wake()

    def after_lost(self, queue: ConsumeQueue, offset: int) -> int:
        """Return the queue offset behind the lost messages at `offset`; `offset` itself if that one is not lost."""
        with self._lock:
            known = self._lost.get((queue.topic, queue.queue_id), [])
            place = bisect_right(known, offset, key=lambda gone: gone.start) - 1
            return known[place].stop if place >= 0 and offset in known[place] else offset

    def lost_from(self, queue: ConsumeQueue, offset: int, stop: int) -> int:
        """The first queue offset behind `offset` and below `stop` that is known to be lost; `stop` if none is."""
        with self._lock:
            known = self._lost.get((queue.topic, queue.queue_id), [])
            place = bisect_right(known, offset, key=lambda gone: gone.start)
            return min(stop, known[place].start) if place < len(known) else stop

    def forget(self, ends: Mapping[Key, int]) -> None:
        """Forget losses behind these queue offsets, 0 for queues that are not named: the log was cut.

        The caller holds `exclusive`.
        """
        with self._lock:
            for key, known in list(self._lost.items()):
                end = ends.get(key, 0)
                self._lost[key] = [range(gone.start, min(gone.stop, end)) for gone in known if gone.start < end]
            self._lost = {key: known for key, known in self._lost.items() if known}
            self.losses = bool(self._lost)

    def restored(self, queue: ConsumeQueue, head: hot.RecordHead) -> None:
        """Have a message read again whose record was damaged, and is whole now. The caller holds `exclusive`."""
        offset = head.queue_offset
        if not queue.min_offset <= offset < queue.max_offset:
            return
        # A good unit stays, whatever it points at: the topic may have been deleted and made anew since.
        if self._good(queue, offset) is None:
            queue.mend(offset, Unit(head.log_offset, head.size, tags_code(head, self._delays_ms)))
        key = queue.topic, queue.queue_id
        with self._lock:
            if (known := self._lost.get(key)) is None:
                return
            parts = [part for gone in known for part in _without(gone, offset)]
            if parts:
                self._lost[key] = parts
            else:
                del self._lost[key]
            self.losses = bool(self._lost)

    @property
    def trouble(self) -> str:
        """Lost messages as a text for operators; "" if there are none."""
        with self._lock:
            counts = {key: sum(map(len, known)) for key, known in self._lost.items()}
        return "; ".join(
            f"{count} messages of queue {queue_id} of topic {topic} are damaged in the log and passed over"
            for (topic, queue_id), count in counts.items()
        )

    def step(self) -> None:
        """Repair everything that was asked for. The thread's step."""
        while not self.worker.stopping:
            with self._lock:
                if not self._asked:
                    return
                key = next(iter(self._asked))
                queue, offset = self._asked[key]
            try:
                self.repair(queue, offset)
            finally:
                with self._lock:
                    self._asked.pop(key, None)

    # ------------------------------------------------------------------ one queue

    def repair(self, queue: ConsumeQueue, first: int) -> None:
        """Make the damaged units from `first` to the next good one anew. It reads the log between them: not for an event loop."""
        missing, stop = self._extent(queue, first)
        if not missing:
            return  # another thread was faster
        # Good neighbours bound the search: the log between them is read, not all of it.
        before = self._good(queue, first - 1)
        behind = self._good(queue, stop) if stop < queue.max_offset else None
        found: dict[int, Unit] = {}
        for head in self._records(
            before.log_end if before else self._log.min, behind.log_offset if behind else self._log.end
        ):
            of_this = (head.topic, head.queue_id) == (queue.tail.topic, queue.queue_id)
            if of_this and head.queue_offset in missing and is_queued(head.sys_flag):
                found[head.queue_offset] = Unit(head.log_offset, head.size, tags_code(head, self._delays_ms))
        with self._exclusive:
            # The log may have been cut meanwhile.
            lost = sorted(offset for offset in missing - found.keys() if offset < queue.max_offset)
            for offset, rebuilt in found.items():
                queue.mend(offset, rebuilt)
            if (neighbour := before or behind) is not None:
                for offset in lost:
                    unit = queue.unit(offset)
                    if unit is not None and not self._in_order(unit, before, behind):
                        queue.mend(offset, neighbour)  # searches by log offset and time rely on ascending units
            if lost:
                self._lose(queue, lost)
        log.error(
            "queue %d of topic %s: %d units from offset %d on did not lead to their messages; %d were made anew from the log",
            queue.queue_id, queue.topic, len(missing), first, len(found),
        )  # fmt: skip

    def _lose(self, queue: ConsumeQueue, lost: list[int]) -> None:
        log.error(
            "queue %d of topic %s: %d messages, of offsets %d to %d, are damaged in the log and are passed over; "
            "restore the store from a copy if they are needed",
            queue.queue_id, queue.topic, len(lost), lost[0], lost[-1],
        )  # fmt: skip
        with self._lock:
            known = self._lost.setdefault((queue.topic, queue.queue_id), [])
            for offset in lost:
                if any(offset in gone for gone in known):
                    continue
                if known and known[-1].stop == offset:
                    known[-1] = range(known[-1].start, offset + 1)
                else:
                    known.append(range(offset, offset + 1))
            # Sorted and not overlapping: pulls find their place by bisection.
            known.sort(key=lambda gone: gone.start)
            self.losses = True

    def _extent(self, queue: ConsumeQueue, first: int) -> tuple[set[int], int]:
        """Return the queue offsets of damaged units from `first` on, and that of the next good one."""
        offset = first
        while offset < queue.max_offset and self._good(queue, offset) is None:
            offset += 1
        return set(range(first, offset)), offset

    def _good(self, queue: ConsumeQueue, offset: int) -> Unit | None:
        """Return the unit if it points at a record of this queue and offset with a right checksum, else None."""
        unit = queue.unit(offset) if offset >= queue.min_offset else None
        if unit is None or unit.size <= 0 or unit.log_offset < self._log.min:
            return None
        data = self._log.read(unit.log_offset, unit.size)
        heads, _, _ = hot.scan_records(data, 0, len(data), unit.log_offset, 1, check_crc=True)
        if not heads or heads[0].size != unit.size:
            return None
        head = heads[0]
        of_this = (head.topic, head.queue_id, head.queue_offset) == (queue.tail.topic, queue.queue_id, offset)
        return unit if of_this else None

    def _in_order(self, unit: Unit, before: Unit | None, behind: Unit | None) -> bool:
        low = before.log_end if before else self._log.min
        high = behind.log_offset if behind else self._log.end
        return unit.size > 0 and low <= unit.log_offset < high

    def _records(self, start: int, stop: int) -> Iterator[hot.RecordHead]:
        """Yield every whole record of [start, stop), also behind damage, where the next one is found by its magic number."""
        step = _STEP_BYTES
        while start < stop:
            file = self._log.run.find(start)
            if file is None:
                return
            end = min(stop, file.end)
            data = self._log.read(start, min(step, end - start))
            if not data:
                return
            heads, place, outcome = hot.scan_records(data, 0, len(data), start, _HEADS, check_crc=True)
            yield from heads
            if place:
                start, step = start + place, _STEP_BYTES
            elif outcome == hot.END_BLANK:
                start = file.end
            elif outcome == hot.END_SHORT and len(data) < end - start and step <= file.size:
                step *= 2  # a record larger than what was read
            else:
                step = _STEP_BYTES
                found = data.find(_MAGIC, _MAGIC_AT + 1)
                start += found - _MAGIC_AT if found >= 0 else max(1, len(data) - _MAGIC_AT - len(_MAGIC) + 1)


def _without(known: range, offset: int) -> list[range]:
    """A range of offsets without one of them."""
    if offset not in known:
        return [known]
    return [part for part in (range(known.start, offset), range(offset + 1, known.stop)) if part]
