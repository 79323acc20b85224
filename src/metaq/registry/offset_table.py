"""The SQL table in which clients of MetaQ 1.x keep offsets of their groups. Blocks; for clients, brokers and tools alike.

Columns as in Java's storage: id, topic, partition (text `brokerId-number`), group_id, offset, msg_id. No index of it is unique, so a
row is looked for before it is inserted; of several rows for one partition and group the oldest counts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from metaq.errors import ConfigError, ConnectionFailed, MetaqError
from metaq.registry.zookeeper.layout import UNKNOWN_MESSAGE
from metaq.sql.address import address_of
from metaq.sql.opening import Connecting, Database
from metaq.sql.statements import MYSQL, POSTGRESQL, VALUES_MAX, Statements, checked_table, places, quoted, statements_of
from metaq.sql.tables import IDENTITY, making, word

log = logging.getLogger(__name__)

TABLE: Final = "meta_topic_partition_group_offset"
_TOPMOST: Final = {"tinyint": 2**7, "smallint": 2**15, "mediumint": 2**23, "int": 2**31, "integer": 2**31}
"""Type of a column → how many numbers from 0 on it takes."""
_ALL: Final = 2**63
_NUMBERS: Final = ("offset", "msg_id")
_COLUMNS_OF: Final = {
    MYSQL: "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?",
    POSTGRESQL: "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0",
}
"""SQLite's integers all have 64 bits."""

Result = TypeVar("Result")
Key = tuple[str, str]
"""Topic and partition."""


class PartitionOffset(Struct, frozen=True):
    """Offset of one group in one partition."""

    group: str
    """The group."""
    topic: str
    """The topic."""
    partition: str
    """`brokerId-number`."""
    offset: int
    """Bytes from the partition's begin on; the group goes on there."""
    message_id: int = UNKNOWN_MESSAGE
    """Id of the last message that it has consumed; -1: unknown."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Group, topic and partition: of what it is the offset."""
        return self.group, self.topic, self.partition


def statements_to_make(kind: str, name: str = TABLE) -> list[str]:
    """Return the statements that make the table in a database of a kind, with its index, unless it is there.

    Raises ConfigError: the name would need quotes.
    """

    def column(one: str) -> str:
        return quoted(kind, one)

    text = word(kind, 255)
    columns = [f"{column('id')} {IDENTITY[kind]}"]
    columns += [f"{column(one)} {text} NOT NULL" for one in ("topic", "partition", "group_id")]
    columns += [f"{column(one)} BIGINT NOT NULL" for one in _NUMBERS]
    # By group first: a group's rows are asked for in all topics, too.
    index = [column(one) for one in ("group_id", "topic", "partition")]
    return making(kind, checked_table(name), columns, {"group": index}, quote=True)


def statements_for(url: str, name: str = TABLE) -> list[str]:
    """Return `statements_to_make` for the database of a URL, without a look at it. Raises ConfigError: it is none."""
    return statements_to_make(address_of(url, option="database").kind, name)


def password_in(url: str) -> bool:
    """Return whether the URL of a database has a password in it."""
    return urlsplit(url).password is not None


