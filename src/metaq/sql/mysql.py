"""Connections to MariaDB and MySQL, by PyMySQL."""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.constants import CLIENT, CR, ER

from metaq.sql.address import Address

_KILLED, _IDLE = 1927, 4031
"""Errors of a lost connection that PyMySQL has no names for: MariaDB's ER_CONNECTION_KILLED, MySQL's
ER_CLIENT_INTERACTION_TIMEOUT."""
_PASSING = frozenset({
    ER.CON_COUNT_ERROR, ER.SERVER_SHUTDOWN, ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK, CR.CR_CONNECTION_ERROR,
    CR.CR_CONN_HOST_ERROR, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, _KILLED, _IDLE,
})  # fmt: skip


def connect(address: Address, *, answer_seconds: float | None = None) -> Any:
    """Return a new connection, without autocommit, in UTC and strict.

    Args: answer_seconds: longest wait for an answer, then the connection counts as lost; None: as long as it takes.
    """
    return pymysql.connect(
        host=address.host, port=address.port, user=address.user, password=address.password, database=address.database,
        charset="utf8mb4", autocommit=False, connect_timeout=int(address.more.get("connect_timeout", 10)),
        read_timeout=answer_seconds, write_timeout=answer_seconds,
        # rowcount of an UPDATE counts matched rows; without it a row that has the values already looks missing.
        client_flag=CLIENT.FOUND_ROWS,
        # Without strict mode MySQL stores another value where one does not fit, instead of raising an error.
        init_command="SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
        ssl={"ca": address.more["ssl_ca"]} if "ssl_ca" in address.more else None,
    )  # fmt: skip


def passes(fault: Exception) -> bool:
    """Return whether a retry may succeed: the server is away, or another transaction held a lock."""
    # PyMySQL's answer on a connection that is closed.
    if isinstance(fault, pymysql.err.InterfaceError):
        return True
    return isinstance(fault, pymysql.err.OperationalError) and bool(fault.args) and fault.args[0] in _PASSING
