"""Databases of the tests of outbox and idempotence: SQLite, MariaDB and PostgreSQL, empty, by their drivers."""

from __future__ import annotations

import contextlib
import sqlite3
import time

import pytest

from metaq.sql import mysql, postgresql
from metaq.sql.address import address_of
from tests.interop import mariadb
from tests.interop import postgresql as postgresql_server
from tests.support import PATIENCE

KINDS = [
    "sqlite",
    pytest.param("mysql", marks=pytest.mark.interop),
    pytest.param("postgresql", marks=pytest.mark.interop),
]


@contextlib.contextmanager
def running(kind, folder):
    """URL of an empty database. Of kind `mysql` it is an old MariaDB, of kind `mariadb` one of today."""
    folder.mkdir(exist_ok=True)
    if kind == "sqlite":
        sqlite3.connect(folder / "shop.db").close()
        yield f"sqlite:///{folder / 'shop.db'}"
    elif kind in {"mysql", "mariadb"}:
        with mariadb.running(folder, mariadb.SERVER if kind == "mysql" else mariadb.WITH_XA) as address:
            server = mysql.connect(address_of(f"mysql://{address}/information_schema"))
            with contextlib.closing(server), server.cursor() as cursor:
                cursor.execute("CREATE DATABASE shop")
            yield f"mysql://{address}/shop"
    else:
        with postgresql_server.running() as address:
            yield f"postgresql://{address}/postgres"


def connect(url):
    """A DB-API connection, as an application opens one."""
    if url.startswith("sqlite:///"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=PATIENCE)
    address = address_of(url)
    return (mysql if address.kind == "mysql" else postgresql).connect(address)


def place(connection):
    """How the driver spells a value."""
    return "?" if isinstance(connection, sqlite3.Connection) else "%s"


def run(connection, sql, *values):
    cursor = connection.cursor()
    cursor.execute(sql.replace("?", place(connection)), values)
    return cursor.fetchall() if cursor.description else []


def until(condition, what):
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found
