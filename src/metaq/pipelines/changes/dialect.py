"""Interface of database dialects, and addresses of databases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from metaq.errors import ConfigError, MetaqError

_KINDS = {"mysql": "mysql", "mariadb": "mysql", "postgresql": "postgresql", "postgres": "postgresql"}
_PORTS = {"mysql": 3306, "postgresql": 5432}
_MORE = {"mysql": {"ssl_ca", "connect_timeout"}, "postgresql": {"sslmode", "sslrootcert", "connect_timeout", "options"}}


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a database. Its text does not contain the password."""

    kind: str
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    more: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}://{self.user}@{self.host}:{self.port}/{self.database}"


def address_of(url: str, password_env: str = "", environment: Mapping[str, str] | None = None) -> Address:
    """Parse the options `target` and `passwordEnv`. Raises ConfigError, whose text does not contain the password."""
    parts = urlsplit(url)
    kind = _KINDS.get(parts.scheme)
    if kind is None:
        raise ConfigError(
            f"target begins with {parts.scheme or url[:20]!r}: need mysql://user@host:port/database or postgresql://..."
        )
    database = unquote(parts.path.strip("/"))
    try:
        port = parts.port or _PORTS[kind]
    except ValueError as fault:
        raise ConfigError(f"target: {fault}") from None
    if not parts.hostname or not parts.username or not database or "/" in database:
        raise ConfigError(f"target must say user, host and database: {parts.scheme}://user@host:port/database")
    more = dict(parse_qsl(parts.query))
    if unknown := more.keys() - _MORE[kind]:
        raise ConfigError(f"target has {', '.join(sorted(unknown))}: {kind} takes {', '.join(sorted(_MORE[kind]))}")
    password = unquote(parts.password or "")
    if password_env:
        if environment is None or password_env not in environment:
            raise ConfigError(f"passwordEnv: there is no environment variable {password_env}")
        password = environment[password_env]
    return Address(kind, parts.hostname, port, unquote(parts.username), password, database, more)


class DatabaseAway(MetaqError):
    """The database could not be reached, or closed the connection."""


class Dialect(Protocol):
    """One kind of database. Statements have `%s` for values; `quote` quotes names."""

    errors: tuple[type[Exception], ...]
    """Exceptions of its driver."""
    upsert_needs_one_index: bool
    """Whether an upsert checks all unique indexes of a table, so that it may update a row with another key."""
    text_type: str
    """Column type of long texts."""
    key_text_type: str
    """Column type of texts in a key."""

    def connect(self) -> Any:
        """Return a new connection, without autocommit."""

    def passes(self, fault: Exception) -> bool:
        """Return whether a retry may succeed: the server is away, or another transaction held a lock."""

    def quote(self, name: str) -> str: ...

    def column_type(self, kind: str, *, key: bool) -> str: ...

    def upsert(self, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
        """Return an upsert statement."""

    def value(self, value: Any) -> Any:
        """Convert a value to one that the driver accepts."""

    def columns(self, cursor: Any, table: str) -> list[str]:
        """Return the columns of a table; []: there is no such table."""

    def unique_indexes(self, cursor: Any, table: str) -> Iterable[tuple[str, ...]]:
        """Return the columns of each unique index, the primary key included."""


def doubled(name: str, mark: str) -> str:
    """Quote an identifier with `mark`. Percent signs are doubled, because drivers look for `%s` in the whole statement."""
    if not name or "\0" in name:
        raise ConfigError(f"{name!r} can be no name of a table or column")
    return mark + name.replace(mark, mark * 2).replace("%", "%%") + mark


def driver_text(fault: Exception, address: Address) -> str:
    """Return the text of a driver's fault, in one line and without the password."""
    text = " ".join(" ".join(str(part) for part in fault.args).split()) or type(fault).__name__
    return text.replace(address.password, "***") if address.password else text
