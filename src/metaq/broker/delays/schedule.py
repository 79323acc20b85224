"""Scheduled delivery: the schedule service of a broker, with its delay levels.

Each level is a queue of SCHEDULE_TOPIC_XXXX. All its records wait equally long, so the queue is in order of delivery and
one position per level is all there is to remember (`metaq.broker.delays.positions`).

Delivery goes on in turns of bounded time, and within a turn level by level, a slice of each: a flood on one level keeps
neither the other levels waiting nor the event loop. What cannot be stored now (the disk is full, or slower than the
producers) is tried again ten times a second, and its level waits for it, because order is kept. What can never be
delivered, a record that is damaged or has left the log, is passed over and told.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from metaq.broker.delays.carried import CarriedDelays
from metaq.broker.delays.positions import SchedulePositions
from metaq.broker.environment import Environment, ReadCold
from metaq.broker.log.admit import GateTable
from metaq.broker.log.appender import Appender
from metaq.broker.log.records import put_record
from metaq.broker.part import BrokerPart
from metaq.errors import BadRequest, Reason, Refused, RemoteProtocolError
from metaq.log import RateLimitedLog
from metaq.model import DelayProgress, StoredMessage
from metaq.model import properties as props
from metaq.model.facts import LevelProgress
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.model.topics.topic import check_topic
from metaq.saved_file import TextFile
from metaq.store.queues.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from metaq.store.reads.pull import ReadResult, ReadStatus
from metaq.wire.hot import STOP_END, AppendOutcome, DelayGate
from metaq.wire.record import decode_record

log = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.001
"""Length of a turn; after it the event loop goes on."""
PAUSE_SECONDS_MIN: Final = 0.01
"""Shortest pause between looks at records that come due one by one: a look costs as much as a few deliveries."""
PAUSE_SECONDS_MAX: Final = 0.1
SLICE: Final = 128
"""Deliveries of one level before the next has its turn."""
SLICE_BYTES: Final = 512 * 1024
DELAY_MS_MAX: Final = 1 << 60
"""Levels beyond that are not the fast path's."""
COLD_RUN: Final = 4096
COLD_BYTES: Final = 1024 * 1024
"""Records that are read in a thread come in larger runs: each way there and back costs a turn of the loop."""


class _Run(Struct):
    """Records of one level that were read and are due: [row, end) of `units` are still to be delivered."""

    offset: int
    """QueueOffset of row 0."""
    records: bytes | memoryview
    units: bytes
    row: int
    end: int


class _Level:
    """One delay level."""

    __slots__ = ("delay_ms", "head", "number", "reading", "run")

    def __init__(self, number: int, delay_ms: int) -> None:
        self.number, self.delay_ms = number, delay_ms
        self.head: tuple[int, int] = (-1, 0)
        """QueueOffset of the next record when it was looked at last, and when it is due."""
        self.run: _Run | None = None
        self.reading = False


