"""Offsets in a table of a SQL database: what storages of all databases have in common."""

from __future__ import annotations

from collections.abc import Collection

from metaq.metaq1.model.partition import Partition
from metaq.metaq1.storages.storage import StoredOffset
from metaq.registry.offset_table import OffsetTable, Row


class SqlOffsetStorage:
    """An `OffsetStorage` in a table. Its methods raise ConnectionFailed, after which the next call connects anew, and ConfigError
    for a number that does not fit its column.

    Args: table: where. java_consumer_ids: ids under which Java's storage, which mistakes them for the group, has inserted rows: such a
    row is given to the group that loads it.
    """

    def __init__(self, table: OffsetTable, java_consumer_ids: Collection[str] = ()) -> None:
        self._table, self._java = table, tuple(java_consumer_ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._table!r})"

    def create_table(self) -> None:
        """Make the table unless it is there."""
        self._table.create()

    def commit_offset(self, group: str, offsets: Collection[StoredOffset]) -> None:
        """As `OffsetStorage.commit_offset`: all of them or none."""
        if offsets:
            self._table.save(group, [Row(one.topic, str(one.partition), one.offset, one.message_id) for one in offsets])

    def load(self, topic: str, group: str, partition: Partition) -> StoredOffset | None:
        """As `OffsetStorage.load`."""
        found = self._table.load(topic, str(partition), group)
        for consumer in self._java:
            if found is not None:
                break
            self._table.rename_group(topic, str(partition), consumer, group)
            found = self._table.load(topic, str(partition), group)
        return None if found is None else StoredOffset(topic, partition, found.offset, found.message_id)

    def init_offset(self, topic: str, group: str, partition: Partition, offset: int) -> None:
        """Insert the partition's row, with message id -1."""
        self._table.add(group, Row(topic, str(partition), offset))

    def close(self) -> None:
        """Close the connection."""
        self._table.close()
