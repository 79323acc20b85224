"""Acknowledgement policy of MetaQ 1.x puts: the topic's unflushThreshold, in addition to the policy of all sends.

With a threshold of 0 or 1, every response waits for the flush. With n, up to n messages of a partition may be acknowledged before
they are flushed; the response to one more waits, so a power cut loses at most n acknowledged messages of a partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct, field

from metaq.broker.environment import Environment
from metaq.broker.log.acks import AckPolicy, Due, later
from metaq.broker.metaq1.settings import Metaq1Settings

EACH = 1
"""Largest threshold with which every response waits for the flush."""
MARKS = 64
"""Number of log positions kept per partition with unflushed messages: a bound for memory, not one per message."""


class _Unsynced(Struct):
    """Unflushed messages of a partition."""

    total: int = 0
    """Messages so far; of these `durable` are known to be flushed, and for `asked` a flush was requested."""
    durable: int = 0
    asked: int = 0
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    """Ascending (count, LogOffset): the first `count` messages end at that offset."""

    def add(self, count: int, log_end: int, step: int) -> None:
        """Add messages; marks lie about `step` messages apart."""
        self.total += count
        marks = self.marks
        if len(marks) > 1 and self.total - marks[-2][0] <= step:
            # Merged into the last mark: less exact, but bounded.
            marks[-1] = self.total, log_end
        else:
            marks.append((self.total, log_end))

    def flushed(self, log_end: int) -> None:
        """Take over the flushed LogOffset."""
        marks = self.marks
        while marks and marks[0][1] <= log_end:
            self.durable = marks.popleft()[0]

    def end_of(self, count: int) -> int:
        """Return the LogOffset behind the first `count` messages, or a little further on."""
        return next(log_end for total, log_end in self.marks if total >= count)


class PartitionAcks:
    """The policy of one broker. Called with each stored message, and asked (`due`) at the end of each read event."""

    def __init__(self, environment: Environment, acks: AckPolicy, settings: Metaq1Settings) -> None:
        self._acks, self._settings = acks, settings
        self._flusher, self._state = environment.store.flusher, environment.store.state
        self._unsynced: dict[tuple[str, int], _Unsynced] = {}
        self._due = 0

    def stored(self, topic: str, partition: int, log_end: int, count: int = 1) -> None:
        """Note messages put into a partition; the newest record ends at `log_end`."""
        threshold = self._settings.rules.settings(topic).unflush_threshold
        if threshold <= EACH:
            # unflushThreshold <= 1 is group commit in the original as well.
            self._due = max(self._due, log_end)
            return
        unsynced = self._unsynced.get((topic, partition))
        if unsynced is None:
            unsynced = self._unsynced[topic, partition] = _Unsynced()
        unsynced.flushed(self._state.flushed)
        unsynced.add(count, log_end, threshold // MARKS)
        if unsynced.total - max(unsynced.durable, unsynced.asked) > threshold // 2:
            # Request a flush at half the threshold: if the disk keeps up, no response ever waits.
            unsynced.asked = unsynced.total
            self._flusher.when_flushed(log_end, _nothing)
        if unsynced.total - unsynced.durable > threshold:
            self._due = max(self._due, unsynced.end_of(unsynced.total - threshold))

    def stored_run(self, topic: str, partitions: Sequence[tuple[int, int]], log_end: int) -> None:
        """Note messages put into several partitions of a topic: (partition, messages) of each."""
        if self._settings.rules.settings(topic).unflush_threshold <= EACH:
            self._due = log_end
            return
        for partition, count in partitions:
            self.stored(topic, partition, log_end, count)

    def due(self) -> Due | None:
        """Return the condition for the responses to all that was stored since the last call; None: respond at once."""
        log_end, self._due = self._due, 0
        due = self._acks.due()
        return later(due, Due(log_end, 0, promised=True)) if log_end else due


def _nothing(_good: bool) -> None:
    """Do nothing: the request alone makes the store flush."""
