"""What a record is in the consume queue and in the index, and how recovery puts there what they have lost.

While the broker runs, native code writes unit and index entries in the same call as the record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from typing import Final

from metaq.errors import ConfigError, Refused
from metaq.model.message import TRANSACTION_MASK, SysFlag
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.model.topics.topic import check_partition_topic
from metaq.store.queues.consume_queue import ConsumeQueue, Unit
from metaq.store.queues.index_file import Index
from metaq.wire import hot
from metaq.wire.record import RECORD_BYTES_MIN

_SCHEDULE = SCHEDULE_TOPIC.encode()
_QUEUED: Final = frozenset({0, int(SysFlag.COMMITTED)})
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delays_of(text: str) -> tuple[int, ...]:
    """`1s 5s 10s ...` as milliseconds; level 1 is the first. Raises ConfigError."""
    steps = []
    for word in text.split():
        match = re.fullmatch(r"(\d+)([smhd])", word)
        if not match:
            raise ConfigError(f"messageDelayLevel: {word!r} is not a number followed by s, m, h or d")
        steps.append(int(match[1]) * _UNIT_MS[match[2]])
    return tuple(steps)


def deliver_ms(store_ms: int, level: int, delays_ms: tuple[int, ...]) -> int:
    """When a message stored at `store_ms` with a delay level is due; a level above the delays_ms is its last."""
    return store_ms + delays_ms[min(level, len(delays_ms)) - 1] if delays_ms else store_ms


def is_queued(sys_flag: int) -> bool:
    """Whether the record has a unit. As in RocketMQ, records of the types prepared and rollback have none."""
    return sys_flag & TRANSACTION_MASK in _QUEUED


def topic_of(head: hot.RecordHead) -> str | None:
    """Return the record's topic; None: it is no legal one. A folder is named after it, so it is checked here, too."""
    try:
        return check_partition_topic(head.topic.decode())
    except (Refused, UnicodeDecodeError):
        return None


def tags_code(head: hot.RecordHead, delays_ms: tuple[int, ...]) -> int:
    """Return the third field of the record's unit: the tag's Java hash, or when to deliver a delayed record."""
    # RocketMQ's schedule service reads the time of delivery there, so a folder of ours works in it, and the other way round.
    if head.topic == _SCHEDULE and head.delay_level > 0:
        return deliver_ms(head.store_ms, head.delay_level, delays_ms)
    return hot.java_hash(head.tags) if head.tags else 0


def index_keys(head: hot.RecordHead) -> list[bytes]:
    """The whole keys, `topic#key`, under which the record is indexed: its unique id, then its KEYS."""
    if head.sys_flag & TRANSACTION_MASK == SysFlag.ROLLED_BACK:
        return []
    if not head.keys:  # the usual case, of which a slave has one for each message
        return [head.topic + b"#" + head.unique_id] if head.unique_id else []
    words = [head.unique_id] if head.unique_id else []
    words += [word for word in head.keys.split(b" ") if word]
    return [head.topic + b"#" + word for word in words]


class Dispatcher:
    """Puts units and index entries of scanned records, as far as they are missing."""

    def __init__(
        self,
        queue: Callable[[str, int], ConsumeQueue],
        index: Index | None,
        delays_ms: tuple[int, ...],
        *,
        queues_from: int = 0,
        rebuild: Container[tuple[str, int]] = (),
        index_from: int = 0,
        deleted: Mapping[str, int] | None = None,
        lost: Mapping[tuple[str, int], Mapping[int, Unit]] | None = None,
    ) -> None:
        """
        Args:
            queues_from: records that begin below have their units already, unless their queue is in `rebuild`.
            index_from: records below are indexed already.
            deleted: topic → LogOffset below which records are of a deleted topic.
            lost: units of messages that damage in the log has taken, as far as they are known: queue → queue offset → unit.
        """
        self._lost = lost or {}
        self._deleted = deleted or {}
        self._queue, self._index, self._delays_ms = queue, index, delays_ms
        self._queues_from, self._rebuild, self._index_from = queues_from, rebuild, index_from
        self.messages = 0
        """Units put."""

    def dispatch(self, head: hot.RecordHead, now_ms: int) -> None:
        """Put the record's unit and index entries if they are missing. Raises StoreFull."""
        topic = topic_of(head)
        if topic is None or head.queue_id < 0 or head.log_offset < self._deleted.get(topic, 0):
            return
        key = (topic, head.queue_id)
        if is_queued(head.sys_flag) and (head.log_offset >= self._queues_from or key in self._rebuild):
            self._put_unit(self._queue(*key), head)
        if self._index is not None and head.log_offset >= self._index_from:
            for words in index_keys(head):
                self._index.put(words, head.log_offset, head.store_ms, now_ms)

    def _put_unit(self, queue: ConsumeQueue, head: hot.RecordHead) -> None:
        if head.log_offset + head.size <= queue.tail.log_end:  # put before: reading may begin below the queue's end
            return
        if head.queue_offset != queue.max_offset and not self._fill(queue, head.queue_offset, head.log_offset):
            if queue.max_offset > 0 and head.queue_offset != 0:
                return  # a repeated record (recovery has refused gaps): the first one stands
            # The oldest record that is left of the queue, or the topic was deleted and made again.
            queue.restart_at(head.queue_offset)
        queue.put(Unit(head.log_offset, head.size, tags_code(head, self._delays_ms)))
        self.messages += 1

    def fill_ends(self, ends: Mapping[tuple[str, int], int], log_end: int) -> None:
        """Put units of lost messages behind which their queue has no other: up to these queue offsets. Raises StoreFull."""
        for key, end in ends.items():
            self._fill(self._queue(*key), end, log_end)

    def _fill(self, queue: ConsumeQueue, offset: int, log_offset: int) -> bool:
        """Put units of messages that the log has lost, up to the one in front of `offset`, whose record is at `log_offset`.

        Returns False: it is no gap that damage makes; nothing was put. A pull passes over these messages, and says so.
        """
        first, known = queue.max_offset, self._lost.get((queue.topic, queue.queue_id), {})
        if offset <= first or (first == 0 and 0 not in known):
            return False
        # Each lost record had some bytes between its neighbours.
        if (offset - first) * RECORD_BYTES_MIN > log_offset - queue.tail.log_end:
            return False
        for missing in range(first, offset):
            end = queue.tail.log_end
            unit = known.get(missing)
            if unit is None or not end <= unit.log_offset <= log_offset - unit.size:
                # RocketMQ serves the message before it once more, and not bytes that are no message. Searches by log offset and
                # time rely on ascending units.
                before = queue.unit(missing - 1) if missing else None
                unit = before if before is not None and not before.is_fill else Unit(end, RECORD_BYTES_MIN, 0)
            queue.tail.log_end = 0  # else the unit would count as put
            queue.put(unit)
            queue.tail.log_end = max(end, unit.log_end if known.get(missing) is unit else end)
        return True
