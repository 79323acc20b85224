"""Delayed messages that outlive their log file: rewritten ("carried") each time retention is about to delete a file with some.

A level's queue is in order of delivery and must stay so: a record rewritten at its end would be late, and hold up those behind
it. So each level has a second queue in SCHEDULE_TOPIC_XXXX for carried records, with the time of delivery in a property. They are
due before everything left in the first queue, so the second one is in order too. When one record of the second queue has to be
carried again, all of them are, oldest first.

A RocketMQ broker that takes over the folder keeps the second queues, and delivers nothing from them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Final

from metaq.broker.delays.positions import CARRIED, SchedulePositions
from metaq.broker.environment import Environment, ReadCold
from metaq.broker.log.appender import Appender
from metaq.broker.log.records import put_record
from metaq.errors import Reason, Refused, RemoteProtocolError
from metaq.log import RateLimitedLog
from metaq.model import StoredMessage
from metaq.model import properties as props
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.model.topics.topic import check_topic
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.store.reads.pull import ReadResult, ReadStatus
from metaq.wire.record import decode_record

log = logging.getLogger(__name__)

READ_COUNT: Final = 64
READ_BYTES: Final = 256 * 1024


class _Queue:
    """Reader of one queue of delayed records, from its position on."""

    def __init__(
        self, environment: Environment, positions: SchedulePositions, number: int, read_cold: ReadCold
    ) -> None:
        self._store, self._positions, self._read_cold = environment.store, positions, read_cold
        self.number = number
        """Key of its position: queue id + 1, as in RocketMQ's delayOffset.json."""
        self._found: list[StoredMessage] = []
        """Records read ahead, the next one last."""
        self._reading = False

    @property
    def queue(self) -> ConsumeQueue | None:
        """The queue; None: it does not exist yet."""
        return self._store.reader.existing_queue(SCHEDULE_TOPIC, self.number - 1)

    def oldest(self) -> int | None:
        """Return the LogOffset of the next record; None: there is none. From any thread."""
        queue = self.queue
        offset = max(self._positions.next(self.number), queue.min_offset) if queue else 0
        unit = queue.unit(offset) if queue and offset < queue.max_offset else None
        return unit.log_offset if unit is not None and unit.size > 0 and not unit.is_fill else None

    def next(self) -> StoredMessage | None:
        """Return the next record; None: there is none, a thread is reading it, or unreadable ones were skipped."""
        queue = self.queue
        if queue is None or self._reading:
            return None
        offset = min(max(self._positions.next(self.number), queue.min_offset), queue.max_offset)
        while self._found and self._found[-1].queue_offset < offset:
            self._found.pop()
        if self._found and self._found[-1].queue_offset == offset:
            return self._found[-1]
        self._found.clear()
        if offset == queue.max_offset:
            return None
        pulled = self._store.reader.pull(SCHEDULE_TOPIC, self.number - 1, offset, READ_COUNT, READ_BYTES)
        if pulled.status is ReadStatus.COLD and pulled.job is not None:
            self._reading = True

            def done(pulled: ReadResult | None) -> None:
                self._reading = False
                if pulled is not None:
                    self._take(offset, pulled)

            self._read_cold(pulled.job, done)
        else:
            self._take(offset, pulled)
        return self._found[-1] if self._found and not self._reading else None

    def _take(self, offset: int, pulled: ReadResult) -> None:
        place = 0
        while place < len(pulled.body):
            try:
                self._found.append(decode_record(pulled.body, place))
            except RemoteProtocolError:
                break
            place += int.from_bytes(pulled.body[place : place + 4], "big")
        self._found.reverse()
        first = self._found[-1].queue_offset if self._found else max(pulled.next_offset, offset)
        if first > offset:
            log.error(
                "%d delayed messages from queue offset %d on have left the log or are damaged in it",
                first - offset,
                offset,
            )
            self._positions.advance(self.number, first)

    def due_ms(self, record: StoredMessage) -> int:
        """Return the delivery time, ms: of a carried record from its property, else from its consume-queue unit."""
        text = record.properties.get(props.DUE, "") if self.number > CARRIED else ""
        # Fewer than 19 digits fit into 64 bits, whatever a sender may have put there.
        if text.isascii() and text.isdecimal() and len(text) < 19:
            return int(text)
        units = self.queue.units(record.queue_offset, 1) if self.queue else []
        return units[0].tags_code if units else 0

    def passed(self, record: StoredMessage) -> None:
        """Move on behind a record that was delivered or carried, or can never be."""
        self._positions.advance(self.number, record.queue_offset + 1)


