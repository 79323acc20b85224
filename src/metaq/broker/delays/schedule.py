"""Scheduled delivery of delayed messages (RocketMQ's ScheduleMessageService).

Each delay level is a queue of SCHEDULE_TOPIC_XXXX. All its records wait equally long, so the queue is in order of
delivery, and one offset per level is enough (`metaq.broker.delays.positions`).

Delivery runs in turns of bounded time, and within a turn level by level in slices: a flood on one level blocks neither the other
levels nor the event loop. If a record cannot be stored now (disk full, or slower than the producers), its level is retried ten
times a second, in order. One that can never be delivered (damaged, or no longer in the log) is skipped and logged.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from metaq.broker.delays.carried import CarriedDelays
from metaq.broker.delays.positions import CARRIED, SchedulePositions
from metaq.broker.environment import Environment, ReadCold
from metaq.broker.log.admit import GateTable
from metaq.broker.log.appender import Appender
from metaq.broker.log.records import put_record
from metaq.broker.part import BrokerPart
from metaq.errors import BadRequest, Reason, Refused, RemoteProtocolError
from metaq.histogram import Measured
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
"""Length of a turn, s; after it the event loop goes on."""
PAUSE_SECONDS_MIN: Final = 0.01
"""Shortest pause while records come due one by one, s: a look at the levels costs as much as a few deliveries."""
PAUSE_SECONDS_MAX: Final = 0.1
SLICE: Final = 128
"""Deliveries of one level before the next level's turn."""
SLICE_BYTES: Final = 512 * 1024
DELAY_MS_MAX: Final = 1 << 60
"""Longest delay on the fast path, ms."""
COLD_RUN: Final = 4096
COLD_BYTES: Final = 1024 * 1024
"""Records and bytes of a cold read: larger, because each read in a thread costs a turn of the event loop."""


class _Run(Struct):
    """Due records of one level that were read: rows [row, end) of `units` are still to be delivered."""

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
        """(QueueOffset, delivery time in ms) of the next record when last looked at."""
        self.run: _Run | None = None
        self.reading = False


