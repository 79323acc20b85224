"""Statements on what a program has at hand: a DB-API connection, or a connection or session of SQLAlchemy.

Statements have `?` for values and no other question or percent mark; each driver gets its own spelling. SQLAlchemy is not
imported: its objects are known by their methods.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from metaq.errors import ConfigError
from metaq.sql.address import doubled

SQLITE, MYSQL, POSTGRESQL = "sqlite", "mysql", "postgresql"
_KINDS = {"sqlite": SQLITE, "mysql": MYSQL, "mariadb": MYSQL, "postgresql": POSTGRESQL}
_DRIVERS = {
    "sqlite3": (SQLITE, "qmark"), "pymysql": (MYSQL, "format"), "MySQLdb": (MYSQL, "format"), "mysql": (MYSQL, "format"),
    "mariadb": (MYSQL, "qmark"), "psycopg": (POSTGRESQL, "format"), "psycopg2": (POSTGRESQL, "format"),
    "pg8000": (POSTGRESQL, "format"),
}  # fmt: skip
"""Package of a driver → the database, and how it spells the place of a value."""
_NAME = re.compile(r"[A-Za-z_]\w{0,62}(\.[A-Za-z_]\w{0,62})?", re.ASCII)
_VERSION = re.compile(r"\d+", re.ASCII)
VALUES_MAX = 200
"""Most values in one `IN (...)`."""


def checked_table(name: str) -> str:
    """Return the name of a table, perhaps with its schema. Raises ConfigError: it would need quotes."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"table={name!r}: need letters, digits and underscores, and perhaps a schema before a dot")
    return name


def quoted(kind: str, name: str) -> str:
    """Return a name of `checked_table`, or of a column, in the quotes of a database: it may be a word of SQL's."""
    return ".".join(doubled(part, "`" if kind == MYSQL else '"') for part in name.split("."))


def places(count: int) -> str:
    """Return `?, ?, ?`."""
    return ", ".join("?" * count)


class Statements:
    """Runs statements in the transaction of whoever made it, and ends none.

    Args:
        execute: runs a statement with its values; returns a cursor or a result.
        kind: SQLITE, MYSQL or POSTGRESQL.
        style: how the driver spells the place of a value, as `paramstyle` of DB-API, or SQLAlchemy's `numeric_dollar`.
    """

    def __init__(self, target: Any, kind: str, style: str, *, sqlalchemy: bool) -> None:
        self._target, self.kind, self._style, self._sqlalchemy = target, kind, style, sqlalchemy

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement. Returns the number of rows that it changed."""
        result = self._run(sql, values)
        try:
            return int(result.rowcount)
        finally:
            result.close()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT."""
        result = self._run(sql, values)
        try:
            return [tuple(row) for row in result.fetchall()]
        finally:
            result.close()

    def _run(self, sql: str, values: Sequence[Any]) -> Any:
        spelt = _spelt(sql, self._style)
        if self._sqlalchemy:
            return self._target.exec_driver_sql(spelt, tuple(values))
        cursor = self._target.cursor()
        cursor.execute(spelt, tuple(values))
        return cursor

    def now_ms(self) -> int:
        """Milliseconds since 1970 by the database's clock, which all its clients share."""
        [(now,)] = self.rows(_NOW[self.kind])
        return int(now)

    def skips_locked(self) -> bool:
        """Ask whether the database knows `FOR UPDATE SKIP LOCKED`: PostgreSQL, MariaDB since 10.6 and MySQL since 8.0.1 do."""
        if self.kind != MYSQL:
            return self.kind == POSTGRESQL
        [(version,)] = self.rows("SELECT VERSION()")
        return version_skips_locked(str(version))


def version_skips_locked(version: str) -> bool:
    """Return whether a MariaDB or MySQL of this `VERSION()` knows `FOR UPDATE SKIP LOCKED`."""
    found = tuple(map(int, _VERSION.findall(version)[:3]))
    return found >= ((10, 6) if "mariadb" in version.lower() else (8, 0, 1))


_NOW = {
    SQLITE: "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    MYSQL: "SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS UNSIGNED)",
    POSTGRESQL: "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
}


def _spelt(sql: str, style: str) -> str:
    if style == "qmark":
        return sql
    if style in {"format", "pyformat"}:
        return sql.replace("?", "%s")
    mark = {"numeric": ":", "numeric_dollar": "$"}.get(style)
    if mark is None:
        raise ConfigError(f"drivers with paramstyle {style!r} are not supported: use one with qmark, format or numeric")
    first, *rest = sql.split("?")
    return first + "".join(f"{mark}{number}{part}" for number, part in enumerate(rest, 1))


def statements_of(target: Any) -> Statements:
    """Return `Statements` on a connection or session.

    Raises TypeError: it is none, or an asynchronous one. ConfigError: the database or driver is not supported; it is in
    autocommit mode, so that what belongs together would not be committed together.
    """
    if hasattr(target, "run_sync"):
        raise TypeError(f"{type(target).__name__} is asynchronous: use the call for asyncio")
    if hasattr(target, "exec_driver_sql"):
        return _of_sqlalchemy(target)
    if hasattr(target, "get_bind") and hasattr(target, "connection"):
        return _of_sqlalchemy(target.connection())
    if not hasattr(target, "cursor"):
        raise TypeError(
            f"{target!r:.100} is no connection: pass one of DB-API, or a connection or session of SQLAlchemy"
        )
    inner = getattr(target, "dbapi_connection", None) or target  # a proxy of SQLAlchemy's pool
    for cls in type(inner).__mro__:
        kind, style = _DRIVERS.get(cls.__module__.split(".")[0], ("", ""))
        if kind:
            _check_transactional(inner, kind)
            return Statements(target, kind, style, sqlalchemy=False)
    raise ConfigError(
        f"connections of {type(inner).__module__} are not supported: use {', '.join(_DRIVERS)}, or SQLAlchemy"
    )


def _of_sqlalchemy(connection: Any) -> Statements:
    dialect = connection.dialect
    if dialect.name not in _KINDS:
        raise ConfigError(
            f"databases of kind {dialect.name} are not supported: use SQLite, MariaDB, MySQL or PostgreSQL"
        )
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        raise ConfigError(_AUTOCOMMIT)
    return Statements(connection, _KINDS[dialect.name], dialect.paramstyle, sqlalchemy=True)


_AUTOCOMMIT = "the connection commits each statement by itself: turn autocommit off, or begin a transaction first"


def _check_transactional(connection: Any, kind: str) -> None:
    if kind == SQLITE:
        alone = connection.isolation_level is None and not connection.in_transaction
        alone = alone and getattr(connection, "autocommit", -1) is not False  # Python 3.12's way
    else:
        found = getattr(connection, "get_autocommit", None)  # PyMySQL and mysqlclient; others have an attribute
        alone = bool(found()) if callable(found) else getattr(connection, "autocommit", False) is True
    if alone:
        raise ConfigError(_AUTOCOMMIT)
