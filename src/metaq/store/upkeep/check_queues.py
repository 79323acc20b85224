"""Holds consume queues and the records of the log against each other: each record has its unit, each unit its record."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from metaq.amounts import count
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.model.upkeep.floors import floor_of
from metaq.store.queues.consume_queue import Unit
from metaq.store.queues.dispatch import delays_of, deliver_ms, is_queued, tags_code
from metaq.store.upkeep.findings import Findings
from metaq.store.upkeep.log_records import LogRecords, Seen
from metaq.store.upkeep.unit_files import UnitFiles, find_unit_files
from metaq.wire import hot

_SCHEDULE: Final = SCHEDULE_TOPIC.encode()
CARRIED: Final = 10_000
"""From this queue id on, the schedule topic's queues hold delayed messages that were written anew (docs/formats/extensions.md)."""
_SIZE_AT, _CODE_AT = 8, 12
_QUEUE_OFFSET_AT: Final = 20
_MISSING_TOLD_MAX: Final = 1000


class Hidden(Struct, frozen=True):
    """What is in the log and in no queue."""

    deleted: Mapping[str, int]
    """Topic → LogOffset below which its records are of a topic that was deleted."""
    floors: Mapping[str, int]
    """Topic → LogOffset below which it has let go of its messages."""


class _Place(Struct, frozen=True):
    """A record and where it lies."""

    path: str
    place: int
    head: hot.RecordHead


class _Queue(Struct):
    """A queue, as far as the walk has come."""

    files: UnitFiles | None
    """None: it has no folder."""
    first: int = -1
    """Queue offset of its oldest record; -1: none has come yet."""
    next: int = 0
    """Queue offset that the next record is to have."""
    held: _Place | None = None
    """A record that should have the next unit, which points elsewhere: one of both is damaged."""
    odd_delays: set[int] = field(default_factory=set)
    """Delays, ms, that are not the level's and that a unit had: `messageDelayLevel` was another one then."""


