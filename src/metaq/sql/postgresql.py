"""Connections to PostgreSQL, by psycopg 3."""

from __future__ import annotations

from typing import Any

import psycopg

from metaq.sql.address import Address

_PASSING = ("08", "57P", "53300", "40001", "40P01")
"""Prefixes of SQLSTATEs that a retry may cure: connection, shutdown or start of the server, too many clients, locks."""


def connect(address: Address) -> Any:
    """Return a new connection, without autocommit."""
    return psycopg.connect(
        host=address.host, port=address.port, user=address.user, password=address.password or None,
        dbname=address.database, autocommit=False, **{"connect_timeout": "10", **address.more},
    )  # fmt: skip


def passes(fault: Exception) -> bool:
    """Return whether a retry may succeed: the server is away, or another transaction held a lock."""
    if not isinstance(fault, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    state = fault.sqlstate  # None: a fault of the connection, not an answer of the server.
    return state is None or state.startswith(_PASSING)