class ScheduleService(BrokerPart):
    """Delivers due messages. `delays_ms`: delay of each level, from level 1 on.

    Args:
        gates: gates of the fast path for copies.
        file: delayOffset.json.
        read_cold: reads records that are no longer in memory. With another than `read_at_once`, call `step` after a result.
        delays: the fast path's view of levels.
    """

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
        """Clock that measures turns, s."""
        self.delays_ms = delays_ms
        self.positions = SchedulePositions(store, file)
        self._levels = [_Level(number, delay_ms) for number, delay_ms in enumerate(delays_ms, 1)]
        self._removed: list[int] = []
        """Ids of queues whose levels messageDelayLevel does not have any more."""
        self._turn = 0
        """Index of the level that is next."""
        self._stop = 0.0
        """End of the turn."""
        self._outcome = AppendOutcome()
        self._log = RateLimitedLog(log, clock)
        self._read_cold = read_cold
        self._carried = CarriedDelays(environment, appender, self.positions, read_cold)
        self.delays = delays
        """The fast path's view of levels."""
        self._save_at = 0.0
        self.late = Measured()
        """How much later than due the first message of each batch was delivered, s."""

    def open(self) -> None:
        """Recover the offsets, and open the fast path for levels whose queues exist."""
        self.positions.open()
        for level in range(1, len(self.delays_ms) + 1):
            self.waits_at(level)
        self._removed = [
            queue_id
            for topic, queue_id in self._store.reader.queues()
            if topic == SCHEDULE_TOPIC and queue_id % CARRIED >= len(self.delays_ms)
        ]
        if trouble := self.trouble:
            log.warning("%s", trouble)
        self._store.keeper.owes(self)
        self._save_later()

    def waits_at(self, level: int) -> None:
        """Open the fast path for records of this level, if its queue exists; the slow path creates it."""
        delay_ms = self.delays_ms[level - 1]
        if self.delays.is_open(level) or delay_ms > DELAY_MS_MAX:
            return
        queue = self._store.reader.existing_queue(SCHEDULE_TOPIC, level - 1)
        if queue is not None:
            self.delays.open(level, queue.tail, delay_ms)

    def due_ms(self, level: int) -> int:
        """Return the delivery time of a record that arrives now at this level, ms."""
        return self._clock.now_ms() + self.delays_ms[level - 1]

    def step(self) -> float:
        """Deliver due messages for at most TURN_SECONDS. Returns the seconds until the next call; 0: at once."""
        self._stop = stop = self.stopwatch() + TURN_SECONDS
        out_of_time = self._carried.step(lambda: self.stopwatch() < stop)
        now_ms, idle = self._clock.now_ms(), 0
        while idle < len(self._levels):
            level = self._levels[self._turn]
            self._turn = (self._turn + 1) % len(self._levels)
            if not self._slice(level, now_ms):
                # A whole round of levels without a delivery ends the turn.
                idle += 1
                continue
            idle = 0
            if self.stopwatch() >= stop:
                return 0.0
        return 0.0 if out_of_time else self._pause(now_ms)

    def tick(self) -> None:
        """Deliver, and save the offsets when due (flushDelayOffsetInterval)."""
        self.step()
        self._log.tick()
        self._carried.tick()
        if self._clock.monotonic() >= self._save_at:
            self._save_later()
            self.positions.save()
        self.positions.settle()

    def _save_later(self) -> None:
        self._save_at = self._clock.monotonic() + self._store_options.flush_delay_offset_interval / 1000

    def retire(self) -> None:
        """Save the offsets soon, before whoever follows saves those of its leader to the same file."""
        self.positions.save_once_more()

    def close(self) -> None:
        """Save the offsets. Parts that append when they are closed are opened after this part, so they are closed before it."""
        self.positions.close()

    def _pause(self, now_ms: int) -> float:
        soonest = min((level.head[1] - now_ms for level in self._levels if level.head[0] >= 0), default=0)
        seconds = soonest / 1000 if soonest > 0 else PAUSE_SECONDS_MAX
        return min(max(seconds, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX)

    # ------------------------------------------------------------------ one level

    def _slice(self, level: _Level, now_ms: int) -> bool:
        """Deliver up to SLICE records of a level. Returns False if none is due, or none can be delivered now."""
        queue = self._store.reader.existing_queue(SCHEDULE_TOPIC, level.number - 1)
        if queue is None or level.reading:
            return False
        # RocketMQ's correction: an offset outside the queue (a lost file, or a shorter log) moves to its nearest end.
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
                level.run = None  # a memoryview would keep the log file mapped

    def _read(self, level: _Level, queue: ConsumeQueue, offset: int, now_ms: int) -> _Run | None:
        """Read due records from `offset` on. Returns None: none is due, a thread is reading, or some were skipped."""
        # Looked at before: nothing has to be read until then.
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
        """Return the due units from `offset` on. If the first is not due, `level.head` gets its delivery time."""
        # The tags code of these units is the delivery time, so records need not be read to know whether they are due.
        units = queue.unit_bytes(offset, count)
        for place, (_, _, due_ms) in enumerate(UNIT.iter_unpack(units)):
            if self._is_waiting(due_ms, level, now_ms):
                if place == 0:
                    level.head = (offset, due_ms)
                return units[: place * UNIT_BYTES]
        return units

    def _is_waiting(self, due_ms: int, level: _Level, now_ms: int) -> bool:
        # A time further away than the delay means that the clock was set back, or the delays changed: deliver it now, as
        # RocketMQ does.
        return now_ms < due_ms <= now_ms + level.delay_ms

    def _pull(self, level: _Level, offset: int, units: bytes, bytes_max: int) -> ReadResult:
        count = max(1, len(units) // UNIT_BYTES)
        return self._store.reader.pull(SCHEDULE_TOPIC, level.number - 1, offset, count, bytes_max)

    def _take(self, level: _Level, offset: int, units: bytes, pulled: ReadResult) -> _Run | None:
        """Make a run of what was read; None if it is not what `units` point at. Units without a record are skipped."""
        places = (log_offset for log_offset, _, _ in UNIT.iter_unpack(units))
        gone = sum(1 for _ in itertools.takewhile(self._store.log.min.__gt__, places))
        if not units:
            gone = pulled.next_offset - offset  # the queue's file has gone
        elif pulled.status is ReadStatus.OFFSET_OVERFLOW_ONE:
            gone = max(gone, 1)  # records are written before their units, so this unit is damaged
        elif pulled.status is ReadStatus.NO_MATCHED_MESSAGE:
            gone = max(gone, pulled.next_offset - offset)  # read without a filter: the store has found them lost
        if gone > 0:
            self._log.warning(
                ("gone", level.number), "%d delayed messages of level %d, from queue offset %d on, have left the log or are "
                "damaged in it: they cannot be delivered", gone, level.number, offset,
            )  # fmt: skip
            self.positions.advance(level.number, offset + gone)
            return None
        if not pulled.count or pulled.next_offset != offset + pulled.count:
            return None  # retention has deleted the file while a thread was reading
        return _Run(offset, pulled.body, units, 0, pulled.count)

    def _deliver(self, level: _Level, run: _Run) -> bool:
        """Deliver up to SLICE rows. Returns False if not even the first can be delivered now."""
        began, stop, outcome = run.row, min(run.end, run.row + SLICE), self._outcome
        while run.row < stop:
            try:
                self._append(level, run, stop)
                if outcome.stop != STOP_END:
                    self._deliver_singly(level, run)
                    if run.row > outcome.row and self.stopwatch() >= self._stop:
                        # The slow path is so much slower that a whole slice would take many turns.
                        return run.row > began
            except Refused as error:
                self._log.warning("held up", "delayed delivery is held up: %s", error)
                return run.row > began
        return True

    def _append(self, level: _Level, run: _Run, stop: int) -> None:
        outcome = self._outcome
        outcome.row = run.row
        try:
            self._appender.deliver(outcome, run.records, run.units, stop, level.number - 1, self._gates.table)
        finally:
            if outcome.row > run.row:
                place = run.row * UNIT_BYTES + UNIT_BYTES - 8
                due_ms = int.from_bytes(run.units[place : place + 8], "big")
                self.late.add((self._clock.now_ms() - due_ms) / 1000)
            run.row = outcome.row

    def _deliver_singly(self, level: _Level, run: _Run) -> None:
        """Deliver the next row on the slow path, or open its topic's gate, or skip what can never be delivered.

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
            self._log.warning(
                "broken", "the delayed record at log offset %d of level %d cannot be delivered: %s",
                log_offset, level.number, error,
            )  # fmt: skip
            run.row += 1
            return
        if log_offset < self._store.deleted.get(topic, 0):
            # The topic may have been created again: it must not get messages from before.
            self._log.warning(
                ("deleted", topic), "a delayed message for the topic %s is not delivered: the topic was deleted after it was "
                "sent, and its messages with it", topic,
            )  # fmt: skip
            run.row += 1
            return
        if self._gates.open(topic.encode()):
            # The rest of the run goes on the fast path now.
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
            stored=message.properties_raw,
        )
        try:
            self._appender.put([record])
            if not self._appender.closed_queues.has_of(topic):  # if it has, that is why there is no gate
                self._log.warning(
                    ("no queue", topic), "a delayed message was delivered to queue %d of topic %s, which has no such queue "
                    "now: it can be read once the queue is there again", queue_id, topic,
                )  # fmt: skip
        except Refused as error:
            if error.reason is not Reason.ILLEGAL_MESSAGE:
                # Disk full, flow control: retried in order. An illegal message would block its level for ever.
                raise
            self._log.error(
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
        """Return the LogOffset of the oldest undelivered message, which retention must keep; None: none. From any thread."""
        carried = self._carried.oldest()
        found = [] if carried is None else [carried]
        for level in self._levels:
            queue = self._store.reader.existing_queue(SCHEDULE_TOPIC, level.number - 1)
            if queue is None:
                continue
            offset = max(self.positions.next(level.number), queue.min_offset)
            unit = queue.unit(offset) if offset < queue.max_offset else None
            if unit is not None and unit.size > 0 and not unit.is_fill:
                found.append(unit.log_offset)
        return min(found, default=None)

    def carry(self, before: int) -> None:
        """Have delayed records below this LogOffset carried, so that retention can delete the file. From any thread."""
        self._carried.carry(before)

    # ------------------------------------------------------------------ for tools

    @property
    def trouble(self) -> str:
        """Messages that wait at levels which messageDelayLevel does not have any more, as a sentence; "": there are none."""
        waiting: dict[int, int] = {}
        for queue_id in self._removed:
            queue, level = self._store.reader.existing_queue(SCHEDULE_TOPIC, queue_id), queue_id % CARRIED + 1
            if queue and (count := queue.max_offset - max(self.positions.next(queue_id + 1), queue.min_offset)) > 0:
                waiting[level] = waiting.get(level, 0) + count
        if not waiting:
            return ""
        levels = ", ".join(map(str, sorted(waiting)))
        return (
            f"{sum(waiting.values())} delayed messages wait at level {levels}, and messageDelayLevel has {len(self.delays_ms)} levels: "
            "they are delivered once it has theirs again, and are deleted with their log file"
        )

    def progress(self) -> Mapping[int, LevelProgress]:
        """Return delivered and maximum offset of each level in use (`scheduleMessageOffset_<level>`)."""
        queues = {
            level.number: self._store.reader.existing_queue(SCHEDULE_TOPIC, level.number - 1) for level in self._levels
        }
        return {
            level: LevelProgress(self.positions.next(level), queue.max_offset)
            for level, queue in queues.items()
            if queue
        }
