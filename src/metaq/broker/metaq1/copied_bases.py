"""Bases of byte positions as a slave gets them: records that its master has written, in the log that it copies.

A slave writes none of its own, and tells no position that its master could not tell as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from metaq.model.topics.system import POSITIONS_TOPIC
from metaq.store.message_store import MessageStore
from metaq.store.metaq1.position_bases import Known, Told, told_since
from metaq.store.queues.table import QueueKey


class CopiedBases:
    """What a slave has read of these records."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._next = 0
        """Queue offset of the first record that was not read yet."""
        self._dropped: dict[str, int] = {}
        """Topic → LogOffset at which the master deleted it last."""

    def begin(self, known: Known) -> None:
        """Go on behind what is known: all that the log has now."""
        queue = self._store.reader.existing_queue(POSITIONS_TOPIC, 0)
        self._next, self._dropped = queue.max_offset if queue is not None else 0, dict(known.dropped_at)

    def news(self) -> Iterator[tuple[int, Told]]:
        """Yield (LogOffset, content) of each record that has come since the last call, the oldest first."""
        queue = self._store.reader.existing_queue(POSITIONS_TOPIC, 0)
        if queue is None or queue.max_offset <= self._next:
            return
        since, self._next = self._next, queue.max_offset
        for place, told in told_since(self._store, since):
            if told is None:
                continue
            for topic in told.topics:
                self._dropped[topic] = place
            yield place, told

    def is_of_before(self, key: QueueKey) -> bool:
        """Return whether a queue holds messages of a topic that the master has deleted: this broker hears of it a moment later."""
        dropped, queue = self._dropped.get(key[0]), self._store.reader.existing_queue(*key)
        if dropped is None or queue is None:
            return False
        unit = queue.unit(queue.min_offset)
        return unit is not None and not unit.is_fill and unit.log_offset < dropped
