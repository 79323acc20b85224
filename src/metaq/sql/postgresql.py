"""Connections to PostgreSQL, by psycopg 3."""

from __future__ import annotations

from typing import Any

import psycopg

from metaq.sql.address import Address

_PASSING = ("08", "57P", "53300", "40001", "40P01")
"""Prefixes of SQLSTATEs that a retry may cure: connection, shutdown or start of the server, too many clients, locks."""


def connect(address: Address, *, answer_seconds: float | None = None) -> Any:
    """Return a new connection, without autocommit.

    Args: answer_seconds: longest time of a statement, and of silence of the network; None: as long as it takes.
    """
    return psycopg.connect(
        host=address.host, port=address.port, user=address.user, password=address.password or None,
        dbname=address.database, autocommit=False,
        **{"connect_timeout": "10", **_limits(answer_seconds), **address.more},
    )  # fmt: skip


def _limits(seconds: float | None) -> dict[str, str]:
    if seconds is None:
        return {}
    # libpq has no time-out of its own for an answer. The server ends what takes too long; the system's TCP notices one that is gone.
    return {
        "options": f"-c statement_timeout={round(seconds * 1000)}",
        "tcp_user_timeout": str(round(seconds * 1000)),
        "keepalives_idle": str(max(1, round(seconds / 3))),
        "keepalives_interval": str(max(1, round(seconds / 6))),
        "keepalives_count": "4",
    }


def passes(fault: Exception) -> bool:
    """Return whether a retry may succeed: the server is away, or another transaction held a lock."""
    if not isinstance(fault, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    state = fault.sqlstate  # None: a fault of the connection, not an answer of the server.
    return state is None or state.startswith(_PASSING)
