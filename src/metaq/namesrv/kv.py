"""KV configuration of a name server: text by namespace and key, all that it keeps on disk.

A change is on disk before anybody sees it, or it is refused and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable

from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.model import DataVersion
from metaq.model.topics.route import ORDER_NAMESPACE
from metaq.saved import Pending, SavedTable, at_once
from metaq.saved_file import TableFile

VALUES_MAX = 100_000
TEXT_CHARS_MAX = 64 * 1024
TABLE_CHARS_MAX = 32 * 1024 * 1024
"""Characters of all values with their keys and namespaces: the table is kept in memory and outlives who has filled it."""

Place = tuple[str, str]
"""Namespace and key."""


class KvTable:
    """Namespaces of keys and values, bounded so that a peer cannot fill the memory.

    Args:
        file: `kvConfig.json`.
        clock: of versions.
        call_soon: brings a call from another thread to the event loop.
    Raises:
        ConfigError: the file cannot be read.
    """

    def __init__(
        self,
        file: TableFile[Place, str, DataVersion],
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], None] = at_once,
    ) -> None:
        version, table = file.read(DataVersion())
        self.saved = SavedTable(file, table, version, clock=clock, call_soon=call_soon, shown=self._shown)
        self._tables: dict[str, dict[str, str]] = {}
        self._chars = self._coming_chars = 0
        for place, value in self.saved.table.items():
            self._tables.setdefault(place[0], {})[place[1]] = value
            self._chars += _chars_of(place, value)

    def put(self, namespace: str, key: str, value: str) -> Pending:
        """Set a value. Raises Refused INVALID: it is too long, or the table is full."""
        if len(namespace) + len(key) + len(value) > TEXT_CHARS_MAX:
            raise Refused(
                Reason.INVALID, f"the KV value of {namespace[:40]}/{key[:40]} is above {TEXT_CHARS_MAX} characters"
            )
        place = (namespace, key)
        if self.saved.count >= VALUES_MAX and self.saved.coming(place) is None:
            raise Refused(Reason.INVALID, f"the KV table is full: {VALUES_MAX} values; delete some")
        size = _chars_of(place, value)
        replaced = _chars_of(place, self.get(namespace, key))
        if self._chars + self._coming_chars + size - replaced > TABLE_CHARS_MAX:
            raise Refused(Reason.INVALID, f"the KV table is full: {TABLE_CHARS_MAX} characters; delete some values")
        self._coming_chars += size
        change = self.saved.change(place, value)
        change.when_done(lambda _error: self._came(size))
        return change

    def get(self, namespace: str, key: str) -> str | None:
        return self._tables.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> Pending:
        """Delete a value. A missing one is no error."""
        return self.saved.change((namespace, key), None)

    def table(self, namespace: str) -> dict[str, str] | None:
        """Return a copy of one namespace, None if it has no keys.

        That of ordered topics stays, empty, once it had any: brokers must hear that none are left.
        """
        table = self._tables.get(namespace)
        return None if table is None else dict(table)

    def _came(self, size: int) -> None:
        self._coming_chars -= size

    def _shown(self, place: Place) -> None:
        namespace, key = place
        value = self.saved.table.get(place)
        table = self._tables.setdefault(namespace, {})
        self._chars += _chars_of(place, value) - _chars_of(place, table.get(key))
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
        if not table and namespace != ORDER_NAMESPACE:
            del self._tables[namespace]


def _chars_of(place: Place, value: str | None) -> int:
    return 0 if value is None else len(place[0]) + len(place[1]) + len(value)
