"""Where the log ends at a start, and which damaged places lie before its end.

A crash leaves a broken record at the log's end, and nothing behind it that was promised. A broken record with whole ones
behind it that were promised is damage: it is stepped over. What counts as promised:

- what the tails call durable;
- all of it, if the machine has not restarted since the tails were written: a killed process takes nothing from the page cache;
- else whatever is not torn as a power cut tears it. Synced records are whole then, so what lies behind one that lost its
  sectors was not acknowledged under SYNC_FLUSH, and not promised under ASYNC_FLUSH.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, structs

from metaq.store.log.broken import (
    DamagedPlace,
    behind,
    head_at,
    is_unpublished,
    may_be_unwritten,
    next_record,
    place_of,
)
from metaq.store.log.scan import WHY, Judge, Judged, LogScan, QueueKey
from metaq.store.mapped_file import FileRun
from metaq.store.queues.consume_queue import ConsumeQueue, Unit
from metaq.store.queues.dispatch import is_queued, topic_of
from metaq.wire import hot

_LOOKS_MAX: Final = 1_000_000
"""Units that are looked at to find out whose records are damaged, at most: what is left is told without its queue."""

_PENDING_MAX: Final = 1000


class Promise(Struct, frozen=True):
    """What of the log was promised to be there after the last run, as far as it is known."""

    durable_end: int = 0
    """LogOffset up to which it is known to be durable."""
    ended_at: int = -1
    """LogOffset at which a run has ended in order: nothing was appended behind it. -1: it has not."""
    same_boot: bool = False
    """The machine has not restarted since: all that was written is in the page cache."""
    is_ours: bool = False
    """A broker of ours wrote the end of the log: it leaves nothing but zeros behind it."""
    safe_ms: int = 0
    """Store time, ms, up to which a RocketMQ's checkpoint calls the records durable."""


class Walk(Struct, frozen=True):
    """What a walk over the log has found."""

    log_end: int
    why: str
    records: int
    last: hot.RecordHead | None
    """The newest record."""
    places: tuple[DamagedPlace, ...]
    """Damaged places before the log's end."""
    units: dict[QueueKey, dict[int, Unit]]
    """Units of messages that lie in them, as far as queues tell: queue → queue offset → unit."""


class _State(Struct):
    records: int = 0
    last: hot.RecordHead | None = None


