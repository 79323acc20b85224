"""Offsets in MySQL, MariaDB or PostgreSQL, in the table of Java's MySQL storage."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar, Final

from metaq.errors import ConfigError
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.storages.storage import StoredOffset
from metaq.registry.offset_table import TABLE, OffsetTable, PartitionOffset
from metaq.sql.opening import Database, OwnConnections

ANSWER_SECONDS: Final = 30.0
"""Longest wait for an answer of the database."""


class SqlOffsetStorage:
    """An `OffsetStorage` in a table; for any number of consumers. Its methods raise ConnectionFailed, after which the next call connects
    anew; MetaqError: the database refuses, such as for want of the table; ConfigError: an offset does not fit its column, which is INT
    in the table that MetaQ 1.x has published.

    Args:
        database: its URL, such as `mysql://user@host:port/database`. May have the password, which no text shows.
        password: beats that of the URL.
        connect: in place of a URL: returns a new DB-API connection without autocommit, which the storage has for itself until it closes
            it.
        table: its name, perhaps with a schema. `create_table` makes it.
        java_consumer_ids: ids under which Java's storage, which mistakes them for the group, has inserted rows: such a row is given to
            the group that loads it, if it has none.

    Raises ConfigError: no such URL, or the driver is not installed.
    """

    kind: ClassVar[str] = ""
    """Of the database."""

    def __init__(
        self,
        database: str | None = None,
        *,
        password: str | None = None,
        connect: Callable[[], Any] | None = None,
        table: str = TABLE,
        java_consumer_ids: Collection[str] = (),
    ) -> None:
        if (database is None) == (connect is None):
            raise ConfigError(f"{type(self).__name__} needs one of database and connect")
        if connect is not None:
            self._table = OffsetTable(OwnConnections(connect), table)
        else:
            assert database is not None
            found = Database(database, password=password, answer_seconds=ANSWER_SECONDS)
            if found.kind != self.kind:
                raise ConfigError(f"{type(self).__name__} keeps no offsets in {found}: need {self.kind}://...")
            self._table = OffsetTable(found, table)
        self._java = tuple(java_consumer_ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._table!r})"

    def create_table(self) -> None:
        """Make the table with its index, with BIGINT for offset and msg_id, unless it is there."""
        self._table.create()

    def commit_offset(self, group: str, offsets: Collection[StoredOffset]) -> None:
        """As `OffsetStorage.commit_offset`: all of them or none. Raises ValueError: an offset is below 0."""
        for one in offsets:
            if one.offset < 0:
                raise ValueError(f"offset {one.offset} of {one.topic} {one.partition}: need 0 or more")
        if offsets:
            self._table.save(
                [PartitionOffset(group, one.topic, str(one.partition), one.offset, one.message_id) for one in offsets]
            )

    def load(self, topic: str, group: str, partition: Partition) -> StoredOffset | None:
        """Return what is saved; None: nothing. As `OffsetStorage.load`."""
        return self.load_many(group, [(topic, partition)]).get((topic, partition))

    def load_many(
        self, group: str, partitions: Collection[tuple[str, Partition]]
    ) -> dict[tuple[str, Partition], StoredOffset]:
        """Return (topic, partition) → what is saved, of those of which something is: one statement for many partitions."""
        keys = {(topic, str(partition)): (topic, partition) for topic, partition in partitions}
        found = self._table.load(group, keys, adopt=self._java)
        return {
            keys[key]: StoredOffset(*keys[key], offset=row.offset, message_id=row.message_id)
            for key, row in found.items()
        }

    def init_offset(self, topic: str, group: str, partition: Partition, offset: int) -> None:
        """Insert the partition's row, with message id -1, unless it is there."""
        self._table.add([PartitionOffset(group, topic, str(partition), offset)])

    def close(self) -> None:
        """Close the connection. A later call makes another."""
        self._table.close()


class MysqlOffsetStorage(SqlOffsetStorage):
    """`SqlOffsetStorage` in MySQL or MariaDB: `pip install 'pymetaq[mysql]'`."""

    kind = "mysql"


class PostgresqlOffsetStorage(SqlOffsetStorage):
    """`SqlOffsetStorage` in PostgreSQL: `pip install 'pymetaq[postgres]'`."""

    kind = "postgresql"
