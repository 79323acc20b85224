"""Offsets in MySQL or MariaDB, by PyMySQL, in the table of Java's storage."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from metaq.metaq1.storages.sql import SqlOffsetStorage
from metaq.registry.offset_table import TABLE, Dialect, OffsetTable

MYSQL: Final = Dialect(
    "MySQL", "`", "DATABASE()", "BIGINT AUTO_INCREMENT", lambda connection: connection.autocommit(False)
)


class MysqlOffsetStorage(SqlOffsetStorage):
    """`SqlOffsetStorage` in MySQL or MariaDB.

    Args: host, port, user, password, database: of the server; or connect: returns a connection of PyMySQL, or of a driver that is
    used like it, which the storage has for itself until it closes it. table: its name.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 3306, user: str = "root", password: str = "", database: str = "", *,
        connect: Callable[[], Any] | None = None, table: str = TABLE, java_consumer_ids: Collection[str] = (),
    ) -> None:  # fmt: skip
        def by_parameters() -> Any:
            import pymysql

            return pymysql.connect(
                host=host, port=port, user=user, password=password, database=database, charset="utf8mb4",
                connect_timeout=10, read_timeout=30, write_timeout=30,
            )  # fmt: skip

        super().__init__(OffsetTable(MYSQL, connect or by_parameters, table, secret=password), java_consumer_ids)
