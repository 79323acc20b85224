"""Consumer retries (CONSUMER_SEND_MSG_BACK, 36): later deliveries of failed messages, and dead letters.

A retry is a new record for the group's topic `%RETRY%group` that waits at a delay level first: 10 s after the first failure,
then 30 s, up to 2 h after the sixteenth. The next failure stores it in `%DLQ%group`.

A client that lost the response sends the same message back again. While the first retry waits, no second one is stored; if the
client marks the request as repeated, as ours does, not for REPEAT_SECONDS either. RocketMQ stores one for each request.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from metaq.broker.delays.positions import GIVEN_BACK_MAX
from metaq.broker.delays.schedule import ScheduleService
from metaq.broker.environment import Environment, Tables
from metaq.broker.log.appender import Appender
from metaq.broker.log.records import delayed_until, put_record
from metaq.broker.part import BrokerPart
from metaq.broker.requests import SendBack
from metaq.broker.stats import Stats
from metaq.broker.tables.topics import check_client_topic
from metaq.errors import Reason, Refused, RemoteProtocolError
from metaq.log import RateLimitedLog
from metaq.model import Perm, StoredMessage
from metaq.model import properties as props
from metaq.model.message import FIRST_RETRY_LEVEL
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_consumer_group
from metaq.store.log.writer import Put
from metaq.wire.hot import RecordHead
from metaq.wire.record import copied_from, decode_record

log = logging.getLogger(__name__)

REPEAT_SECONDS: Final = 600.0
"""Time within which a dead letter, or a retry marked as repeated, counts as the same one, s."""
_DELAYED: Final = (props.DELAY, props.REAL_TOPIC, props.REAL_QUEUE_ID)


class _Taken(Struct):
    """Record stored for a message that was sent back, and when (monotonic seconds)."""

    topic: str
    queue_id: int
    put: Put
    at: float


class _RetryTarget(Struct):
    """Cached destination of a group's retries. Dropped when a group, a topic or an option changes."""

    group: str
    topic: str
    topic_bytes: bytes
    queues: int
    retries_max: int