class CarriedDelays:
    """The second queues of all levels: carries records into them, and delivers from them."""

    def __init__(
        self, environment: Environment, appender: Appender, positions: SchedulePositions, read_cold: ReadCold
    ) -> None:
        self._store, self._clock, self._appender = environment.store, environment.clock, appender
        self._delays_ms = environment.store.delays_ms
        numbers = range(1, len(self._delays_ms) + 1)
        self._levels = [_Queue(environment, positions, number, read_cold) for number in numbers]
        self._carried = [_Queue(environment, positions, CARRIED + number, read_cold) for number in numbers]
        self._before = 0
        self._again: dict[int, int] = {}
        """Level → end of the records in its second queue that are to be carried again."""
        self._turn = 0
        """Index of the level that the next step begins with."""
        self._more = False
        """Whether something was done in this step."""
        self._log = RateLimitedLog(log, environment.clock)

    def oldest(self) -> int | None:
        """Return the LogOffset of the oldest undelivered carried record; None: there is none. From any thread."""
        return min((place for queue in self._carried if (place := queue.oldest()) is not None), default=None)

    def carry(self, before: int) -> None:
        """Have records below this LogOffset carried by the next steps. From any thread."""
        self._before = max(self._before, before)

    def tick(self) -> None:
        self._log.tick()

    def step(self, more_time: Callable[[], bool]) -> bool:
        """Deliver and carry records as long as there is time. Returns whether there may be more."""
        self._more, turn = False, self._turn
        self._turn = (turn + 1) % len(self._carried)
        for level in (*range(turn, len(self._carried)), *range(turn)):  # in turn, so no level starves
            if self._carried[level].queue is not None:
                self._try(functools.partial(self._deliver, level + 1, self._carried[level], more_time))
        if self._before:
            self._try(functools.partial(self._carry_all, more_time))
        return self._more

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Refused as error:
            self._log.warning("held up", "delayed messages that are carried on wait: %s", error)

    # ------------------------------------------------------------------ carrying on

    def _carry_all(self, more_time: Callable[[], bool]) -> None:
        before, left = self._before, False
        for level, (first, second) in enumerate(zip(self._levels, self._carried, strict=True), 1):
            oldest = second.oldest()
            # The whole second queue, not its oldest records only: it has to stay in order.
            if oldest is not None and oldest < before and level not in self._again and second.queue is not None:
                self._again[level] = second.queue.max_offset
            if not (self._carry_again(level, second, more_time) and self._carry_first(level, first, before, more_time)):
                left = True
        # Retention, in its thread, may have asked for more meanwhile.
        if not left and self._before == before:
            self._before = 0

    def _carry_again(self, level: int, queue: _Queue, more_time: Callable[[], bool]) -> bool:
        """Carry a level's second queue again. Returns whether all records that were there at the beginning are done."""
        end = self._again.get(level, 0)
        while end:
            record = queue.next()
            if record is None or record.queue_offset >= end:
                if record is None and queue.oldest() is not None:
                    return False  # a thread reads
                del self._again[level]
                break
            self._write(level, record, queue.due_ms(record))
            self._passed(queue, record)
            if not more_time():  # checked behind each record, so every step makes progress
                return False
        return True

    def _carry_first(self, level: int, queue: _Queue, before: int, more_time: Callable[[], bool]) -> bool:
        """Carry from a level's first queue. Returns whether nothing is left there below LogOffset `before`."""
        while (oldest := queue.oldest()) is not None and oldest < before:
            record = queue.next()
            if record is None:
                return False
            topic = record.properties.get(props.REAL_TOPIC, "")
            if record.log_offset < self._store.deleted.get(topic, 0):
                self._log.warning(
                    ("deleted", topic), "a delayed message for the topic %s is not kept: the topic was deleted after it was sent",
                    topic,
                )  # fmt: skip
            else:
                self._write(level, record, queue.due_ms(record))
            self._passed(queue, record)
            if not more_time():
                return False
        return True

    def _passed(self, queue: _Queue, record: StoredMessage) -> None:
        queue.passed(record)
        self._more = True

    def _write(self, level: int, record: StoredMessage, due_ms: int) -> None:
        # Where there is no room for the property, the unit has the time, until it has to be rebuilt.
        pairs = {**record.properties, props.DUE: str(due_ms)}
        self._appender.put(
            [
                put_record(
                    SCHEDULE_TOPIC,
                    CARRIED + level - 1,
                    record.body,
                    pairs,
                    flag=record.flag,
                    sys_flag=record.sys_flag,
                    born_ms=record.born_ms,
                    born_host=record.born_host_raw,
                    reconsume_times=record.reconsume_times,
                    tags=due_ms,
                    copy_of=record.log_offset,
                    stored=record.properties_raw,
                )
            ],
            carrying=True,
        )

    # ------------------------------------------------------------------ delivering

    def _deliver(self, level: int, queue: _Queue, more_time: Callable[[], bool]) -> None:
        while level not in self._again and (record := queue.next()) is not None and more_time():
            pairs, now_ms, due_ms = dict(record.properties), self._clock.now_ms(), queue.due_ms(record)
            # Consumers get the message as it was sent.
            pairs.pop(props.DUE, None)
            # Further away than the level's delay: the clock was set back. It is delivered now, as by `ScheduleService`.
            if now_ms < due_ms <= now_ms + self._delays_ms[level - 1]:
                return
            try:
                topic, queue_id = check_topic(pairs.get(props.REAL_TOPIC, "")), int(pairs.get(props.REAL_QUEUE_ID, ""))
                if record.log_offset < self._store.deleted.get(topic, 0):
                    raise ValueError(f"the topic {topic} was deleted after it was sent")  # noqa: TRY301  told below
                self._appender.put(
                    [
                        put_record(
                            topic,
                            queue_id,
                            record.body,
                            pairs,
                            flag=record.flag,
                            sys_flag=record.sys_flag,
                            born_ms=record.born_ms,
                            born_host=record.born_host_raw,
                            reconsume_times=record.reconsume_times,
                            copy_of=record.log_offset,
                            stored=record.properties_raw,
                        )
                    ]
                )
            except (Refused, ValueError) as error:
                # Anything but an illegal record is retried: its level waits, because order is kept.
                if isinstance(error, Refused) and error.reason not in {Reason.ILLEGAL_MESSAGE, Reason.INVALID}:
                    raise
                self._log.error(
                    "illegal", "the delayed record at log offset %d cannot be delivered: %s", record.log_offset, error
                )
            self._passed(queue, record)
