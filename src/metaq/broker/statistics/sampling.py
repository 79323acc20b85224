"""Samples of what a broker counts by topic and group, and the figures that tools ask for (315, TPS of 208 and 317).

What is put is not counted where it is appended, which would cost something for each message: it is how far the queues have come
between two samples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from metaq.broker.part import BrokerPart
from metaq.broker.statistics.counts import DAY, WINDOWS, KeyedCounts, SampledCounts
from metaq.broker.stats import Stats
from metaq.broker.tables.groups import Groups
from metaq.broker.tables.topics import Topics
from metaq.clock import Clock
from metaq.in_pieces import InPieces
from metaq.model.statistics import Statistic, StatisticFigures
from metaq.store.queues.consume_queue import UNIT_BYTES, ConsumeQueue

K = TypeVar("K", bound=Hashable)

PIECE: Final = 1024
"""Work of one tick, in keys sampled: some 0.5 ms."""
LOOKED_AT: Final = 256
"""Queues that are looked at together, each for a sixteenth of such work."""
GROWN: Final = 32
"""What a queue that has grown counts for there."""
SIZES_MAX: Final = 512
"""Most records of a queue whose sizes are added up at a sample. The rest count with their average."""


class Sampling(BrokerPart):
    """Samples the counts, a piece in each tick."""

    leads = False

    def __init__(
        self,
        clock: Clock,
        stats: Stats,
        topics: Topics,
        groups: Groups,
        cluster: str,
        *,
        queues: Callable[[], Sequence[ConsumeQueue]],
        follows: Callable[[], bool],
    ) -> None:
        """
        Args:
            cluster: key of the figures of the whole broker.
            queues: returns all queues, in a sequence that stays as it is.
            follows: whether this broker is a slave: what it copies is not put here.
        """
        self._clock, self._stats, self._topics, self._groups, self._cluster = clock, stats, topics, groups, cluster
        self._queues, self._follows = queues, follows
        self._counted: Sequence[ConsumeQueue] = ()
        self._ends: list[int] = []
        """The queues at their last look, and how far each was."""
        self._puts, self._gets = SampledCounts(), SampledCounts()
        self._due = [0.0] * len(WINDOWS)
        """When the next sample of each window is to be taken, monotonic seconds."""
        self._round: Iterator[None] | None = None
        topics.watch(self._topic_changed)
        groups.watch(self._group_changed)

    def open(self) -> None:
        """Count from here on: what the queues have already was put before."""
        self._counted = self._queues()
        self._ends = [queue.max_offset for queue in self._counted]
        self._due = [self._clock.monotonic()] * len(WINDOWS)

    def tick(self) -> None:
        """Go on with a round of samples, or begin one that is due."""
        if self._round is None:
            now = self._clock.monotonic()
            due = [number for number, at in enumerate(self._due) if now >= at]
            if not due:
                return
            for number in due:
                every = WINDOWS[number].every_ms / 1000
                # Behind a pause (the machine slept), one sample and not as many as were missed.
                self._due[number] = max(self._due[number] + every, now)
            self._round = self._sample(due)
        self._go_on(self._round)

    # ------------------------------------------------------------------ figures

    def figures(self, statistic: Statistic, topic: str, group: str | None = None) -> StatisticFigures | None:
        """Return the windows of one key; for those of the broker, `topic` is the cluster. None: nothing was counted."""
        stats = self._stats
        match statistic:
            case Statistic.TOPIC_MESSAGES_PUT | Statistic.TOPIC_BYTES_PUT if group is None:
                counts = stats.topic_puts.table.get(topic)
            case Statistic.GROUP_MESSAGES_GOT | Statistic.GROUP_BYTES_GOT if group is not None:
                counts = stats.group_gets.table.get((topic, group))
            case Statistic.GROUP_SENT_BACK if group is not None:
                counts = stats.sent_back.table.get((topic, group))
            case Statistic.BROKER_MESSAGES_PUT if group is None:
                counts = self._puts if topic == self._cluster else None
            case Statistic.BROKER_MESSAGES_GOT if group is None:
                counts = self._gets if topic == self._cluster else None
            case _:
                counts = None
        if counts is None or not counts.messages:
            return None
        if statistic in (Statistic.TOPIC_BYTES_PUT, Statistic.GROUP_BYTES_GOT):
            return counts.of_bytes()
        return counts.of_messages()

    def count_now(self) -> InPieces[None]:
        """Count what was put until now: between two rounds of samples nobody has. For counters, not for windows."""
        while (under_way := self._round) is not None:  # a round counts the same queues
            self._go_on(under_way)
            yield
        # A tick goes on with it, and begins no round before it has ended.
        self._round = counting = self._count_puts()
        while self._round is counting:
            self._go_on(counting)
            yield

    def _go_on(self, work: Iterator[None]) -> None:
        if next(work, self) is self and self._round is work:
            self._round = None

    def gets_per_second(self, group: str, topics: Iterable[str]) -> float:
        """Return how many messages a group gets in a second, of the last minute."""
        table = self._stats.group_gets.table
        found = (table.get((topic, group)) for topic in topics)
        return sum(counts.of_messages().minute.per_second for counts in found if counts is not None)

    # ------------------------------------------------------------------ a round

    def _sample(self, windows: list[int]) -> Iterator[None]:
        yield from self._count_puts()
        stats = self._stats
        # Counted as a whole: RocketMQ counts no calls of these.
        self._puts.messages, self._gets.messages = stats.put_messages, stats.got_messages
        now_ms = self._now_ms()
        for counts in (self._puts, self._gets):
            for window in windows if counts.messages else ():
                counts.sample(window, now_ms)
        yield from self._sample_keys(stats.topic_puts, windows)
        yield from self._sample_keys(stats.group_gets, windows)
        yield from self._sample_keys(stats.sent_back, windows)

    def _sample_keys(self, keyed: KeyedCounts[K], windows: list[int]) -> Iterator[None]:
        entries = list(keyed.table.items())
        for first in range(0, len(entries), PIECE):
            now_ms = self._now_ms()
            for key, counts in entries[first : first + PIECE]:
                for window in windows:
                    counts.sample(window, now_ms)
                if DAY in windows and counts.is_idle and keyed.table.get(key) is counts:
                    del keyed.table[key]
            if len(entries) > PIECE:
                yield

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _count_puts(self) -> Iterator[None]:
        queues, work = self._queues(), 0
        if queues is not self._counted:  # some were made or removed
            before = dict(zip(self._counted, self._ends, strict=True))
            self._counted, self._ends = queues, [before.get(queue, 0) for queue in queues]
        ends = self._ends
        for first in range(0, len(queues), LOOKED_AT):
            part = queues[first : first + LOOKED_AT]
            now = [queue.tail.next_offset for queue in part]
            work += LOOKED_AT // 16
            if now != ends[first : first + LOOKED_AT] and not self._follows():
                for place, (queue, end) in enumerate(zip(part, now, strict=True), first):
                    if end > ends[place]:
                        self._count(queue, ends[place], end)
                        ends[place] = end
                        work += GROWN
                        if work >= PIECE:
                            work = 0
                            yield
            ends[first : first + LOOKED_AT] = now
            if work >= PIECE:
                work = 0
                yield

    def _count(self, queue: ConsumeQueue, start: int, end: int) -> None:
        """Count the units of a queue in [start, end)."""
        if self._topics.get(queue.topic) is None:  # it was deleted in the meantime
            return
        looked = min(end - start, SIZES_MAX)
        # Each of ten thousand queues would keep a descriptor beside that of its mapping.
        size = _size_of(queue.unit_bytes(end - looked, looked, peek=True))
        # Calls are not known: each message counts as one of its own.
        self._stats.topic_puts.add(queue.topic, end - start, end - start, size * (end - start) // looked)

    # ------------------------------------------------------------------ what is deleted

    def _topic_changed(self, name: str) -> None:
        if self._topics.get(name) is None:
            self._stats.topic_puts.drop(lambda topic: topic == name)
            for counts in (self._stats.group_gets, self._stats.sent_back):
                counts.drop(lambda key: key[0] == name)

    def _group_changed(self, name: str) -> None:
        if self._groups.get(name) is None:
            for counts in (self._stats.group_gets, self._stats.sent_back):
                counts.drop(lambda key: key[1] == name)


def _size_of(units: bytes) -> int:
    """Sum of the record sizes in units, without a call for each: the size is the four bytes behind the LogOffset."""
    return sum(sum(units[8 + place :: UNIT_BYTES]) << (24 - 8 * place) for place in range(4))