class LogWalk:
    """One walk from a LogOffset to the log's end."""

    def __init__(
        self,
        run: FileRun,
        judge: Judge,
        queues: Mapping[tuple[str, int], ConsumeQueue],
        has_unit: Callable[[hot.RecordHead], bool],
        promise: Promise,
    ) -> None:
        self._run, self._judge, self._queues, self._has_unit, self._promise = run, judge, queues, has_unit, promise
        self._state = _State()
        self._places: list[DamagedPlace] = []
        self._pending: list[DamagedPlace] = []
        """Places behind the newest record that is known to be the log's: damage if another one follows, else its end."""
        self._before: tuple[_State, Judged] = self._state, judge.saved()
        """What was known at the first of them."""
        self._units: dict[QueueKey, dict[int, Unit]] = {}
        self._looks = _LOOKS_MAX

    def walk(self, start: int, *, check_crc: bool, told: Callable[[int], None] | None = None) -> Walk:
        """Walk. Changes nothing. `told`: gets the LogOffset that it has come to, after each step. Raises NeedsWholeLog."""
        scan = LogScan(self._run, start, check_crc=check_crc, past=self._past, told=told)
        for heads in scan:
            for head in heads:
                why = (
                    f"a record with the impossible topic {head.topic!r}"
                    if topic_of(head) is None
                    else self._judge.refusal(head)
                )
                if not why:
                    if self._pending and self._confirms(head):
                        self._keep(self._pending)
                    self._state.records += 1
                    self._state.last = head
                elif self._is_promised(head.log_offset):
                    self._hold(place_of(self._run, head.log_offset, head.log_offset + head.size, why), head)
                else:
                    return self._ended(head.log_offset, why)
        return self._ended(scan.end, scan.why)

    def _ended(self, end: int, why: str) -> Walk:
        durable = [place for place in self._pending if place.start < self._promise.durable_end]
        if durable:
            self._keep(durable)
            end = durable[-1].stop
        elif self._pending:
            end, why = self._pending[0].start, self._pending[0].why
            self._state, judged = self._before
            self._judge.restore(judged)
        state = self._state
        return Walk(end, why, state.records, state.last, tuple(self._places), self._units)

    # ------------------------------------------------------------------ places

    def _past(self, place: int, why: str) -> int:
        """Return where to go on behind bytes that are no record; `place` itself if the log may end there."""
        if place == self._promise.ended_at:  # the usual start does not search the rest of the file
            return place
        stop, durable_end = behind(self._run, place), self._promise.durable_end
        if stop is not None and place >= durable_end and self._promise.is_ours and is_unpublished(self._run, place):
            # Whatever points at its records: nothing was appended behind it, and none of it was acknowledged.
            return place
        if stop is None:
            if place >= durable_end:
                return place
            stop = durable_end
        elif place >= durable_end and not self._may_pass(place, max(place, stop - 1), why):
            return place
        self._hold(place_of(self._run, place, stop, why), None)
        return stop

    def _may_pass(self, place: int, before: int, why: str) -> bool:
        """Whether what follows a place that is not known to be durable may have been promised."""
        promise = self._promise
        if promise.same_boot:  # what follows has to be confirmed, see `_confirms`
            return True
        following = next_record(self._run, before)
        head = head_at(self._run, following, check_crc=True) if following is not None else None
        if head is None:
            return False
        if promise.is_ours:
            # Zeros instead of a size are an append that was cut short before it was published, too.
            return why != WHY[hot.END_ZERO] and not may_be_unwritten(self._run, place, head.log_offset)
        # A RocketMQ leaves what it has cut off, without its units. A queue that was deleted to be rebuilt says nothing.
        unknown = (topic_of(head), head.queue_id) not in self._queues
        return head.store_ms <= promise.safe_ms and (unknown or self._has_unit(head))

    def _is_promised(self, place: int) -> bool:
        return place < self._promise.durable_end or self._promise.same_boot

    def _confirms(self, head: hot.RecordHead) -> bool:
        """Whether a record that fits proves that it is the log's, and what lies before it is damage."""
        # Units are put behind their record, but for those of an append that `is_unpublished` tells. In the page cache of a killed
        # broker those are missing whose append was cut short, and those that a RocketMQ has cut off.
        return (
            head.log_offset < self._promise.durable_end
            or not self._promise.same_boot
            or (is_queued(head.sys_flag) and self._has_unit(head))
        )

    def _keep(self, places: list[DamagedPlace]) -> None:
        self._places += places
        self._pending = []

    def _hold(self, place: DamagedPlace, refused: hot.RecordHead | None) -> None:
        """Take note of a place, and of the messages in it as far as they are known."""
        if not self._pending:
            self._before = _State(self._state.records, self._state.last), self._judge.saved()
        last = self._pending[-1] if self._pending else None
        if refused is not None and last is not None and len(self._pending) >= _PENDING_MAX:  # a long tail of leftovers
            self._pending[-1] = structs.replace(last, stop=place.stop)
        else:
            self._pending.append(place)
        if refused is not None:
            self._judge.refused(refused)
        else:
            head = head_at(self._run, place.start, check_crc=False)
            if head is not None and head.size == place.size and topic_of(head) is not None and is_queued(head.sys_flag):
                key = head.topic, head.queue_id
                if self._judge.end_of(key) == head.queue_offset:
                    offset = self._judge.lost_message(key)
                    self._units.setdefault(key, {})[offset] = Unit(head.log_offset, head.size, 0)
                    return
            self._judge.lost(place.size)
        self._look_up(place)

    def _look_up(self, place: DamagedPlace) -> None:
        """Find units that point into the place."""
        if self._looks < len(self._queues):
            return
        self._looks -= len(self._queues)
        for (topic, queue_id), queue in self._queues.items():
            key = topic.encode(), queue_id
            while (unit := queue.peek(self._judge.end_of(key))) and unit.size > 0:
                if not place.start <= unit.log_offset < place.stop:
                    break
                offset = self._judge.lost_message(key, unit.size)
                size = min(unit.size, place.stop - unit.log_offset)
                self._units.setdefault(key, {})[offset] = Unit(unit.log_offset, size, unit.tags_code)
