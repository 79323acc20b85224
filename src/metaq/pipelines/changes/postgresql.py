"""Dialect of PostgreSQL, by psycopg 3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

from metaq.pipelines.changes import kinds
from metaq.sql import postgresql
from metaq.sql.address import Address, doubled

_TYPES = {
    kinds.LONG: "BIGINT", kinds.DOUBLE: "DOUBLE PRECISION", kinds.BOOLEAN: "BOOLEAN", kinds.DATE: "DATE",
    kinds.DATETIME: "TIMESTAMP", kinds.TIMESTAMP: "TIMESTAMPTZ", kinds.BINARY: "BYTEA", kinds.STRING: "TEXT",
}  # fmt: skip


class PostgreSql:
    """`Dialect` of PostgreSQL."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)
    upsert_needs_one_index = False
    text_type = "TEXT"
    key_text_type = "TEXT"

    def __init__(self, address: Address) -> None:
        self._address = address

    def connect(self) -> Any:
        return postgresql.connect(self._address)

    def passes(self, fault: Exception) -> bool:
        return postgresql.passes(fault)

    def quote(self, name: str) -> str:
        return doubled(name, '"')

    def column_type(self, kind: str, *, key: bool) -> str:  # noqa: ARG002  keys need no other type here
        return _TYPES.get(kind) or kind.replace("decimal", "NUMERIC")

    def upsert(self, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
        names = [self.quote(name) for name in columns]
        sets = [f"{self.quote(name)} = EXCLUDED.{self.quote(name)}" for name in columns if name not in key]
        places = ", ".join(["%s"] * len(names))
        # A table of nothing but its key has no column to set.
        act = f"DO UPDATE SET {', '.join(sets)}" if sets else "DO NOTHING"
        return (
            f"INSERT INTO {self.quote(table)} ({', '.join(names)}) VALUES ({places}) "  # noqa: S608  names are quoted
            f"ON CONFLICT ({', '.join(self.quote(name) for name in key)}) {act}"
        )

    def value(self, value: Any) -> Any:
        return value

    def columns(self, cursor: Any, table: str) -> list[str]:
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = %s "
            "ORDER BY ordinal_position",
            (table,),
        )
        return [name for (name,) in cursor.fetchall()]

    def unique_indexes(self, cursor: Any, table: str) -> Iterable[tuple[str, ...]]:
        # Without partial indexes (indpred): ON CONFLICT does not find them by their columns alone.
        cursor.execute(
            "SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey) "
            "WHERE n.nspname = current_schema() AND c.relname = %s AND i.indisunique AND i.indpred IS NULL "
            "GROUP BY i.indexrelid",
            (table,),
        )
        return [tuple(names) for (names,) in cursor.fetchall()]
