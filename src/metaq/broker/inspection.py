"""Read-only answers for administrators about queues and clients in detail (303, 308, 317, 321, 328)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from msgspec import Struct

from metaq.broker.environment import Environment, Tables
from metaq.broker.pulls.filters import Filters
from metaq.broker.pulls.lookup import Lookup
from metaq.broker.reports import Reports
from metaq.errors import Reason, Refused
from metaq.in_pieces import InPieces
from metaq.model import ConsumeStats, MessageQueue
from metaq.model.inspection import ProducerClient, QueueTimeSpan, QueueUnit, QueueUnits
from metaq.model.message import host_of

QUEUES_OF_A_PIECE: Final = 256
"""Queues whose offsets are compared at once: some 0.2 ms."""
NO_CORRECTION: Final = 2**63 - 1
"""Offset of a queue in which nothing is to be corrected, as RocketMQ has it."""
UNITS_MAX: Final = 1024
"""Units of one answer at most. RocketMQ answers as many as are asked for."""


class TopicProgress(Struct, frozen=True):
    """A group's progress in one topic: its queues, computed one by one."""

    topic: str
    queues: Iterator[tuple[MessageQueue, ConsumeStats]]
    gets_per_second: float
    """Messages that the group has got there, of the last minute."""


class Inspection:
    """Looks into queues and groups of clients."""

    def __init__(
        self, environment: Environment, tables: Tables, lookup: Lookup, reports: Reports, filters: Filters
    ) -> None:
        self._environment, self._tables, self._lookup = environment, tables, lookup
        self._reports, self._filters = reports, filters

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of this broker, as messages name it."""
        return host_of(self._environment.store_host)

    def time_spans(self, topic: str, group: str) -> Iterator[QueueTimeSpan]:
        """Return from when to when each queue's messages are, and where a group stands, computed one by one.

        Raises Refused NO_TOPIC: at once, or on the way if the topic is deleted meanwhile.
        """
        config = self._tables.topics.require(topic)
        return (self._time_span(topic, queue_id, group) for queue_id in range(config.write_queues))

    def _time_span(self, topic: str, queue_id: int, group: str) -> QueueTimeSpan:
        store_time = self._environment.store.reader.store_time
        low, high = self._lookup.min_offset(topic, queue_id), self._lookup.max_offset(topic, queue_id)
        queue = MessageQueue(topic, self._environment.name, queue_id)
        if low >= high:
            return QueueTimeSpan(queue, -1, -1, -1, 0)
        oldest_ms, newest_ms = store_time(topic, queue_id, low), store_time(topic, queue_id, high - 1)
        # RocketMQ takes a group without progress for one that is behind by the age of the epoch.
        at = max(low, self._tables.offsets.get(group, topic, queue_id) or 0)
        consumed_ms = store_time(topic, queue_id, min(at, high) - 1) if at > low else oldest_ms
        next_ms = store_time(topic, queue_id, at) if at < high else -1
        delay_ms = max(0, self._environment.clock.now_ms() - next_ms) if next_ms > 0 else 0
        return QueueTimeSpan(queue, oldest_ms, newest_ms, consumed_ms, delay_ms)

    def all_progress(self, *, ordered: bool) -> Iterator[tuple[str, Iterator[TopicProgress]]]:
        """Return each group of this broker with its progress in each topic, computed on the way.

        Topics that a group which is online does not subscribe to any more are left out, as in RocketMQ.

        Args: ordered: only of topics that are marked as ordered.
        """
        topics_of: dict[str, list[str]] = {group: [] for group in self._tables.groups.table}
        for topic, group in self._tables.offsets.table:
            if group in topics_of:
                topics_of[group].append(topic)
        for group, topics in topics_of.items():
            yield group, self._progress(group, topics, ordered=ordered)

    def _progress(self, group: str, topics: Sequence[str], *, ordered: bool) -> Iterator[TopicProgress]:
        online = self._tables.members.consumers.get(group)
        for topic in topics:
            config = self._tables.topics.get(topic)
            if config is None or (ordered and not config.order):
                continue
            if online is not None and online.subscriptions and topic not in online.subscriptions:
                continue
            queues, rate = self._reports.consume_stats(group, topic), self._reports.gets_per_second(group, topic)
            yield TopicProgress(topic, queues, rate)

    def units(self, topic: str, queue_id: int, index: int, count: int, group: str | None) -> QueueUnits:
        """Return units of a queue from a QueueOffset on, `count` and UNITS_MAX at most, and what a group gets of it.

        Without units if none is at `index`. Raises Refused INVALID: the topic has no such queue.
        """
        config = self._tables.topics.get(topic)
        if config is None or not 0 <= queue_id < max(config.read_queues, config.write_queues):
            raise Refused(Reason.INVALID, f"{queue_id}@{topic} is not exist!")
        queue = self._environment.store.reader.existing_queue(topic, queue_id)
        low, high = self._lookup.min_offset(topic, queue_id), self._lookup.max_offset(topic, queue_id)
        stop = min(index + max(0, min(count, UNITS_MAX)), high)
        found = queue.units(index, stop - index) if queue is not None and low <= index < stop else []
        units = [QueueUnit(*unit) for unit in found]
        if group is None:
            return QueueUnits(low, high, units)
        online = self._tables.members.consumers.get(group)
        subscription = online.subscriptions.get(topic) if online is not None else None
        return QueueUnits(
            low, high, units, group, subscription, self._filters.table.get((topic, group)) if subscription else None
        )

    def correction_offsets(self, topic: str, compared: str, left_out: Collection[str] = ()) -> InPieces[dict[int, int]]:
        """Return queue id → the lowest offset that any group has in the queue, among those that are still there.

        NO_CORRECTION where the group `compared` is further back than that: there is nothing to correct it to.
        """
        found: dict[int, int] = {}
        offsets = self._tables.offsets
        if self._tables.topics.get(topic) is None:
            return found
        for group in offsets.groups_of(topic):
            if group in left_out:
                continue
            for number, (queue_id, offset) in enumerate(list(offsets.queues(group, topic).items())):
                if offset >= self._lowest(topic, queue_id):
                    found[queue_id] = min(offset, found.get(queue_id, offset))
                if number % QUEUES_OF_A_PIECE == QUEUES_OF_A_PIECE - 1:
                    yield
            yield
        for queue_id, offset in offsets.queues(compared, topic).items():
            if found.get(queue_id, -1) > offset:
                found[queue_id] = NO_CORRECTION
        return found

    def _lowest(self, topic: str, queue_id: int) -> int:
        queue = self._environment.store.reader.existing_queue(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def all_producers(self) -> Iterator[tuple[str, list[ProducerClient]]]:
        """Yield each producer group that is online, and its members."""
        clock = self._environment.clock
        now_ms, now = clock.now_ms(), clock.monotonic()
        for group, members in list(self._tables.members.producers.items()):
            yield group, [
                ProducerClient(
                    member.client_id, member.channel.remote, member.language, member.version,
                    now_ms - round((now - member.seen) * 1000),
                )
                for member in members.values()
            ]  # fmt: skip
