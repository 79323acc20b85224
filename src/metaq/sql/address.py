"""Addresses of databases, names in SQL, and faults of drivers as texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from metaq.errors import ConfigError, ConnectionFailed

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


def address_of(
    url: str,
    password_env: str = "",
    environment: Mapping[str, str] | None = None,
    *,
    option: str = "target",
    others: str = "",
) -> Address:
    """Parse an address, `KIND://user@host:port/database`. Raises ConfigError, whose text does not contain the password.

    Args:
        password_env: variable of `environment` that has the password.
        option: its name, for the texts.
        others: addresses that the caller takes besides these, for the texts.
    """
    parts = urlsplit(url)
    kind = _KINDS.get(parts.scheme)
    if kind is None:
        raise ConfigError(
            f"{option} begins with {parts.scheme or url[:20]!r}: need mysql://user@host:port/database, postgresql://...{others}"
        )
    database = unquote(parts.path.strip("/"))
    try:
        port = parts.port or _PORTS[kind]
    except ValueError as fault:
        raise ConfigError(f"{option}: {fault}") from None
    if not parts.hostname or not parts.username or not database or "/" in database:
        raise ConfigError(f"{option} must say user, host and database: {parts.scheme}://user@host:port/database")
    more = dict(parse_qsl(parts.query))
    if unknown := more.keys() - _MORE[kind]:
        raise ConfigError(f"{option} has {', '.join(sorted(unknown))}: {kind} takes {', '.join(sorted(_MORE[kind]))}")
    password = unquote(parts.password or "")
    if password_env:
        if environment is None or password_env not in environment:
            raise ConfigError(f"passwordEnv: there is no environment variable {password_env}")
        password = environment[password_env]
    return Address(kind, parts.hostname, port, unquote(parts.username), password, database, more)


class DatabaseAway(ConnectionFailed):
    """The database could not be reached, or closed the connection."""


def doubled(name: str, mark: str) -> str:
    """Quote an identifier with `mark`. Percent signs are doubled, because drivers look for `%s` in the whole statement."""
    if not name or "\0" in name:
        raise ConfigError(f"{name!r} can be no name of a table or column")
    return mark + name.replace(mark, mark * 2).replace("%", "%%") + mark


def driver_text(fault: Exception, address: Address) -> str:
    """Return the text of a driver's fault, in one line and without the password."""
    text = " ".join(" ".join(str(part) for part in fault.args).split()) or type(fault).__name__
    return text.replace(address.password, "***") if address.password else text
