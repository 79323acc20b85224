"""How far each consumer group has come: (topic, group) → queue id → the next QueueOffset to consume.

Positions are overwritten blindly, also by lower ones, as RocketMQ does: a reset is nothing but a write. They are kept in
`config/consumerOffset.json`, saved every few seconds, so a crash moves a group back by what it consumed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from metaq.errors import BadRequest, ConfigError
from metaq.wire import beans, bodies, fastjson

SEPARATOR = "@"
"""Between topic and group in a table key; no name can hold it."""


class SavedText(Protocol):
    """A small file that is replaced as a whole: one of `metaq.store.config_file`, or a test's memory."""

    def load(self) -> str:
        """The text, "" if there is none yet."""
        ...

    def save(self, text: str) -> None:
        """Replace the text, now or soon."""
        ...

    def flush(self) -> None:
        """Return when what was saved is on the disk."""
        ...


class Offsets:
    """The positions of all groups on this broker."""

    def __init__(self, file: SavedText) -> None:
        self._file = file
        self._dirty = False
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
        return bodies.group_offsets_tree(
            {f"{topic}{SEPARATOR}{group}": queues for (topic, group), queues in self._table.items()}
        )

    def save(self) -> None:
        """Write the table if it changed since the last save."""
        if self._dirty:
            self._dirty = False
            self._file.save(fastjson.dumps_file(self.to_tree()))

    def close(self) -> None:
        """Save what changed, and wait until it is on the disk."""
        self.save()
        self._file.flush()


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
