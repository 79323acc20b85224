"""Sessions of SQLAlchemy as a resource: `Session(twophase=True)`, over one database or several.

SQLAlchemy names the branches; the names are noted before they are prepared, and found again by `Connection.recover_twophase`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session

from metaq.errors import ConfigError, NotSupported
from metaq.xa.resource import Branch, BranchName, InDoubt, checked_name

__all__ = ["SqlAlchemySessions"]


class SqlAlchemySessions:
    """Sessions that `make` makes; `enlist` returns one. Do not commit it, close it, or roll it back: the transaction does.

    Args:
        make: returns a new `Session(twophase=True)`: a sessionmaker.
        engines: all that its sessions may use, always in the same order.
        name: of the resource.
    """

    def __init__(self, make: Callable[[], Session], engines: Engine | Sequence[Engine], name: str = "database") -> None:
        self.name, self._make = checked_name(name), make
        self._engines = [engines] if isinstance(engines, Engine) else list(engines)

    def begin(self, name: BranchName, note: Callable[[str], None]) -> Branch[Session]:  # noqa: ARG002  SQLAlchemy makes the names
        """Begin a branch, a new session. As `Resource.begin`. Raises ConfigError: the session is not two-phase."""
        session = self._make()
        if not session.twophase:
            raise ConfigError(f"the sessions of {self.name} are not two-phase: make them with twophase=True")
        return SessionBranch(session, self._engines, note)

    def in_doubt(self, prefix: str) -> tuple[list[InDoubt], str]:  # noqa: ARG002  they are noted
        """Return `[], ""`: branches are noted before they are prepared. As `Resource.in_doubt`."""
        return [], ""

    def settle(self, text: str, *, commit: bool) -> None:
        """End the prepared branches of a session. As `Resource.settle`. Raises what SQLAlchemy raises."""
        for branch in text.split(" "):
            number, _, xid = branch.partition("/")
            engine = self._engines[int(number)]
            with engine.connect() as connection:
                if connection.dialect.name in {"mysql", "mariadb"}:
                    # Otherwise the connection counts as in a transaction, in which no branch of another is ended.
                    connection.execution_options(isolation_level="AUTOCOMMIT")
                found = [_text(one) for one in connection.recover_twophase()]
                if xid not in found:
                    continue
                if commit:
                    connection.commit_prepared(xid, recover=True)
                else:
                    connection.rollback_prepared(xid, recover=True)


class SessionBranch:
    """One session. `handle`: it."""

    def __init__(self, session: Session, engines: Sequence[Engine], note: Callable[[str], None]) -> None:
        self.handle, self._engines, self._note = session, engines, note
        self._xids: list[str] = []
        self._preparing = False
        event.listen(session, "after_begin", self._begun)

    def _begun(self, _session: Session, _transaction: object, connection: Connection) -> None:
        """A database takes part."""
        dialect: Any = connection.dialect
        if getattr(dialect, "is_mariadb", False) and (dialect.server_version_info or ()) < (10, 5):
            raise NotSupported(
                f"{connection.engine.url!r} is a MariaDB that rolls a prepared branch back when its connection ends: need 10.5 or newer"
            )
        if connection.engine not in self._engines:
            raise ConfigError(
                f"{connection.engine!r} is not among the engines of this resource: recovery would not find it"
            )
        begun: Any = connection.get_transaction()
        text = f"{self._engines.index(connection.engine)}/{_text(begun.xid)}"
        self._xids.append(text)
        if self._preparing:
            self._note(text)

    @property
    def text(self) -> str:
        return " ".join(self._xids)

    def prepare(self) -> bool:
        self.handle.flush()  # this may bring another database in
        if not self._xids:
            self.handle.close()
            return False
        self._note(self.text)
        self._preparing = True
        self.handle.prepare()
        return True

    def commit(self) -> None:
        try:
            self.handle.commit()
        finally:
            self.handle.close()

    def rollback(self) -> None:
        try:
            self.handle.rollback()
        finally:
            self.handle.close()


def _text(xid: object) -> str:
    return xid.decode("latin-1") if isinstance(xid, bytes) else str(xid)
