"""Offsets in PostgreSQL, by psycopg 3, in a table like that of Java's MySQL storage."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from metaq.metaq1.storages.sql import SqlOffsetStorage
from metaq.registry.offset_table import TABLE, Dialect, OffsetTable


def _begin(connection: Any) -> None:
    if connection.autocommit:
        connection.autocommit = False


POSTGRESQL: Final = Dialect("PostgreSQL", '"', "current_schema()", "BIGSERIAL", _begin)


class PostgresqlOffsetStorage(SqlOffsetStorage):
    """`SqlOffsetStorage` in PostgreSQL.

    Args: host, port, user, password, database: of the server; or connect: returns a connection of psycopg, which the storage has for
    itself until it closes it. table: its name.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 5432, user: str = "postgres", password: str = "",
        database: str = "postgres", *, connect: Callable[[], Any] | None = None, table: str = TABLE,
        java_consumer_ids: Collection[str] = (),
    ) -> None:  # fmt: skip
        def by_parameters() -> Any:
            import psycopg

            return psycopg.connect(
                host=host, port=port, user=user, password=password or None, dbname=database, connect_timeout=10
            )

        super().__init__(OffsetTable(POSTGRESQL, connect or by_parameters, table, secret=password), java_consumer_ids)