class RetryService(BrokerPart):
    """Stores messages that consumers send back."""

    def __init__(
        self, environment: Environment, tables: Tables, appender: Appender, schedule: ScheduleService, stats: Stats
    ) -> None:
        self._environment, self._clock, self._reader = environment, environment.clock, environment.store.reader
        self._topics, self._groups, self._appender, self._schedule = tables.topics, tables.groups, appender, schedule
        self._stats = stats
        self._taken = OrderedDict[tuple[str, int, bool], _Taken]()
        """(group, LogOffset of the failed record, dead letter?) → stored record; the newest GIVEN_BACK_MAX."""
        self._targets = dict[bytes, _RetryTarget]()
        """Group as on the wire → destination."""
        self._log = RateLimitedLog(log, environment.clock)
        tables.topics.watch(lambda _: self._targets.clear())
        tables.groups.watch(lambda _: self._targets.clear())

    def open(self) -> None:
        """Load what was sent back shortly before a crash or a promotion: clients may repeat those requests."""
        for head in self._schedule.positions.given_back:
            self._recall(head)

    def options_changed(self, _names: Collection[str]) -> None:
        """Drop cached destinations: brokerPermission may have changed."""
        self._targets.clear()

    # ------------------------------------------------------------------ the common case

    def give_back(self, group: bytes, log_offset: int, delay_level: int, retries_max: int | None) -> bool:
        """Store a retry on the fast path: sent back for the first time, and its record is in the newest log file.

        The arguments are those of `SendBack`. Returns False if nothing was stored; `send_back` decides then.
        """
        target = self._targets.get(group) or self._find_target(group)
        # What is stored in a topic that is being deleted would be lost with it.
        if target is None or target.topic in self._topics.closing:
            return False
        key = target.group, log_offset, False
        if key in self._taken:
            return False
        # None: left to the slow path, which also makes dead letters.
        done = self._appender.give_back(
            self._schedule.delays, log_offset, target.topic_bytes, self._any_of(target.queues),
            target.retries_max if retries_max is None else retries_max, delay_level,
        )  # fmt: skip
        if done is None:
            return False
        put, level = done
        if (outline := self._reader.outline_at(log_offset)) is not None:
            self._stats.gave_back(target.group, outline.topic)
        self._taken[key] = _Taken(SCHEDULE_TOPIC, level - 1, put, self._clock.monotonic())
        if len(self._taken) > GIVEN_BACK_MAX:
            self._taken.popitem(last=False)
        return True

    def _find_target(self, name: bytes) -> _RetryTarget | None:
        """Return and cache a group's destination; None: the slow path has to create it, or to refuse."""
        group = self._groups.get(name.decode("utf-8", "replace"))
        topic = self._topics.get(RETRY_PREFIX + group.name) if group is not None else None
        may_write = self._environment.options.broker_permission & Perm.WRITE
        if group is None or topic is None or group.retry_queues <= 0 or not topic.writable or not may_write:
            return None
        target = _RetryTarget(group.name, topic.name, topic.name.encode(), max(1, topic.write_queues), group.retry_max)
        self._targets[group.name.encode()] = target
        return target

    def _any_of(self, queues: int) -> int:
        return self._clock.random_below(queues) if queues > 1 else 0

    # ------------------------------------------------------------------ every case

    def send_back(self, back: SendBack) -> Put | None:
        """Store a retry or a dead letter. Returns None if the group wants no retries (retryQueueNums 0).

        A repeated request gets the result of the first one, while that still waits.

        Raises Refused: NO_GROUP, NO_PERMISSION: not writable, or INVALID: no record at that offset. Saving: not yet.
        """
        group = self._groups.require(check_consumer_group(back.group), back.client)
        if not self._environment.options.broker_permission & Perm.WRITE:
            raise Refused(Reason.NO_PERMISSION, "the broker may not be written to")
        if group.retry_queues <= 0:
            # RocketMQ answers SUCCESS and does nothing.
            return None
        topic = self._topics.ensure(RETRY_PREFIX + group.name, group.retry_queues)
        if not topic.writable:
            # RocketMQ checks the retry topic's permission here, unlike on sends.
            raise Refused(Reason.NO_PERMISSION, f"the topic[{topic.name}] sending message is forbidden")
        limit = group.retry_max if back.retries_max is None else back.retries_max
        message = self._load(back.log_offset)
        pairs = dict(message.properties)
        pairs.setdefault(props.RETRY_TOPIC, message.topic)
        # As in RocketMQ: the offset id of the first copy, kept through all retries.
        pairs.setdefault(props.ORIGIN_MESSAGE_ID, message.offset_id)
        # As in RocketMQ: a retry waits for no flush and no replica.
        pairs[props.WAIT] = "false"
        tags = None
        dead = message.reconsume_times >= limit or back.delay_level < 0
        before = self._taken.get((group.name, back.log_offset, dead))
        if before is not None and self._stands(before, repeated=back.repeated):
            return before.put  # the first response was lost, perhaps with the broker
        if dead:
            name, queue_id = self._topics.ensure(DEAD_LETTER_PREFIX + group.name).name, 0
            # As in RocketMQ, which clears the delay level of dead letters.
            pairs[props.DELAY] = "0"
        else:
            level = back.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
            level = min(level, len(self._schedule.delays_ms))
            pairs[props.DELAY] = str(level)
            name, queue_id, tags = delayed_until(
                pairs, topic.name, self._any_of(topic.write_queues), level, self._schedule.due_ms(level)
            )
        fits = props.make_room(pairs, (*props.ADDED, *_DELAYED) if dead else props.ADDED)
        # The sender left no room for what says where and when a delayed record is delivered: delivered at once, it needs none.
        at_once = not (fits or dead)
        if at_once:
            name, queue_id, tags = topic.name, self._any_of(topic.write_queues), None
            props.make_room(pairs, _DELAYED)
        # Last, because consumers and redrive take the message's own topic from it.
        props.make_room(pairs, (props.RETRY_TOPIC,))
        if at_once or props.RETRY_TOPIC not in pairs:
            self._log.warning(
                ("no room", group.name), "a message given back by group %.100s has %d bytes of properties: it %s%s", group.name,
                len(message.properties_raw), "is delivered again at once" if at_once else "goes to the dead letters",
                "" if props.RETRY_TOPIC in pairs else f", and does not say that its topic was {message.topic}",
            )  # fmt: skip
        record = put_record(
            name,
            queue_id,
            message.body,
            pairs,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_ms=message.born_ms,
            born_host=message.born_host_raw,
            reconsume_times=message.reconsume_times + 1,
            tags=tags,
            # In a retry topic the mark of a copy names the delayed record that was delivered.
            copy_of=None if at_once else back.log_offset,
            stored=message.properties_raw,
        )
        record.is_judged = True
        put = self._appender.put([record])
        if name == SCHEDULE_TOPIC:
            self._schedule.waits_at(queue_id + 1)
        self._stats.gave_back(group.name, pairs.get(props.RETRY_TOPIC, message.topic))
        self._remember((group.name, back.log_offset, dead), _Taken(name, queue_id, put, self._clock.monotonic()))
        return put

    def _stands(self, taken: _Taken, *, repeated: bool) -> bool:
        """Return whether the record stored then answers this request: a waiting retry, or a recent dead letter.

        Once the retry is delivered, the same message may fail again, because the group's offset was reset. Unless the request is
        marked as repeated: the retry may have become due while the broker was down.
        """
        queue = self._reader.existing_queue(taken.topic, taken.queue_id)
        units = queue.units(taken.put.queue_offset, 1) if queue else []
        # The unit at that offset is another record's: the topic was deleted and created again.
        if not units or units[0].log_offset != taken.put.log_offset:
            return False  # the topic was deleted
        if taken.topic == SCHEDULE_TOPIC and not repeated:
            return self._schedule.positions.next(taken.queue_id + 1) <= taken.put.queue_offset
        if taken.topic.startswith(RETRY_PREFIX) and not repeated:
            return False  # it was delivered at once
        return self._clock.monotonic() - taken.at < REPEAT_SECONDS

    def _remember(self, key: tuple[str, int, bool], taken: _Taken) -> None:
        # Moved to the end: the oldest are dropped first.
        self._taken.pop(key, None)
        self._taken[key] = taken
        if len(self._taken) > GIVEN_BACK_MAX:
            self._taken.popitem(last=False)

    def _recall(self, head: RecordHead) -> None:
        """Load a retry or dead letter found in the log."""
        origin, topic = copied_from(head.prepared_offset), head.topic.decode("utf-8", "replace")
        data = self._reader.record_at(head.log_offset)
        if origin is None or data is None:
            return
        try:
            real_topic = decode_record(data).properties.get(props.REAL_TOPIC, "")
        except RemoteProtocolError:
            return
        dead = topic != SCHEDULE_TOPIC
        group = topic.removeprefix(DEAD_LETTER_PREFIX) if dead else real_topic.removeprefix(RETRY_PREFIX)
        put = Put(head.log_offset, head.log_offset + head.size, head.queue_offset, head.store_ms)
        self._remember((group, origin, dead), _Taken(topic, head.queue_id, put, self._clock.monotonic()))

    def _load(self, log_offset: int) -> StoredMessage:
        data = self._reader.record_at(log_offset)
        try:
            if data is not None:
                message = decode_record(data)
                # The broker's own records, such as staged chunks, were delivered to nobody: they cannot be given back.
                check_client_topic(message.topic)
                return message
        except RemoteProtocolError:
            pass
        raise Refused(Reason.INVALID, f"look message by offset failed, {log_offset}")