class ScheduleService(BrokerPart):
    """Delivers what is due. `delays_ms`: what each level stands for, the first being level 1.

    Args: read_cold: how to read what is no longer in memory. Who gives another than `read_at_once` calls `step` after
          the result was taken."""

    def __init__(
        self,
        environment: Environment,
        appender: Appender,
        gates: GateTable,
        file: TextFile[DelayProgress],
        read_cold: ReadCold,
        delays: DelayGate,
    ) -> None:
        store, clock = environment.store, environment.clock
        self._store_options = environment.store_options
        self._store, self._appender, self._gates, self._clock = store, appender, gates, clock
        delays_ms = store.delays_ms
        self.stopwatch = clock.monotonic
        """What turns are measured with, in seconds."""
        self.delays_ms = delays_ms
        self.positions = SchedulePositions(store, file)
        self._levels = [_Level(number, delay_ms) for number, delay_ms in enumerate(delays_ms, 1)]
        self._turn = 0
        """Index of the level whose slice is next."""
        self._stop = 0.0
        """When the turn ends."""
        self._outcome = AppendOutcome()
        self._told = RateLimitedLog(log, clock)
        self._read_cold = read_cold
        self._carried = CarriedDelays(environment, appender, self.positions, read_cold)
        self.delays = delays
        """What the fast path knows of levels."""
        self._save_at = 0.0

    def open(self) -> None:
        """Read how far each level has come, and let the fast path use the levels whose queues are there."""
        self.positions.open()
        for level in range(1, len(self.delays_ms) + 1):
            self.waits_at(level)
        self._store.owes(self)
        self._save_later()

    def waits_at(self, level: int) -> None:
        """Let the fast path put records of this level, if its queue is there."""
        delay_ms = self.delays_ms[level - 1]
        if self.delays.is_open(level) or delay_ms > DELAY_MS_MAX:
            return
        queue = self._store.existing_queue(SCHEDULE_TOPIC, level - 1)
        if queue is not None:
            self.delays.open(level, queue.tail, delay_ms)

    def due_ms(self, level: int) -> int:
        """When a record that arrives now at this level is to be delivered."""
        return self._clock.now_ms() + self.delays_ms[level - 1]

    def step(self) -> float:
        """Deliver what is due, for at most TURN_SECONDS. Returns the seconds until the next look, 0 for at once."""
        self._stop = stop = self.stopwatch() + TURN_SECONDS
        out_of_time = self._carried.step(lambda: self.stopwatch() < stop)
        now_ms, idle = self._clock.now_ms(), 0
        while idle < len(self._levels):
            level = self._levels[self._turn]
            self._turn = (self._turn + 1) % len(self._levels)
            if not self._slice(level, now_ms):
                idle += 1
                continue
            idle = 0
            if self.stopwatch() >= stop:
                return 0.0
        return 0.0 if out_of_time else self._pause(now_ms)

    def tick(self) -> None:
        """A turn, a save when it is due, and what was left out of the log."""
        self.step()
        self._told.tick()
        self._carried.tick()
        if self._clock.monotonic() >= self._save_at:
            self._save_later()
            self.positions.save()
        self.positions.settle()

    def _save_later(self) -> None:
        self._save_at = self._clock.monotonic() + self._store_options.flush_delay_offset_interval / 1000

    def close(self) -> None:
        """Save how far each level has come. What appends at its own end is opened after this part, and closed before."""
        self.positions.close()

    def _pause(self, now_ms: int) -> float:
        soonest = min((level.head[1] - now_ms for level in self._levels if level.head[0] >= 0), default=0)
        seconds = soonest / 1000 if soonest > 0 else PAUSE_SECONDS_MAX
        return min(max(seconds, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX)

    # ------------------------------------------------------------------ one level

    def _slice(self, level: _Level, now_ms: int) -> bool:
        """Deliver up to SLICE records of a level. False: none is due, or none can be delivered now."""
        queue = self._store.existing_queue(SCHEDULE_TOPIC, level.number - 1)
        if queue is None or level.reading:
            return False
        offset = min(max(self.positions.next(level.number), queue.min_offset), queue.max_offset)
        self.positions.advance(level.number, offset)
        run = level.run
        if run is None or run.offset + run.row != offset:
            run = level.run = self._read(level, queue, offset, now_ms)
        if run is None:
            return self.positions.next(level.number) > offset
        try:
            return self._deliver(level, run)
        finally:
            self.positions.advance(level.number, run.offset + run.row)
            if run.row == run.end or isinstance(run.records, memoryview):
                level.run = None  # a view would keep a log file mapped

    def _read(self, level: _Level, queue: ConsumeQueue, offset: int, now_ms: int) -> _Run | None:
        """What is due from `offset` on. None: nothing, or a thread is reading it, or it was passed over."""
        if level.head[0] == offset and self._is_waiting(level.head[1], level, now_ms):
            return None
        level.head = (-1, 0)
        if offset == queue.max_offset:
            return None
        units = self._due(level, queue, offset, now_ms, SLICE)
        if level.head[0] == offset:
            return None
        pulled = self._pull(level, offset, units, SLICE_BYTES)
        if pulled.status is ReadStatus.COLD:
            units = self._due(level, queue, offset, now_ms, COLD_RUN)
            pulled = self._pull(level, offset, units, COLD_BYTES)
        if pulled.job is None:
            return self._take(level, offset, units, pulled)
        level.reading, level.run = True, None

        def done(pulled: ReadResult | None) -> None:
            level.reading = False
            if pulled is not None:
                level.run = self._take(level, offset, units, pulled)

        self._read_cold(pulled.job, done)
        return level.run

    def _due(self, level: _Level, queue: ConsumeQueue, offset: int, now_ms: int, count: int) -> bytes:
        """The units from `offset` on that are due. If the first is not, `level.head` remembers when it will be."""
        units = queue.unit_bytes(offset, count)
        for place, (_, _, due_ms) in enumerate(UNIT.iter_unpack(units)):
            if self._is_waiting(due_ms, level, now_ms):
                if place == 0:
                    level.head = (offset, due_ms)
                return units[: place * UNIT_BYTES]
        return units

    def _is_waiting(self, due_ms: int, level: _Level, now_ms: int) -> bool:
        # Later than any record can be due: the clock was set back, or the delays were changed. Such a one is delivered.
        return now_ms < due_ms <= now_ms + level.delay_ms

    def _pull(self, level: _Level, offset: int, units: bytes, bytes_max: int) -> ReadResult:
        count = max(1, len(units) // UNIT_BYTES)
        return self._store.pull(SCHEDULE_TOPIC, level.number - 1, offset, count, bytes_max)

    def _take(self, level: _Level, offset: int, units: bytes, pulled: ReadResult) -> _Run | None:
        """What was read, as a run; None if it is not what `units` point at. Units without a record are passed over."""
        places = (log_offset for log_offset, _, _ in UNIT.iter_unpack(units))
        gone = sum(1 for _ in itertools.takewhile(self._store.min_log.__gt__, places))
        if not units:
            gone = pulled.next_offset - offset  # the queue's file has gone
        elif pulled.status is ReadStatus.OFFSET_OVERFLOW_ONE:
            gone = max(gone, 1)  # a record is written before its unit: this unit is damaged
        elif pulled.status is ReadStatus.NO_MATCHED_MESSAGE:
            gone = max(gone, pulled.next_offset - offset)  # all of them are asked for: the store knows these to be lost
        if gone > 0:
            self._told.warning(
                ("gone", level.number), "%d delayed messages of level %d, from queue offset %d on, have left the log or are "
                "damaged in it: they cannot be delivered", gone, level.number, offset,
            )  # fmt: skip
            self.positions.advance(level.number, offset + gone)
            return None
        if not pulled.count or pulled.next_offset != offset + pulled.count:
            return None  # retention was at work while a thread read
        return _Run(offset, pulled.body, units, 0, pulled.count)

    def _deliver(self, level: _Level, run: _Run) -> bool:
        """Deliver up to SLICE rows. False: not even the first can be delivered now."""
        began, stop, outcome = run.row, min(run.end, run.row + SLICE), self._outcome
        while run.row < stop:
            try:
                self._append(level, run, stop)
                if outcome.stop != STOP_END:
                    self._deliver_singly(level, run)
                    if run.row > outcome.row and self.stopwatch() >= self._stop:
                        # One by one, a slice would take the time of many turns.
                        return run.row > began
            except Refused as error:
                self._told.warning("held up", "delayed delivery is held up: %s", error)
                return run.row > began
        return True

    def _append(self, level: _Level, run: _Run, stop: int) -> None:
        outcome = self._outcome
        outcome.row = run.row
        try:
            self._appender.deliver(run.records, run.units, run.row, stop, level.number - 1, self._gates.table, outcome)
        finally:
            run.row = outcome.row

    def _deliver_singly(self, level: _Level, run: _Run) -> None:
        """Deliver the next row, or open its topic's gate, or pass over what can never be delivered.

        Raises Refused: it cannot be delivered now.
        """
        start = sum(max(0, size) for _, size, _ in UNIT.iter_unpack(run.units[: run.row * UNIT_BYTES]))
        log_offset, size, _ = UNIT.unpack_from(run.units, run.row * UNIT_BYTES)
        try:
            message = decode_record(run.records[start : start + max(0, size)])
            self._check(message, level, log_offset)
            topic = check_topic(message.properties.get(props.REAL_TOPIC, ""))
            queue_id = int(message.properties.get(props.REAL_QUEUE_ID, ""))
        except (RemoteProtocolError, BadRequest, Refused, ValueError) as error:
            self._told.warning(
                "broken", "the delayed record at log offset %d of level %d cannot be delivered: %s",
                log_offset, level.number, error,
            )  # fmt: skip
            run.row += 1
            return
        if log_offset < self._store.deleted.get(topic, 0):
            self._told.warning(
                ("deleted", topic), "a delayed message for the topic %s is not delivered: the topic was deleted after it was "
                "sent, and its messages with it", topic,
            )  # fmt: skip
            run.row += 1
            return
        if self._gates.open(topic.encode()):
            return
        record = put_record(
            topic,
            queue_id,
            message.body,
            message.properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_ms=message.born_ms,
            born_host=message.born_host_raw,
            reconsume_times=message.reconsume_times,
            copy_of=log_offset,
        )
        try:
            self._appender.put([record])
            if not self._appender.closed_queues.has_of(topic):  # else it has no gate for a while because of that
                self._told.warning(
                    ("no queue", topic), "a delayed message was delivered to queue %d of topic %s, which has no such queue "
                    "now: it can be read once the queue is there again", queue_id, topic,
                )  # fmt: skip
        except Refused as error:
            if error.reason is not Reason.ILLEGAL_MESSAGE:
                raise
            self._told.error(
                "illegal", "the delayed record at log offset %d can never be stored in topic %s: %s", log_offset, topic,
                error,
            )  # fmt: skip
        run.row += 1

    def _check(self, message: StoredMessage, level: _Level, log_offset: int) -> None:
        if (message.topic, message.queue_id, message.log_offset) != (SCHEDULE_TOPIC, level.number - 1, log_offset):
            raise ValueError(f"it is one of {message.topic} at log offset {message.log_offset}")

    # ------------------------------------------------------------------ what is owed

    what = "delayed messages"

    def oldest(self) -> int | None:
        """LogOffset of the oldest message that is still to be delivered; None: none is. From any thread."""
        carried = self._carried.oldest()
        found = [] if carried is None else [carried]
        for level in self._levels:
            queue = self._store.existing_queue(SCHEDULE_TOPIC, level.number - 1)
            if queue is None:
                continue
            offset = max(self.positions.next(level.number), queue.min_offset)
            unit = queue.unit(offset) if offset < queue.max_offset else None
            if unit is not None and unit.size > 0 and not unit.is_fill:
                found.append(unit.log_offset)
        return min(found, default=None)

    def carry(self, before: int) -> None:
        """Write anew the delayed records that begin below this LogOffset, soon. From any thread."""
        self._carried.carry(before)

    # ------------------------------------------------------------------ for tools

    def progress(self) -> Mapping[int, LevelProgress]:
        """How far each level in use has come."""
        queues = {level.number: self._store.existing_queue(SCHEDULE_TOPIC, level.number - 1) for level in self._levels}
        return {
            level: LevelProgress(self.positions.next(level), queue.max_offset)
            for level, queue in queues.items()
            if queue
        }
