"""Databases as resources: by the two-phase calls of PEP 249 (psycopg), and by MariaDB's and MySQL's XA statements (pymysql).

A transaction has a connection of its own from `connect`, which is closed at its end.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from metaq.errors import NotSupported
from metaq.xa.resource import FORMAT, Branch, BranchName, InDoubt, checked_name

Connect = Callable[[], Any]
"""Returns a new connection of PEP 249, without a transaction."""

_NOT_THERE: Final = 1397
"""MariaDB's XAER_NOTA: no such branch, or another session still has it."""
_LEAVE_SECONDS: Final = 30.0
"""Longest wait for the server to notice that the process which had a branch is dead."""
_PAUSE_SECONDS: Final = 0.1


class TpcDatabase:
    """A database whose driver has `tpc_begin`, `tpc_prepare`, `tpc_commit`, `tpc_rollback`, `tpc_recover` and `xid`: PostgreSQL by
    psycopg, whose `max_prepared_transactions` must be above 0. `enlist` returns the connection.

    Args: connect: returns a new connection; `name`: of the resource.
    """

    def __init__(self, connect: Connect, name: str = "database") -> None:
        self.name, self._connect = checked_name(name), connect

    def begin(self, name: BranchName, note: Callable[[str], None]) -> Branch[Any]:  # noqa: ARG002  tpc_recover lists branches
        """Begin a branch on a new connection. As `Resource.begin`. Raises what the driver raises."""
        return TpcBranch(self._connect(), name)

    def in_doubt(self, prefix: str) -> tuple[list[InDoubt], str]:
        """Return the prepared branches that the database lists. As `Resource.in_doubt`."""
        connection = self._connect()
        try:
            return [
                InDoubt(transaction, f"{transaction}:{number}")
                for (transaction, number) in self._found(connection)
                if transaction.startswith(prefix)
            ], ""
        finally:
            connection.close()

    def settle(self, text: str, *, commit: bool) -> None:
        """End a prepared branch by its text. As `Resource.settle`. Raises what the driver raises."""
        transaction, _, number = text.partition(":")
        connection = self._connect()
        try:
            xid = self._found(connection).get((transaction, number))
            if xid is not None:
                end = connection.tpc_commit if commit else connection.tpc_rollback
                end(xid)
        finally:
            connection.close()

    @staticmethod
    def _found(connection: Any) -> dict[tuple[str, str], Any]:
        """Return (transaction, number) → xid, of ours in this database."""
        # PostgreSQL lists those of all databases, and ends one only in its own.
        own = getattr(getattr(connection, "info", None), "dbname", None)
        return {
            (str(xid[1]), str(xid[2])): xid
            for xid in connection.tpc_recover()
            if xid[0] == FORMAT and getattr(xid, "database", None) in {None, own}
        }


class TpcBranch:
    """One transaction. `handle`: its connection."""

    def __init__(self, connection: Any, name: BranchName) -> None:
        self.handle, self.text = connection, name.text
        try:
            connection.tpc_begin(connection.xid(FORMAT, name.transaction, str(name.number)))
        except BaseException:
            connection.close()
            raise

    def prepare(self) -> bool:
        self.handle.tpc_prepare()
        return True

    def commit(self) -> None:
        try:
            self.handle.tpc_commit()
        finally:
            self.handle.close()

    def rollback(self) -> None:
        try:
            self.handle.tpc_rollback()
        finally:
            self.handle.close()


