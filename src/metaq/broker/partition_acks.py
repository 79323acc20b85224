"""What acknowledgements of puts of MetaQ 1.x clients wait for: unflushThreshold of the topic, beside what holds for all sends.

A threshold of 0 or 1 lets every answer wait for the disk. With more, so many messages of a partition may be answered before
they are synced; the answer to one more waits, so that a power cut never takes more than these.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from metaq.broker.acks import AckPolicy, Due, later
from metaq.broker.environment import Environment
from metaq.broker.metaq1_settings import Metaq1Settings

EACH = 1
"""Up to this threshold each answer waits."""


class _Unsynced(Struct):
    """Messages of a partition that may not be on the disk yet."""

    count: int = 0
    log_end: int = 0
    """LogOffset behind the newest of them: once the disk has come so far, none is left."""


class PartitionAcks:
    """The policy of one broker. Whoever stores tells it; whoever answers asks, before it returns to the event loop."""

    def __init__(self, environment: Environment, acks: AckPolicy, settings: Metaq1Settings) -> None:
        self._acks, self._settings, self._state = acks, settings, environment.store.state
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
        elif self._state.flushed >= unsynced.log_end:
            unsynced.count = 0
        unsynced.count += count
        unsynced.log_end = log_end
        if unsynced.count > threshold:
            self._due = log_end

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
