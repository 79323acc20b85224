"""What acknowledgements of puts of MetaQ 1.x clients wait for: unflushThreshold of the topic, beside what holds for all sends.

A threshold of 0 or 1 lets every answer wait for the disk. With more, so many messages of a partition may be answered before
they are synced; the answer to one more waits until one of them is, so that a power cut never takes more than these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct, field

from metaq.broker.environment import Environment
from metaq.broker.log.acks import AckPolicy, Due, later
from metaq.broker.metaq1.settings import Metaq1Settings

EACH = 1
"""Thresholds up to this one make each answer wait for the disk."""
MARKS = 64
"""What is kept of the messages of a partition that wait for the disk: about so many places."""


class _Unsynced(Struct):
    """Messages of a partition that may not be on the disk yet."""

    total: int = 0
    """Messages so far, and how many of them are known to be on the disk, and how many it was asked for."""
    durable: int = 0
    asked: int = 0
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    """Ascending: so many messages, of `total`, end before this LogOffset."""

    def add(self, count: int, log_end: int, step: int) -> None:
        """More messages; marks lie about `step` messages apart."""
        self.total += count
        marks = self.marks
        if len(marks) > 1 and self.total - marks[-2][0] <= step:
            marks[-1] = self.total, log_end
        else:
            marks.append((self.total, log_end))

    def flushed(self, log_end: int) -> None:
        """The disk has come so far."""
        marks = self.marks
        while marks and marks[0][1] <= log_end:
            self.durable = marks.popleft()[0]

    def end_of(self, count: int) -> int:
        """LogOffset behind the first `count` of `total`, or a little further on."""
        return next(log_end for total, log_end in self.marks if total >= count)


class PartitionAcks:
    """The policy of one broker. Whoever stores tells it; whoever answers asks, before it returns to the event loop."""

    def __init__(self, environment: Environment, acks: AckPolicy, settings: Metaq1Settings) -> None:
        self._acks, self._settings, self._flusher, self._state = (
            acks,
            settings,
            environment.store.flusher,
            environment.store.state,
        )
        self._unsynced: dict[tuple[str, int], _Unsynced] = {}
        self._due = 0

    def stored(self, topic: str, partition: int, log_end: int, count: int = 1) -> None:
        """Messages were put into a partition; the newest record ends at `log_end`."""
        threshold = self._settings.rules.settings(topic).unflush_threshold
        if threshold <= EACH:
            self._due = log_end
            return
        unsynced = self._unsynced.get((topic, partition))
        if unsynced is None:
            unsynced = self._unsynced[topic, partition] = _Unsynced()
        unsynced.flushed(self._state.flushed)
        unsynced.add(count, log_end, threshold // MARKS)
        if unsynced.total - max(unsynced.durable, unsynced.asked) > threshold // 2:
            # Long before anybody must wait: where the disk keeps up, nobody ever does.
            unsynced.asked = unsynced.total
            self._flusher.when_flushed(log_end, _nothing)
        if unsynced.total - unsynced.durable > threshold:
            self._due = max(self._due, unsynced.end_of(unsynced.total - threshold))

    def stored_run(self, topic: str, partitions: Sequence[tuple[int, int]], log_end: int) -> None:
        """As `stored`, for several partitions of a topic: (partition, messages) of each."""
        if self._settings.rules.settings(topic).unflush_threshold <= EACH:
            self._due = log_end
            return
        for partition, count in partitions:
            self.stored(topic, partition, log_end, count)

    def due(self) -> Due | None:
        """What the answers to all that was stored since the last call wait for; None: nothing."""
        log_end, self._due = self._due, 0
        due = self._acks.due()
        return later(due, Due(log_end, 0, promised=True)) if log_end else due


def _nothing(_good: bool) -> None:
    """It is enough that somebody asks."""
