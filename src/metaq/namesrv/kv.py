"""The name server's KV configuration: text by namespace and key, the only thing that a name server keeps on disk."""

from __future__ import annotations

from collections.abc import Mapping

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Topic → `broker:queues;...`, the fixed layout of strictly ordered topics."""

VALUES_MAX = 100_000
TEXT_CHARS_MAX = 64 * 1024


class KvTable:
    """Namespaces of keys and values, bounded so that a peer cannot fill the memory."""

    def __init__(self, tables: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._tables = {name: dict(table) for name, table in (tables or {}).items()}

    def put(self, namespace: str, key: str, value: str) -> None:
        """Raises ValueError if the value is too long or the table is full."""
        if len(namespace) + len(key) + len(value) > TEXT_CHARS_MAX:
            raise ValueError(f"the KV value of {namespace[:40]}/{key[:40]} is above {TEXT_CHARS_MAX} characters")
        if sum(map(len, self._tables.values())) >= VALUES_MAX and key not in self._tables.get(namespace, {}):
            raise ValueError(f"the KV table is full: {VALUES_MAX} values; delete some")
        self._tables.setdefault(namespace, {})[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        return self._tables.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> bool:
        """Whether there was such a key."""
        table = self._tables.get(namespace, {})
        found = table.pop(key, None) is not None
        if not table:
            self._tables.pop(namespace, None)
        return found

    def table(self, namespace: str) -> dict[str, str] | None:
        """A copy of one namespace, or None if it has no keys."""
        table = self._tables.get(namespace)
        return dict(table) if table else None

    def tree(self) -> dict[str, dict[str, dict[str, str]]]:
        """The whole as it is written to kvConfig.json."""
        return {"configTable": {name: dict(table) for name, table in self._tables.items()}}
