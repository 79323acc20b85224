"""Scheduled delivery: the ladder of delay levels.

Each level is a queue of SCHEDULE_TOPIC_XXXX. All its records wait equally long, so the queue is in order of delivery and
one position per level is all there is to remember (`metaq.broker.delay_positions`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from metaq.broker.appender import Appender
from metaq.broker.delay_positions import DelayPositions
from metaq.broker.records import put_record
from metaq.clock import Clock
from metaq.errors import BadRequest, RemoteProtocolError
from metaq.model import properties as props
from metaq.model.topic import check_topic
from metaq.saved import SavedText
from metaq.store.consume_queue import ConsumeQueue
from metaq.store.dispatch import SCHEDULE_TOPIC
from metaq.store.message_store import MessageStore
from metaq.wire.record import decode_record

log = logging.getLogger(__name__)

DELIVERIES_PER_TICK = 512
"""Deliveries of one tick, all levels together, so that a flood of due records does not hold up the event loop."""
UNITS_PER_READ = 64


class DelayLadder:
    """Delivers what is due. `delays_ms`: what each level stands for, the first being level 1."""

    def __init__(
        self, store: MessageStore, appender: Appender, clock: Clock, file: SavedText, delays_ms: tuple[int, ...]
    ) -> None:
        self._store, self._appender, self._clock = store, appender, clock
        self.delays_ms = delays_ms
        self.positions = DelayPositions(store, file)

    def due_ms(self, level: int) -> int:
        """When a record that arrives now at this level is to be delivered."""
        return self._clock.now_ms() + self.delays_ms[level - 1]

    def tick(self) -> int:
        """Deliver what is due, at most DELIVERIES_PER_TICK. Returns how many were delivered."""
        budget = DELIVERIES_PER_TICK
        for level in self._levels():
            queue = self._store.existing_queue(SCHEDULE_TOPIC, level - 1)
            if queue is not None:
                budget -= self._deliver(level, queue, budget)
        return DELIVERIES_PER_TICK - budget

    def _deliver(self, level: int, queue: ConsumeQueue, budget: int) -> int:
        start = offset = min(max(self.positions.next(level), queue.min_offset), queue.max_offset)
        now, latest = self._clock.now_ms(), self._clock.now_ms() + self.delays_ms[level - 1]
        waiting = False
        while not waiting and offset < queue.max_offset and offset - start < budget:
            units = queue.units(offset, min(UNITS_PER_READ, budget - (offset - start)))
            if not units:
                break
            for log_offset, _size, due in units:
                # Later than any record can be due: the clock was set back, or the ladder shortened. Deliver it.
                waiting = now < due <= latest or not self._copy(log_offset)
                if waiting:
                    break
                offset += 1
        self.positions.advance(level, offset)
        return offset - start

    def _copy(self, log_offset: int) -> bool:
        """Put the record where it belongs. False: not possible now, try again at the next tick."""
        data = self._store.record_at(log_offset)
        if data is None:
            log.warning("the delayed record at log offset %d has left the log before it was due", log_offset)
            return True
        try:
            message = decode_record(data)
            topic = check_topic(message.properties.get(props.REAL_TOPIC, ""))
            queue_id = int(message.properties.get(props.REAL_QUEUE_ID, ""))
        except (RemoteProtocolError, BadRequest, ValueError) as error:
            log.warning("the delayed record at log offset %d cannot be delivered: %s", log_offset, error)
            return True
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
        except BadRequest as error:
            log.warning("delayed delivery to topic %s is held up: %s", topic, error)
            return False
        return True

    def progress(self) -> Mapping[int, tuple[int, int]]:
        """Level → (next offset to deliver, max offset), for the levels in use."""
        queues = {level: self._store.existing_queue(SCHEDULE_TOPIC, level - 1) for level in self._levels()}
        return {level: (self.positions.next(level), queue.max_offset) for level, queue in queues.items() if queue}

    def _levels(self) -> range:
        return range(1, len(self.delays_ms) + 1)
