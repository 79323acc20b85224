"""Opens a database by its address: MariaDB, MySQL, PostgreSQL, or a file of SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from metaq.errors import ConfigError, MetaqError
from metaq.sql.address import Address, DatabaseAway, address_of, driver_text

_SQLITE = "sqlite:///"
SQLITE_SECONDS = 10.0
"""How long another writer of the file is waited for."""


@contextlib.contextmanager
def opened(
    url: str, *, password: str | None = None, environment: Mapping[str, str] | None = None, option: str = "database"
) -> Iterator[Any]:
    """A DB-API connection for a block; closing it rolls back what was not committed.

    Args:
        url: `mysql://user@host:port/database`, `postgresql://...`, or `sqlite:///path`, whose file must exist.
        password: beats that of the URL.
        option: where the URL is from, for the texts.

    Raises ConfigError: no such URL, no such file, the driver is not installed. DatabaseAway, MetaqError: for a driver's fault, also
    inside of the block; the text is without the password.
    """
    if url.startswith(_SQLITE):
        path = Path(url.removeprefix(_SQLITE))
        if not path.is_file():
            raise ConfigError(f"{option}: there is no file {path}")
        try:
            with contextlib.closing(sqlite3.connect(path, timeout=SQLITE_SECONDS)) as connection:
                yield connection
        except sqlite3.Error as fault:
            raise MetaqError(f"{path}: {fault}") from None
        return
    address = address_of(url, "", environment, option=option)
    if password is not None:
        address = Address(
            address.kind, address.host, address.port, address.user, password, address.database, address.more
        )
    with _of_server(address, option) as connection:
        yield connection


@contextlib.contextmanager
def _of_server(address: Address, option: str) -> Iterator[Any]:
    errors: tuple[type[Exception], ...]
    try:
        if address.kind == "mysql":
            import pymysql

            from metaq.sql import mysql as driver

            errors = (pymysql.Error,)
        else:
            import psycopg

            from metaq.sql import postgresql as driver  # type: ignore[no-redef]

            errors = (psycopg.Error,)
    except ImportError as fault:
        extra = "mysql" if address.kind == "mysql" else "postgres"
        raise ConfigError(f"{option} {address.kind} needs {fault.name}: pip install 'pymetaq[{extra}]'") from None
    connection = None
    try:
        connection = driver.connect(address)
        yield connection
    except errors as fault:
        kind = DatabaseAway if driver.passes(fault) else MetaqError
        raise kind(f"{address}: {driver_text(fault, address)}") from None
    finally:
        if connection is not None:
            with contextlib.suppress(*errors):
                connection.close()
