"""Steps at which a process dies by kill -9: statements, commits and sends of what is counted.

The process says where it dies, so that a test knows which steps it has reached.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

from tests.outbox.databases import connect

TABLES = ("metaq_outbox", "metaq_seen", "orders", "bills")


class Steps:
    """Counts while it is told to. Args: last: the number at which the process dies."""

    def __init__(self, last: int) -> None:
        self.count, self._last, self._counting = 0, last, False

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """A block whose steps count."""
        self._counting = True
        yield
        self._counting = False

    @contextlib.contextmanager
    def around(self, what: str) -> Iterator[None]:
        """Two steps: before what the block does, and behind it."""
        self.at(f"before {what}")
        yield
        self.at(f"behind {what}")

    def at(self, what: str) -> None:
        if not self._counting:
            return
        self.count += 1
        if self.count == self._last:
            print(what, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def name_of(statement: str) -> str:
    """`INSERT metaq_seen`; statements without a table are `SELECT`."""
    words = statement.split()
    return " ".join([words[0], *(word for word in words if word in TABLES)][:2])


class Cursor:
    def __init__(self, cursor: Any, steps: Steps) -> None:
        self._cursor, self._steps = cursor, steps

    def execute(self, sql: str, *values: Any) -> None:
        with self._steps.around(name_of(sql)):
            self._cursor.execute(sql, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class Connection:
    """A connection whose statements and commits are steps; `dbapi_connection` as in a pool of SQLAlchemy."""

    def __init__(self, url: str, steps: Steps) -> None:
        self.dbapi_connection, self._steps = connect(url), steps

    def cursor(self) -> Cursor:
        return Cursor(self.dbapi_connection.cursor(), self._steps)

    def commit(self) -> None:
        with self._steps.around("commit"):
            self.dbapi_connection.commit()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dbapi_connection, name)
