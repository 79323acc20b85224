"""How far each consumer group has come: (topic, group) → queue id → the next QueueOffset to consume.

Positions are overwritten blindly, also by lower ones, as RocketMQ does: a reset is nothing but a write. They are kept in
`config/consumerOffset.json`, saved every few seconds, so a crash moves a group back by what it consumed since. A topic or
group that is deleted takes its positions with it before anybody is told: one made again under its name must not find them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from metaq.saved_file import TextFile

log = logging.getLogger(__name__)

OffsetTable = dict[tuple[str, str], dict[int, int]]
"""(topic, group) → queue id → QueueOffset."""


class Offsets:
    """The positions of all groups on this broker."""

    def __init__(self, file: TextFile[OffsetTable]) -> None:
        """Raises ConfigError: the file cannot be read."""
        self._file, self._format = file.file, file.format
        self._dirty = False
        self.failing = ""
        """Why the last save failed; "" if it did not."""
        self._table: OffsetTable = file.read() or {}

    @property
    def table(self) -> Mapping[tuple[str, str], Mapping[int, int]]:
        """(topic, group) → queue id → QueueOffset."""
        return self._table

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The stored position, or None if the group never committed one for this queue."""
        queues = self._table.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self._table.setdefault((topic, group), {})[queue_id] = offset
        self._dirty = True

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        return self._table.get((topic, group), {})

    def topics_of(self, group: str) -> list[str]:
        """Topics for which the group has stored positions."""
        return [topic for topic, owner in self._table if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have stored positions for the topic."""
        return [group for owned, group in self._table if owned == topic]

    def drop_group(self, group: str) -> None:
        self._drop([key for key in self._table if key[1] == group])

    def drop_topic(self, topic: str) -> None:
        self._drop([key for key in self._table if key[0] == topic])

    def _drop(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self._table[key]
            self._dirty = True

    def save(self, done: Callable[[], None] | None = None) -> None:
        """Write the table if it changed since the last save, or that one failed. Returns at once.

        `done` is called, perhaps from another thread, when it is on the disk or could not be put there.
        """
        if not self._dirty:
            if done is not None:
                done()
            return
        self._dirty = False
        table = {key: dict(queues) for key, queues in self._table.items()}  # the text is made beside the event loop

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

    def close(self) -> None:
        """Save what changed, and wait until it is on the disk."""
        self.save()
        self._file.flush()
