"""Dialect of MariaDB and MySQL, by PyMySQL."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

import pymysql

from metaq.pipelines.changes import kinds
from metaq.sql import mysql
from metaq.sql.address import Address, doubled

_TYPES = {
    kinds.LONG: "BIGINT", kinds.DOUBLE: "DOUBLE", kinds.BOOLEAN: "BOOLEAN", kinds.DATE: "DATE",
    kinds.DATETIME: "DATETIME(6)", kinds.TIMESTAMP: "DATETIME(6)",
}  # fmt: skip


class MariaDb:
    """`Dialect` of MariaDB and MySQL."""

    errors: tuple[type[Exception], ...] = (pymysql.Error,)
    upsert_needs_one_index = True
    text_type = "LONGTEXT"
    # An index of InnoDB's older row formats takes 767 bytes: 190 characters of utf8mb4.
    key_text_type = "VARCHAR(190)"

    def __init__(self, address: Address) -> None:
        self._address = address

    def connect(self) -> Any:
        return mysql.connect(self._address)

    def passes(self, fault: Exception) -> bool:
        return mysql.passes(fault)

    def quote(self, name: str) -> str:
        return doubled(name, "`")

    def column_type(self, kind: str, *, key: bool) -> str:
        if kind in _TYPES:
            return _TYPES[kind]
        if kind == kinds.BINARY:
            return "VARBINARY(255)" if key else "LONGBLOB"
        # Binary collation: with others keys that differ in case or accents are equal.
        if kind == kinds.STRING:
            return f"{'VARCHAR(255)' if key else 'LONGTEXT'} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        return kind.upper()

    def upsert(self, table: str, columns: Sequence[str], key: Sequence[str]) -> str:  # noqa: ARG002  MySQL checks all unique indexes
        names = [self.quote(name) for name in columns]
        # VALUES() is deprecated in MySQL 8 for a row alias, which MariaDB does not have.
        sets = [f"{name} = VALUES({name})" for name in names]
        places = ", ".join(["%s"] * len(names))
        return (
            f"INSERT INTO {self.quote(table)} ({', '.join(names)}) VALUES ({places}) "  # noqa: S608  names are quoted
            f"ON DUPLICATE KEY UPDATE {', '.join(sets)}"
        )

    def value(self, value: Any) -> Any:
        # DATETIME has no zone: UTC, as the session's.
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            return value.astimezone(dt.UTC).replace(tzinfo=None)
        return value

    def columns(self, cursor: Any, table: str) -> list[str]:
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s "
            "ORDER BY ordinal_position",
            (table,),
        )
        return [name for (name,) in cursor.fetchall()]

    def unique_indexes(self, cursor: Any, table: str) -> Iterable[tuple[str, ...]]:
        cursor.execute(
            "SELECT index_name, column_name FROM information_schema.statistics WHERE table_schema = DATABASE() "
            "AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index",
            (table,),
        )
        found: dict[str, tuple[str, ...]] = {}
        for index, column in cursor.fetchall():
            found[index] = (*found.get(index, ()), column)
        return found.values()