class MariaDb:
    """A MariaDB from 10.5 on, or a MySQL from 5.7.7 on: older servers roll a prepared branch back when its connection ends, which is
    refused. `enlist` returns the connection.

    Args: connect: returns a new connection of pymysql, or of a driver whose errors have the server's code first; `name`: of the
    resource.
    """

    def __init__(self, connect: Connect, name: str = "database") -> None:
        self.name, self._connect = checked_name(name), connect
        self._checked = False

    def begin(self, name: BranchName, note: Callable[[str], None]) -> Branch[Any]:  # noqa: ARG002  XA RECOVER lists branches
        """Begin a branch on a new connection. As `Resource.begin`. Raises NotSupported: the server is too old; what the driver raises."""
        connection = self._connect()
        try:
            if not self._checked:
                [[version]] = _rows(connection, "SELECT VERSION()")
                check_version(str(version))
                connection.rollback()
                self._checked = True
            return MariaDbBranch(connection, name)
        except BaseException:
            connection.close()
            raise

    def in_doubt(self, prefix: str) -> tuple[list[InDoubt], str]:
        """Return the prepared branches that the database lists. As `Resource.in_doubt`."""
        connection = self._connect()
        try:
            return [
                InDoubt(transaction, f"{transaction}:{number}")
                for transaction, number in _listed(connection)
                if transaction.startswith(prefix)
            ], ""
        finally:
            connection.close()

    def settle(self, text: str, *, commit: bool) -> None:
        """End a prepared branch by its text. As `Resource.settle`. Raises NotSupported: another session holds it for 30 s; what the driver
        raises.
        """
        transaction, _, number = text.partition(":")
        wanted = (transaction, number)
        connection = self._connect()
        try:
            # Without autocommit MariaDB takes a connection for one that is in a transaction, in which it ends no branch of another.
            _do(connection, "SET autocommit=1")
            for _ in range(int(_LEAVE_SECONDS / _PAUSE_SECONDS)):
                if wanted not in _listed(connection):
                    return
                try:
                    _do(connection, f"XA {'COMMIT' if commit else 'ROLLBACK'} {_literal(transaction, number)}")
                except Exception as error:
                    if not error.args or error.args[0] != _NOT_THERE:
                        raise
                    threading.Event().wait(_PAUSE_SECONDS)
            raise NotSupported(f"another session of the server holds branch {text} for {_LEAVE_SECONDS:g} s")
        finally:
            connection.close()


class MariaDbBranch:
    """One transaction. `handle`: its connection."""

    def __init__(self, connection: Any, name: BranchName) -> None:
        self.handle, self.text = connection, name.text
        self._xid = _literal(name.transaction, str(name.number))
        self._working = True
        _do(connection, f"XA START {self._xid}")

    def prepare(self) -> bool:
        self._end()
        _do(self.handle, f"XA PREPARE {self._xid}")
        return True

    def commit(self) -> None:
        try:
            _do(self.handle, f"XA COMMIT {self._xid}")
        finally:
            self.handle.close()

    def rollback(self) -> None:
        try:
            if self._working:
                self._end()
            _do(self.handle, f"XA ROLLBACK {self._xid}")
        finally:
            self.handle.close()

    def _end(self) -> None:
        self._working = False
        _do(self.handle, f"XA END {self._xid}")


def check_version(version: str) -> None:
    """Raise NotSupported: a server of this `VERSION()` loses prepared branches."""
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    kind, least = ("MariaDB", (10, 5)) if "maria" in version.lower() else ("MySQL", (5, 7, 7))
    if numbers < least:
        raise NotSupported(
            f"{kind} {version} rolls a prepared branch back when its connection ends, so that a crash may keep the messages and lose "
            f"the rows: need {'.'.join(map(str, least))} or newer"
        )


def _literal(transaction: str, number: str) -> str:
    # Both are letters and digits, so there is nothing to escape.
    return f"X'{transaction.encode().hex()}',X'{number.encode().hex()}',{FORMAT}"


def _do(connection: Any, statement: str) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
    finally:
        cursor.close()


def _rows(connection: Any, statement: str) -> list[Any]:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
        return [list(row.values()) if isinstance(row, dict) else list(row) for row in cursor.fetchall()]
    finally:
        cursor.close()


def _listed(connection: Any) -> Iterable[tuple[str, str]]:
    """Return (transaction, number) of our prepared branches."""
    found = set()
    for format_id, global_length, branch_length, data in _rows(connection, "XA RECOVER"):
        text = data.decode("latin-1") if isinstance(data, bytes) else str(data)
        if int(format_id) == FORMAT and len(text) == int(global_length) + int(branch_length):
            found.add((text[: int(global_length)], text[int(global_length) :]))
    return found
