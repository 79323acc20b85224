"""The SQL table in which clients of MetaQ 1.x keep offsets of their groups. Blocks; for clients and tools alike.

Columns as in Java's storage: id, topic, partition (text `brokerId-number`), group_id, offset, msg_id. No index of it is unique, so a
row is looked for before it is inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final, TypeVar

from msgspec import Struct

from metaq.errors import ConfigError, ConnectionFailed

TABLE: Final = "meta_topic_partition_group_offset"
_HIGHEST: Final = {"smallint": 2**15 - 1, "mediumint": 2**23 - 1, "int": 2**31 - 1, "integer": 2**31 - 1}
_BIGGEST: Final = 2**63 - 1

Result = TypeVar("Result")


class Row(Struct, frozen=True):
    """Offset of one group in one partition."""

    topic: str
    partition: str
    offset: int
    message_id: int = -1


class Dialect(Struct, frozen=True):
    """What differs between databases."""

    name: str
    mark: str
    """Quotes names."""
    schema: str
    """Expression for the schema that unqualified names mean."""
    key: str
    """Type of the column id."""
    begin: Callable[[Any], None]
    """Makes a connection start a transaction by its next statement."""

    def quote(self, name: str) -> str:
        return self.mark + name.replace(self.mark, self.mark * 2) + self.mark


class OffsetTable:
    """One table, by one connection, which is made when first needed and again after an error.

    Args: dialect: of the database. connect: makes a DB-API connection whose parameters are written `%s`. name: of the table. secret:
    a password that no text of an error may show.
    """

    def __init__(self, dialect: Dialect, connect: Callable[[], Any], name: str = TABLE, *, secret: str = "") -> None:
        self._dialect, self._connect, self._name, self._secret = dialect, connect, name, secret
        self._connection: Any = None
        self._highest: dict[str, int] | None = None
        quote = dialect.quote
        self._table = quote(name)
        self._keys = " AND ".join(f"{quote(key)} = %s" for key in ("topic", "partition", "group_id"))

    def __repr__(self) -> str:
        return f"OffsetTable({self._dialect.name}, {self._name!r})"

    def create(self) -> None:
        """Make the table, with BIGINT for offset and msg_id, unless it is there."""
        quote, name = self._dialect.quote, self._name
        text = [f"{quote(column)} VARCHAR(255) NOT NULL" for column in ("topic", "partition", "group_id")]
        numbers = [f"{quote(column)} BIGINT NOT NULL" for column in ("offset", "msg_id")]
        columns = ", ".join([f"{quote('id')} {self._dialect.key} PRIMARY KEY", *text, *numbers])
        self._do(lambda cursor: cursor.execute(f"CREATE TABLE IF NOT EXISTS {quote(name)} ({columns})"))

    def load(self, topic: str, partition: str, group: str) -> Row | None:
        """Return what is saved; None: nothing."""
        return self._do(lambda cursor: self._found(cursor, topic, partition, group))

    def save(self, group: str, rows: Collection[Row]) -> None:
        """Save all rows in one transaction. Raises ConfigError: a value does not fit its column; nothing is saved then."""
        self._do(lambda cursor: self._put(cursor, group, rows, over=True))

    def add(self, group: str, row: Row) -> None:
        """Save a row unless there is one of its topic, partition and group."""
        self._do(lambda cursor: self._put(cursor, group, [row], over=False))

    def rename_group(self, topic: str, partition: str, old: str, new: str) -> None:
        """Have the row of one group belong to another, unless that one has a row."""

        def rename(cursor: Any) -> None:
            if self._found(cursor, topic, partition, new) is None:
                group = self._dialect.quote("group_id")
                order = f"UPDATE {self._table} SET {group} = %s WHERE {self._keys}"  # noqa: S608  names are quoted
                cursor.execute(order, (new, topic, partition, old))

        self._do(rename)

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _found(self, cursor: Any, topic: str, partition: str, group: str) -> Row | None:
        quote = self._dialect.quote
        columns = f"{quote('offset')}, {quote('msg_id')}"
        # Of rows that two writers inserted at once, the newest.
        query = f"SELECT {columns} FROM {self._table} WHERE {self._keys} ORDER BY {quote('id')} DESC LIMIT 1"  # noqa: S608  names are quoted
        cursor.execute(query, (topic, partition, group))
        found = cursor.fetchone()
        return None if found is None else Row(topic, partition, int(found[0]), int(found[1]))

    def _put(self, cursor: Any, group: str, rows: Collection[Row], *, over: bool) -> None:
        quote, table = self._dialect.quote, self._table
        columns = ", ".join(map(quote, ("offset", "msg_id", "topic", "partition", "group_id")))
        insert = f"INSERT INTO {table} ({columns}) VALUES (%s, %s, %s, %s, %s)"  # noqa: S608  names are quoted
        update = f"UPDATE {table} SET {quote('offset')} = %s, {quote('msg_id')} = %s WHERE {self._keys}"  # noqa: S608  names are quoted
        for row in rows:
            self._check(cursor, group, row)
            there = self._found(cursor, row.topic, row.partition, group) is not None
            if over or not there:
                values = (row.offset, row.message_id, row.topic, row.partition, group)
                cursor.execute(update if there else insert, values)

    def _check(self, cursor: Any, group: str, row: Row) -> None:
        """MySQL without strict mode would store another number where one does not fit."""
        if self._highest is None:
            cursor.execute(
                "SELECT column_name, data_type FROM information_schema.columns "  # noqa: S608  an expression of ours
                f"WHERE table_schema = {self._dialect.schema} AND table_name = %s",
                (self._name,),
            )
            self._highest = {name: _HIGHEST.get(kind.lower(), _BIGGEST) for name, kind in cursor.fetchall()}
        for column, value in (("offset", row.offset), ("msg_id", row.message_id)):
            highest = self._highest.get(column, _BIGGEST)
            if value > highest:
                raise ConfigError(
                    f"{column} {value} of group {group} in {row.topic} {row.partition} does not fit the table {self._name}, "
                    f"whose column {column} takes {highest} at most: change the columns offset and msg_id to BIGINT"
                )

    def _do(self, work: Callable[[Any], Result]) -> Result:
        """Run work in one transaction. Raises ConnectionFailed for whatever the database or its driver says."""
        try:
            if self._connection is None:
                self._highest = None
                self._connection = self._connect()
            self._dialect.begin(self._connection)
            cursor = self._connection.cursor()
            result = work(cursor)
            cursor.close()
            self._connection.commit()
        except BaseException as fault:
            self.close()  # The server rolls back what was not committed.
            if isinstance(fault, ConfigError) or not isinstance(fault, Exception):
                raise
            said = f"{type(fault).__name__}: {fault}"
            if self._secret:
                said = said.replace(self._secret, "***")
            # Without its cause, whose text may show the password.
            raise ConnectionFailed(
                f"table {self._name} in {self._dialect.name} could not be read or written ({said}): see whether the database "
                "runs and has the table"
            ) from None
        return result
