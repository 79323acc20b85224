"""Consumer offsets: (topic, group) → queue id → the next QueueOffset to consume.

As in RocketMQ, a commit overwrites blindly, also with a lower offset: a reset is an ordinary write. The table is saved to
`config/consumerOffset.json` every few seconds, so after a crash a group repeats what it consumed since. The offsets of a deleted
topic or group are gone from the disk before the deletion is answered: one created again under its name must not find them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from metaq.saved_file import TextFile

log = logging.getLogger(__name__)

OffsetTable = dict[tuple[str, str], dict[int, int]]
"""(topic, group) → queue id → QueueOffset."""


class Offsets:
    """The offsets of all groups on this broker."""

    def __init__(self, file: TextFile[OffsetTable]) -> None:
        """Raises ConfigError: the file cannot be read."""
        self._file, self._format = file.file, file.format
        self._dirty = False
        self.failing = ""
        """Reason of the last save's failure; "" if it succeeded."""
        self._table: OffsetTable = file.read() or {}
        self.made_anew: dict[str, Callable[[int], int]] = {}
        """Topic that was deleted once → function of a queue id: the queue's end. No offset beyond it is taken."""
        self.noted: Callable[[str, str, int], None] | None = None
        """Called with topic, group and queue id of what changes here (a slave's `take` is no such change). One at a time: a master
        tells its slaves, a slave its master."""

    @property
    def table(self) -> Mapping[tuple[str, str], Mapping[int, int]]:
        """(topic, group) → queue id → QueueOffset."""
        return self._table

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the stored offset; None if the group never committed one for this queue."""
        queues = self._table.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def put(self, group: str, topic: str, queue_id: int, offset: int, *, pulled: bool = False) -> None:
        """Store an offset. `pulled`: it came with a pull, and its client will commit it once more."""
        # In a topic made anew it may be of the topic before: a pull does not say so, and beyond the end it must be.
        if topic in self.made_anew and (pulled or offset > self.made_anew[topic](queue_id)):
            return
        self._table.setdefault((topic, group), {})[queue_id] = offset
        self._dirty = True
        if self.noted is not None:
            self.noted(topic, group, queue_id)

    def take(self, group: str, topic: str, queue_id: int, offset: int | None) -> None:
        """Store an offset, or None: drop it, as a master has it. Its log may be ahead: the queue's end here says nothing."""
        if offset is not None:
            self._table.setdefault((topic, group), {})[queue_id] = offset
        else:
            queues = self._table.get((topic, group), {})
            queues.pop(queue_id, None)
            if not queues:
                self._table.pop((topic, group), None)
        self._dirty = True

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        return self._table.get((topic, group), {})

    def topics_of(self, group: str) -> list[str]:
        """Return topics in which the group has offsets."""
        return [topic for topic, owner in self._table if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return groups that have offsets in the topic."""
        return [group for owned, group in self._table if owned == topic]

    def drop_group(self, group: str) -> None:
        self._drop([key for key in self._table if key[1] == group])

    def drop_topic(self, topic: str) -> None:
        self._drop([key for key in self._table if key[0] == topic])

    def drop(self, topic: str, group: str) -> None:
        """Forget a group's progress in a topic."""
        if (topic, group) in self._table:
            self._drop([(topic, group)])

    def _drop(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            gone = self._table.pop(key)
            if self.noted is not None:
                for queue_id in gone:
                    self.noted(*key, queue_id)
            # Also if the deletion's own save fails: the next periodic save has it.
            self._dirty = True

    def save(self, done: Callable[[], None] | None = None, *, anyway: bool = False) -> None:
        """Save the table in a thread, if it has changed since the last save or that one failed.

        `done` is called, perhaps from another thread, when it is saved or the save has failed. `anyway`: also if it has not changed: a
        save that is still under way has not put it on the disk yet.
        """
        if not (self._dirty or anyway):
            if done is not None:
                done()
            return
        self._dirty = False
        # A copy: the thread that saves also encodes it, while the event loop goes on changing the table.
        table = {key: dict(queues) for key, queues in self._table.items()}

        def saved(error: OSError | None) -> None:
            self._saved(error)
            if done is not None:
                done()

        self._file.save_soon(lambda: self._format.text(table), saved)

    def _saved(self, error: OSError | None) -> None:
        reason = "" if error is None else error.strerror or str(error)
        if reason:
            self._dirty = True  # the next save tries again, whether or not anything changes until then
            if reason != self.failing:  # once per reason, not every few seconds
                log.error(
                    "%s could not be saved: %s; after a crash groups go back to what it holds", self._file.where, reason
                )
        elif self.failing:
            log.info("%s could be saved again", self._file.where)
        self.failing = reason

    def flush(self) -> None:
        """Save, and wait until that is on the disk, or could not be put there."""
        self.save()
        self._file.flush()