class QueueCheck:
    """Told of each record in the log's order; then `finish`."""

    def __init__(
        self, root: Path, findings: Findings, records: LogRecords, hidden: Hidden, delay_levels: str, *, ours: bool,
        made_again_ms: int | None = None,
    ) -> None:  # fmt: skip
        """Begin.

        Args:
            ours: a broker of ours was the last one, so that a topic without queues is damage. A RocketMQ forgets what was deleted.
            made_again_ms: store time, ms, from which on the next start makes units from the log: a queue may end earlier. None: of no
                record.
        """
        self._made_again_ms, self._late = made_again_ms, 0
        self._kind, self._log = findings.kind("consume queues", "units"), findings.kind("commit log", "records")
        self._findings, self._records, self._hidden, self._ours = findings, records, hidden, ours
        self._delays_ms = delays_of(delay_levels)
        self._root = root
        self._queues: dict[tuple[bytes, int], _Queue] = {
            (files.topic.encode(), files.queue_id): _Queue(files) for files in find_unit_files(root)
        }
        self._unplaced: dict[int, _Place] = {}
        """LogOffset → record of which no unit is known: its own queue, or queue offset, may be damaged."""
        self._check_files()

    def _check_files(self) -> None:
        """Each queue's files follow each other, and have one size."""
        for queue in self._queues.values():
            files = queue.files.files if queue.files else []
            for (first, path, units), (following, behind, _) in itertools.pairwise(files):
                if first + units != following:
                    why = f"{path.name} ends with unit {first + units - 1}: a file is missing, or that one is not of its size"
                    self._kind.add(behind, 0, 0, why)

    def ends(self) -> dict[str, dict[int, int]]:
        """Return topic → queue id → max offset, by the log."""
        found: dict[str, dict[int, int]] = {}
        for (topic, queue_id), queue in self._queues.items():
            found.setdefault(topic.decode("utf-8", "replace"), {})[queue_id] = queue.next
        return found

    # ------------------------------------------------------------------ a record

    def take(self, seen: Seen) -> None:
        """Hold a record against its unit."""
        head = seen.head
        if not is_queued(head.sys_flag):
            return
        queue = self._queues.get((head.topic, head.queue_id))
        if queue is not None and self._goes_on(queue, head):
            self._findings.newest = head.log_offset, head.size, head.store_ms
            return
        topic = head.topic.decode("utf-8", "replace")
        if head.log_offset < self._hidden.deleted.get(topic, 0) or head.queue_id < 0:
            return
        self._findings.newest = head.log_offset, head.size, head.store_ms
        if queue is None:
            queue = self._queues[head.topic, head.queue_id] = _Queue(None)
        if queue.files is None or not queue.files.files:
            if self._ours and queue.first < 0 and head.log_offset >= self._floor(topic, head.queue_id):
                self._unplaced[head.log_offset] = _Place(seen.file.path, seen.place, head)
            elif not self._ours and queue.first < 0:
                where = self._root / topic / str(head.queue_id)
                self._findings.notes.append(
                    f"{where}: records without a queue: the topic was deleted, or the queue is lost"
                )
            queue.first = queue.first if queue.first >= 0 else head.queue_offset
            queue.next = head.queue_offset + 1
            return
        self._settle(queue, queue.files, head)
        if head.log_offset < self._floor(topic, head.queue_id) and queue.files.place(head.queue_offset) is None:
            queue.first = queue.first if queue.first >= 0 else head.queue_offset
            queue.next = head.queue_offset + 1
            return  # its unit went with its time, or by hand
        offset = self._offset(queue, queue.files, seen)
        if offset is None:
            return
        if queue.first < 0:
            queue.first = offset
        queue.next = offset + 1
        self._check_unit(queue, queue.files, offset, _Place(seen.file.path, seen.place, head))

    def _floor(self, topic: str, queue_id: int) -> int:
        return floor_of(self._hidden.floors, topic, queue_id)

    def _goes_on(self, queue: _Queue, head: hot.RecordHead) -> bool:
        """Take the record if it is the next of its queue and its unit is right: nearly all are."""
        if queue.held is not None or queue.first < 0 or head.queue_offset != queue.next or queue.files is None:
            return False
        if queue.files.unit(queue.next) != (head.log_offset, head.size, tags_code(head, self._delays_ms)):
            return False
        self._kind.checked += 1
        queue.next += 1
        return True

    def _settle(self, queue: _Queue, files: UnitFiles, behind: hot.RecordHead | None) -> None:
        """Decide what is damaged of a record and the unit that it would have, by the record behind; None: there is none."""
        held, queue.held = queue.held, None
        if held is None:
            return
        if behind is None or behind.queue_offset != queue.next:
            queue.next += 1
            self._check_unit(queue, files, queue.next - 1, held)
        else:  # the unit is another record's, which has come now
            self._unplaced[held.head.log_offset] = held

    def _offset(self, queue: _Queue, files: UnitFiles, seen: Seen) -> int | None:
        """Return the record's queue offset; that of its unit if the record's own is damaged. None: it is not known yet."""
        head = seen.head
        unit = files.unit(head.queue_offset)
        points = _points(unit, head)
        if queue.first < 0:
            if points or (better := self._searched(files, head)) is None:
                return head.queue_offset
            self._tell_offset(seen, better, better)
            return better
        if points and (head.queue_offset == queue.next or head.queue_offset < queue.next):
            return head.queue_offset  # below: the topic was deleted and made again
        if _points(files.unit(queue.next), head):
            self._tell_offset(seen, queue.next, queue.next)
            return queue.next
        if head.queue_offset == queue.next:
            queue.held = _Place(seen.file.path, seen.place, head)
            return None
        if head.queue_offset > queue.next and points and self._passed(queue, files, head):
            return head.queue_offset
        if points:
            self._tell_offset(seen, queue.next, head.queue_offset)
            return head.queue_offset
        self._unplaced[head.log_offset] = _Place(seen.file.path, seen.place, head)
        return None

    def _passed(self, queue: _Queue, files: UnitFiles, head: hot.RecordHead) -> bool:
        """Whether it is known where the messages are that lie between the queue's next one and this record: lost, or misplaced."""
        gap = range(queue.next, head.queue_offset)
        if len(gap) > self._kind.checked + self._records.lost_bytes + _MISSING_TOLD_MAX:
            return False
        known = 0
        for offset in gap:
            unit, before = files.unit(offset), files.unit(offset - 1) if offset else None
            if unit is None:
                break
            if self._claim(unit, files, offset):
                known += 1
            elif not (self._records.lost_bytes and (self._records.is_lost(unit.log_offset) or unit == before)):
                break
            else:
                known += 1
        self._kind.checked += known
        return known == len(gap)

    def _claim(self, unit: Unit, files: UnitFiles, offset: int) -> bool:
        """Tell of the record that a unit points at and that says it is another queue's; False: there is none."""
        place = self._unplaced.pop(unit.log_offset, None)
        if place is None:
            return False
        head = place.head
        why = (
            f"a record of queue {head.queue_id} of topic {head.topic.decode('utf-8', 'replace')} with queue offset {head.queue_offset}: "
            f"unit {offset} of {files.topic}:{files.queue_id} points at it"
        )
        self._log.add(place.path, place.place, head.size, why)
        return True

    def _searched(self, files: UnitFiles, head: hot.RecordHead) -> int | None:
        """Return the queue offset of the unit that points at a record, near the begin of its queue's files; None: none does."""
        for offset in range(files.first, min(files.stop, files.first + _MISSING_TOLD_MAX)):
            unit = files.unit(offset)
            if unit is not None and not unit.is_fill and unit.log_offset >= head.log_offset:
                return offset if _points(unit, head) else None
        return None

    def _tell_offset(self, seen: Seen, wanted: int, unit: int | None) -> None:
        head = seen.head
        by = f", as its unit {unit} says" if unit is not None else ""
        why = (
            f"a record with queue offset {head.queue_offset} where queue {head.queue_id} of topic "
            f"{head.topic.decode('utf-8', 'replace')} goes on with {wanted}{by}"
        )
        self._log.add(seen.file.path, seen.place + _QUEUE_OFFSET_AT, 8, why)

    def _check_unit(self, queue: _Queue, files: UnitFiles, offset: int, seen: _Place) -> None:
        head, unit, place = seen.head, files.unit(offset), files.place(offset)
        self._kind.checked += 1
        if self._findings.running and not (place[0] if place else files.folder).exists():
            return  # retention took it, or the topic was deleted
        if self._is_late(files, offset, head, unit):
            self._late += 1
        elif unit is None or place is None:
            why = f"no unit {offset} for the record at byte {seen.place} of {seen.path}"
            self._kind.add(files.folder, 0, 0, why)
        elif unit.log_offset != head.log_offset:
            what = f"points at log offset {unit.log_offset}" if unit.size else "is not there"
            self._kind.add(
                place[0],
                place[1],
                8,
                f"unit {offset} {what}, its record is at byte {seen.place} of {seen.path} (log offset {head.log_offset})",
            )
        elif unit.size != head.size:
            why = (
                f"unit {offset} says {unit.size} bytes, the record at byte {seen.place} of {seen.path} has {head.size}"
            )
            self._kind.add(place[0], place[1] + _SIZE_AT, 4, why)
        elif not self._fits(queue, unit.tags_code, head):
            why = f"unit {offset} has the tags code {unit.tags_code}, that of the record at byte {seen.place} of {seen.path} is {tags_code(head, self._delays_ms)}"
            self._kind.add(place[0], place[1] + _CODE_AT, 8, why)

    def _is_late(self, files: UnitFiles, offset: int, head: hot.RecordHead, unit: Unit | None) -> bool:
        """Whether its queue ends before this record, and the next start makes the rest of it."""
        if self._made_again_ms is None or head.store_ms < self._made_again_ms or (unit is not None and any(unit)):
            return False
        return next(files.data_behind(offset), None) is None

    def _fits(self, queue: _Queue, code: int, head: hot.RecordHead) -> bool:
        if code == tags_code(head, self._delays_ms):
            return True
        if head.topic != _SCHEDULE or head.delay_level <= 0:
            return False
        if head.queue_id >= CARRIED:  # written anew: due when the message was, not by its store time
            return (
                0
                < code
                < deliver_ms(head.store_ms, head.delay_level, self._delays_ms) + max(self._delays_ms, default=0)
            )
        # The levels are an option, and may have been others. One damaged unit is alone with its delay.
        delay = code - head.store_ms
        if delay in queue.odd_delays:
            return True
        queue.odd_delays.add(delay)
        behind = queue.files.unit(head.queue_offset + 1) if queue.files else None
        return behind is None or behind.size <= 0 or self._shares(behind, delay)

    def _shares(self, behind: Unit, delay: int) -> bool:
        """Whether the unit behind may have the same delay: its message was stored within a minute of that."""
        return abs(behind.tags_code - delay - self._records.last_ms) < 60_000

    # ------------------------------------------------------------------ the end

    def finish(self) -> None:
        """Look at the units that no record has asked for."""
        for queue in self._queues.values():
            if queue.files is not None and queue.files.files:
                self._settle(queue, queue.files, None)
                self._finish(queue, queue.files)
        if self._late:
            missing = (
                f"{count(self._late, 'record')} of the end of the log {'has' if self._late == 1 else 'have'} no unit"
            )
            self._findings.notes.append(f"{missing} in the queues yet: the next start makes what is missing")
        for place in self._unplaced.values():
            head = place.head
            topic = head.topic.decode("utf-8", "replace")
            queue = self._queues[head.topic, head.queue_id]
            if queue.files is None or not queue.files.files:
                where = self._root / topic / str(head.queue_id)
                self._kind.add(
                    where, 0, 0, f"no consume queue, and a record of it is at byte {place.place} of {place.path}"
                )
            else:
                why = f"a record with queue offset {head.queue_offset} that queue {head.queue_id} of topic {topic} has elsewhere"
                self._log.add(place.path, place.place + _QUEUE_OFFSET_AT, 8, why)

    def _finish(self, queue: _Queue, files: UnitFiles) -> None:
        floor = max(
            self._findings.log_begin, self._floor(files.topic, files.queue_id), self._hidden.deleted.get(files.topic, 0)
        )
        stop = queue.first if queue.first >= 0 else files.stop
        end = files.first
        for offset in range(files.first, stop):
            unit, place = files.unit(offset), files.place(offset)
            if unit is None or place is None or not unit.size:
                break
            if not self._findings.in_order and unit.log_offset >= self._findings.durable_end and not unit.is_fill:
                break  # a broker that is running, or was killed, has put it
            end = offset + 1
            self._kind.checked += 1
            below = unit.is_fill or unit.log_offset + unit.size <= floor
            if unit.size < 0 or not (below or unit.log_offset < floor or self._records.is_lost(unit.log_offset)):
                self._tell_stray(place, offset, unit)
        if queue.first < 0:
            queue.next = end
        elif end < stop:
            place = files.place(end)
            if place is not None:
                self._kind.add(
                    *place, 0, f"unit {end} is not there, and the log's oldest message of the queue is {stop}"
                )
        self._behind(queue, files)

    def _behind(self, queue: _Queue, files: UnitFiles) -> None:
        """Judge the units behind the newest record: a broker that is running, or was killed, may have put some."""
        before = files.unit(queue.next - 1) if queue.next else None
        for offset in files.data_behind(queue.next):
            unit, place = files.unit(offset), files.place(offset)
            if unit is None or place is None:
                continue
            if offset == queue.next and (self._records.is_lost(unit.log_offset) or unit == before):
                queue.next, before = offset + 1, unit  # a lost message keeps its queue offset
                self._kind.checked += 1
            elif unit.log_offset < self._findings.durable_end and self._claim(unit, files, offset):
                queue.next, before = offset + 1, unit
            elif self._findings.in_order or (unit.log_offset < self._findings.durable_end and unit.size > 0):
                self._tell_stray(place, offset, unit)
                return

    def _tell_stray(self, place: tuple[Path, int], offset: int, unit: Unit) -> None:
        topic, queue_id = place[0].parent.parent.name, place[0].parent.name
        why = (
            f"unit {offset} points at log offset {unit.log_offset}, where no message {offset} of {topic}:{queue_id} is"
        )
        self._kind.add(*place, 20, why)


def _points(unit: Unit | None, head: hot.RecordHead) -> bool:
    return unit is not None and unit.log_offset == head.log_offset and not unit.is_fill