class OffsetTable:
    """One table, by one connection, which is made when first needed and again after an error. For any number of threads.

    Its methods raise ConnectionFailed, after which the next call connects anew; MetaqError: the database refuses, such as for want of
    the table; ConfigError: it, or its driver, is not supported, or the connection commits by itself.

    Args: database: makes connections. name: of the table, perhaps with its schema.
    """

    def __init__(self, database: Connecting, name: str = TABLE) -> None:
        self._database, self.name = database, checked_table(name)
        self._lock = threading.Lock()
        self._connection: Any = None
        self._limits: dict[str, int] | None = None
        self._warned = False

    @classmethod
    def of_url(
        cls,
        url: str,
        *,
        password: str | None = None,
        name: str = TABLE,
        option: str = "database",
        answer_seconds: float | None = None,
    ) -> OffsetTable:
        """Return a table of a database by its URL. Arguments, and ConfigError, as of `metaq.sql.opening.Database`."""
        return cls(Database(url, password=password, option=option, answer_seconds=answer_seconds), name)

    def __repr__(self) -> str:
        return f"OffsetTable({self._database}, {self.name!r})"

    def create(self) -> None:
        """Make the table, with BIGINT for offset and msg_id, unless it is there."""

        def make(on: Statements) -> None:
            for statement in statements_to_make(on.kind, self.name):
                on.run(statement)

        self._do(make)

    def narrow_columns(self) -> dict[str, int]:
        """Return column → the highest number that it takes, of those that do not take all offsets or message ids."""
        limits = self._do(self._limits_of)
        return {column: limits[column] - 1 for column in _NUMBERS if limits.get(column, _ALL) < _ALL}

    def load(self, group: str, keys: Collection[Key], *, adopt: Collection[str] = ()) -> dict[Key, PartitionOffset]:
        """Return (topic, partition) → what is saved, of those of which something is.

        Args: adopt: other names of the group: a row under one of them is given to it, if it has none.
        """

        def found(on: Statements) -> dict[Key, PartitionOffset]:
            rows = {key: row for key, (_, row) in self._find(on, group, keys).items()}
            for other in adopt:
                missing = [key for key in keys if key not in rows]
                for key, (number, row) in self._find(on, other, missing).items():
                    table, column = self._names(on, "group_id")
                    on.run(f"UPDATE {table} SET {column} = ? WHERE {quoted(on.kind, 'id')} = ?", (group, number))  # noqa: S608
                    rows[key] = PartitionOffset(group, row.topic, row.partition, row.offset, row.message_id)
            return rows

        return self._do(found)

    def save(self, rows: Collection[PartitionOffset]) -> None:
        """Save all rows in one transaction, in place of those that are there.

        A message id that its column does not take is saved as -1, unknown, and the log says so once. Raises ConfigError: an offset
        does not fit; nothing is saved then.
        """
        self._do(lambda on: self._put(on, rows, over=True))

    def add(self, rows: Collection[PartitionOffset]) -> dict[tuple[str, str, str], PartitionOffset]:
        """Save rows, except where one is there already. Returns (group, topic, partition) → what is there. Raises as `save`."""
        return self._do(lambda on: self._put(on, rows, over=False))

    def rows(self, group: str | None = None, topic: str | None = None) -> list[PartitionOffset]:
        """Return what is saved, of all groups and topics or of one."""

        def found(on: Statements) -> list[PartitionOffset]:
            wanted = {"group_id": group, "topic": topic}
            given = {quoted(on.kind, column): value for column, value in wanted.items() if value is not None}
            where = " AND ".join(f"{column} = ?" for column in given)
            rows = [row for _, row in self._select(on, where, list(given.values()))]
            # Of several the oldest, which comes last. Tables of others may compare without regard to case.
            newest_first = {row.key: row for row in rows}
            return sorted(
                (
                    row
                    for row in newest_first.values()
                    if (group is None or row.group == group) and (topic is None or row.topic == topic)
                ),
                key=lambda row: row.key,
            )

        return self._do(found)

    def groups(self) -> list[str]:
        """Return the names of all groups with an offset."""

        def found(on: Statements) -> list[str]:
            table, column = self._names(on, "group_id")
            return sorted(str(name) for (name,) in on.rows(f"SELECT DISTINCT {column} FROM {table}"))  # noqa: S608

        return self._do(found)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _names(self, on: Statements, *columns: str) -> list[str]:
        return [quoted(on.kind, name) for name in (self.name, *columns)]

    def _select(self, on: Statements, where: str, values: Sequence[Any]) -> Iterator[tuple[int, PartitionOffset]]:
        """Yield ids and rows, the newest first."""
        table, number, *columns = self._names(on, "id", "group_id", "topic", "partition", *_NUMBERS)
        condition = f" WHERE {where}" if where else ""
        query = f"SELECT {number}, {', '.join(columns)} FROM {table}{condition} ORDER BY {number} DESC"  # noqa: S608
        for found, group, topic, partition, offset, message_id in on.rows(query, values):
            yield int(found), PartitionOffset(str(group), str(topic), str(partition), int(offset), int(message_id))

    def _find(self, on: Statements, group: str, keys: Collection[Key]) -> dict[Key, tuple[int, PartitionOffset]]:
        """Return (topic, partition) → id and row of a group."""
        parts: dict[str, list[str]] = {}
        for topic, partition in keys:
            parts.setdefault(topic, []).append(partition)
        at_group, at_topic, at_partition = (quoted(on.kind, one) for one in ("group_id", "topic", "partition"))
        found = {}
        for topic, partitions in parts.items():
            for some in _pieces(partitions):
                where = f"{at_group} = ? AND {at_topic} = ? AND {at_partition} IN ({places(len(some))})"
                for number, row in self._select(on, where, (group, topic, *some)):
                    # Tables of others may compare without regard to case.
                    if (row.group, row.topic) == (group, topic):
                        found[row.topic, row.partition] = number, row
        return found

    def _put(
        self, on: Statements, rows: Collection[PartitionOffset], *, over: bool
    ) -> dict[tuple[str, str, str], PartitionOffset]:
        table, number, *columns = self._names(on, "id", *_NUMBERS, "topic", "partition", "group_id")
        insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places(len(columns))})"  # noqa: S608
        update = f"UPDATE {table} SET {columns[0]} = ?, {columns[1]} = ? WHERE {number} = ?"  # noqa: S608
        of_group: dict[str, list[PartitionOffset]] = {}
        for row in rows:
            of_group.setdefault(row.group, []).append(row)
        there = {}
        for group, mine in of_group.items():
            known = self._find(on, group, [(row.topic, row.partition) for row in mine])
            for row in mine:
                before = known.get((row.topic, row.partition))
                if before is None:
                    values = self._fitting(on, row)
                    on.run(insert, (*values, row.topic, row.partition, group))
                elif over:
                    on.run(update, (*self._fitting(on, row), before[0]))
                if before is not None:
                    there[row.key] = before[1]
        return there

    def _fitting(self, on: Statements, row: PartitionOffset) -> tuple[int, int]:
        """Return offset and message id as their columns take them: MySQL without strict mode would store another number."""
        limits = self._limits_of(on)
        highest = limits.get("offset", _ALL) - 1
        if row.offset > highest:
            raise ConfigError(
                f"offset {row.offset} of group {row.group} in {row.topic} {row.partition} does not fit the table {self.name}, whose "
                f"column offset takes {highest} at most: change the columns offset and msg_id to BIGINT"
            )
        limit = limits.get("msg_id", _ALL)
        if -limit <= row.message_id < limit:
            return row.offset, row.message_id
        if not self._warned:
            self._warned = True
            log.warning(
                "table %s takes no message ids above %d: they are saved as unknown (-1), and a synchronous slave that takes over does "
                "not find the place of group %s. Change the columns offset and msg_id to BIGINT", self.name, limit - 1, row.group,
            )  # fmt: skip
        return row.offset, UNKNOWN_MESSAGE

    def _limits_of(self, on: Statements) -> dict[str, int]:
        if self._limits is None:
            schema, _, name = self.name.rpartition(".")
            found: list[tuple[Any, ...]] = []
            if on.kind == MYSQL:
                found = on.rows(_COLUMNS_OF[MYSQL], (schema or None, name))
            elif on.kind == POSTGRESQL:
                found = on.rows(_COLUMNS_OF[POSTGRESQL], (quoted(POSTGRESQL, self.name),))
            self._limits = {str(column): _TOPMOST.get(str(kind).lower(), _ALL) for column, kind in found}
        return self._limits

    def _do(self, work: Callable[[Statements], Result]) -> Result:
        """Run work in one transaction; once more if a connection that was kept turns out to be lost. Works are idempotent."""
        with self._lock:
            kept = self._connection is not None
            try:
                return self._try(work)
            except ConnectionFailed:
                if not kept:
                    raise
            return self._try(work)

    def _try(self, work: Callable[[Statements], Result]) -> Result:
        try:
            if self._connection is None:
                self._limits = None
                self._connection = self._database.connect()
            result = work(statements_of(self._connection))
            self._connection.commit()
        except BaseException as fault:
            self._drop()  # The server rolls back what was not committed.
            if isinstance(fault, (MetaqError, TypeError)) or not isinstance(fault, Exception):
                raise
            error = self._database.error_of(fault)
            if error is None:
                raise
            # Without its cause, whose text may show the password.
            raise type(error)(
                f"offsets in the table {self.name} cannot be read or written: {error}; see whether the database runs and has the table "
                "(metaq meta1 offset-table --create)"
            ) from None
        return result

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()


def _pieces(values: Collection[str]) -> Iterator[list[str]]:
    left = iter(values)
    while some := list(islice(left, VALUES_MAX)):
        yield some
