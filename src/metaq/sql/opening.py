"""Opens a database by its address: MariaDB, MySQL, PostgreSQL, or a file of SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from metaq.errors import ConfigError, MetaqError
from metaq.sql.address import Address, DatabaseAway, address_of, driver_text

_SQLITE = "sqlite:///"
SQLITE_SECONDS = 10.0
"""How long another writer of the file is waited for."""


class Connecting(Protocol):
    """Makes connections, and knows what their faults mean."""

    def connect(self) -> Any:
        """Return a new DB-API connection, without autocommit. Raises what the driver raises."""
        ...

    def error_of(self, fault: Exception) -> MetaqError | None:
        """Return the error for a driver's fault, DatabaseAway if a retry may succeed; None: it is no fault of the driver."""
        ...


class Database:
    """A database by its URL.

    Args:
        url: `mysql://user@host:port/database`, `postgresql://...`, or `sqlite:///path`, whose file must exist.
        password: beats that of the URL.
        option: where the URL is from, for the texts.
        answer_seconds: of a server: longest wait for an answer; None: as long as it takes.

    Raises ConfigError: no such URL, no such file, the driver is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        environment: Mapping[str, str] | None = None,
        option: str = "database",
        answer_seconds: float | None = None,
    ) -> None:
        self._address: Address | None = None
        self._errors: tuple[type[Exception], ...] = (sqlite3.Error,)
        if url.startswith(_SQLITE):
            path = Path(url.removeprefix(_SQLITE))
            if not path.is_file():
                raise ConfigError(f"{option}: there is no file {path}")
            self.kind, self._place = "sqlite", str(path)
            self.connect: Callable[[], Any] = lambda: sqlite3.connect(path, timeout=SQLITE_SECONDS)
            return
        address = address_of(url, "", environment, option=option, others=", or sqlite:///path")
        if password is not None:
            address = Address(
                address.kind, address.host, address.port, address.user, password, address.database, address.more
            )
        self.kind, self._place, self._address = address.kind, str(address), address
        driver, self._errors = _driver(address, option)
        self._passes: Callable[[Exception], bool] = driver.passes
        self.connect = lambda: driver.connect(address, answer_seconds=answer_seconds)

    def __str__(self) -> str:
        return self._place

    def error_of(self, fault: Exception) -> MetaqError | None:
        """As `Connecting.error_of`; the text is without the password."""
        if not isinstance(fault, self._errors):
            return None
        if self._address is None:
            return MetaqError(f"{self._place}: {fault}")
        kind = DatabaseAway if self._passes(fault) else MetaqError
        return kind(f"{self._place}: {driver_text(fault, self._address)}")


class OwnConnections:
    """Connections that an application makes itself. Args: make: returns a new one of DB-API."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.connect = make

    def __str__(self) -> str:
        return "the application's database"

    def error_of(self, fault: Exception) -> MetaqError | None:
        """As `Connecting.error_of`: whatever is raised may pass, since nobody knows the driver."""
        text = " ".join(str(fault).split())
        return DatabaseAway(f"{self}: {type(fault).__name__}{f' {text}' if text else ''}")


def _driver(address: Address, option: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return the module that connects there, and the errors that its driver raises."""
    try:
        if address.kind == "mysql":
            import pymysql

            from metaq.sql import mysql

            return mysql, (pymysql.Error,)
        import psycopg

        from metaq.sql import postgresql
    except ImportError as fault:
        extra = "mysql" if address.kind == "mysql" else "postgres"
        raise ConfigError(f"{option} {address.kind} needs {fault.name}: pip install 'pymetaq[{extra}]'") from None
    return postgresql, (psycopg.Error,)


@contextlib.contextmanager
def opened(
    url: str, *, password: str | None = None, environment: Mapping[str, str] | None = None, option: str = "database"
) -> Iterator[Any]:
    """A DB-API connection for a block; closing it rolls back what was not committed.

    Arguments and ConfigError as of `Database`. Raises also DatabaseAway, MetaqError: for a driver's fault, also inside of the block; the
    text is without the password.
    """
    database = Database(url, password=password, environment=environment, option=option)
    connection = None
    try:
        connection = database.connect()
        yield connection
    except Exception as fault:
        error = database.error_of(fault)
        if error is None:
            raise
        raise error from None
    finally:
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()
