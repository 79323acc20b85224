"""How far each consumer group has come: (topic, group) → queue id → the next QueueOffset to consume.

Positions are overwritten blindly, also by lower ones, as RocketMQ does: a reset is nothing but a write. They are kept in
`config/consumerOffset.json`, saved every few seconds, so a crash moves a group back by what it consumed since. A topic or
group that is deleted takes its positions with it before anybody is told: one made again under its name must not find them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from metaq.errors import BadRequest, ConfigError
from metaq.saved import SavedText
from metaq.wire import beans, bodies, fastjson

log = logging.getLogger(__name__)

SEPARATOR = "@"
"""Between topic and group in a table key; no name can hold it."""


class Offsets:
    """The positions of all groups on this broker."""

    def __init__(self, file: SavedText) -> None:
        self._file = file
        self._dirty = False
        self.failing = ""
        """Why the last save failed; "" if it did not."""
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        text = file.load()
        if text:
            self._table = _parse(text)

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

    def to_tree(self) -> bodies.Tree:
        """The whole table in the shape of request 43 and of the file."""
        return _tree(self._table)

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

        self._file.save_soon(lambda: fastjson.dumps_file(_tree(table)), saved)

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


def _tree(table: Mapping[tuple[str, str], Mapping[int, int]]) -> bodies.Tree:
    return bodies.group_offsets_tree({f"{topic}{SEPARATOR}{group}": queues for (topic, group), queues in table.items()})


def _parse(text: str) -> dict[tuple[str, str], dict[int, int]]:
    try:
        stored = bodies.group_offsets_of_tree(beans.parse(text, "consumerOffset.json"))
    except BadRequest as error:
        raise ConfigError(f"consumerOffset.json cannot be read ({error}); restore it from its .bak") from error
    table: dict[tuple[str, str], dict[int, int]] = {}
    for key, queues in stored.items():
        topic, found, group = key.partition(SEPARATOR)
        if found:
            table[topic, group] = queues
    return table
