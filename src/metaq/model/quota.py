"""Quotas: limits of what one client, account or address may take of a server (docs/limits.md)."""

from __future__ import annotations

import enum
import re
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict, fields

from metaq.errors import ConfigError

EVERY: Final = "*"
"""Name of the quota that each subject of a kind has which has none of its own."""
NAME_CHARS_MAX: Final = 255
VALUE_MAX: Final = 2**53
_UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_VALUE: Final = re.compile(r"(\d{1,16})\s*([KMG]?)(?:i?B)?\Z", re.ASCII)


class QuotaKind(enum.Enum):
    """What a quota is for."""

    # Members are singletons, and the hash of enum.Enum is a call of Python code.
    __hash__ = object.__hash__

    CLIENT = "client"
    """The client id of a connection's heartbeat; of a connection without one, the connection (`host:port`)."""
    ACCOUNT = "account"
    """The account that access control proves."""
    ADDRESS = "address"
    """The peer's host."""


Subject: TypeAlias = tuple[QuotaKind, str]


class QuotaLimits(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Limits of one subject. None: as the next more general quota says; 0: no limit."""

    connections: int | None = None
    """Connections that are open at a time."""
    connections_per_second: int | None = None
    """New connections; of an address only."""
    requests_per_second: int | None = None
    """Requests."""
    bytes_in_per_second: int | None = None
    """Bytes of requests."""
    bytes_out_per_second: int | None = None
    """Bytes of answers."""
    held_pulls: int | None = None
    """Pulls that wait for messages; further ones are answered at once."""
    topics: int | None = None
    """Topics that sends have made since the broker's start, and that are still there. Not of a client."""
    groups: int | None = None
    """The same of groups."""

    def over(self, general: QuotaLimits) -> QuotaLimits:
        """Return these limits, with those of a more general quota where this one says nothing."""
        mine = {name: value for name, value in asdict(self).items() if value is not None}
        return QuotaLimits(**{**asdict(general), **mine})

    @property
    def limited(self) -> bool:
        """Whether anything is limited."""
        return any(asdict(self).values())

    def __str__(self) -> str:
        """Return the text that `parse_limits` reads."""
        named = ((CAMEL[name], value) for name, value in asdict(self).items())
        return ",".join(f"{name}={value}" for name, value in named if value is not None)


NO_LIMITS: Final = QuotaLimits()
CAMEL: Final = {field.name: field.encode_name for field in fields(QuotaLimits)}
_SNAKE: Final = {camel: name for name, camel in CAMEL.items()}
_ONLY: Final = {
    "connections_per_second": (QuotaKind.ADDRESS,),
    "topics": (QuotaKind.ACCOUNT, QuotaKind.ADDRESS),
    "groups": (QuotaKind.ACCOUNT, QuotaKind.ADDRESS),
}
"""Limits that only these kinds have: a client id is what a client says of itself, and comes with its first heartbeat."""


class QuotaUse(Struct, frozen=True, rename="camel"):
    """A quota, and what its subject takes now."""

    kind: str
    """`client`, `account` or `address`."""
    name: str
    """Which client, account or address; `*`: each that has no quota of its own."""
    limits: QuotaLimits
    """Those in force, defaults included."""
    own: bool = False
    """Whether it has a quota of its own."""
    connections: int = 0
    """Open now."""
    held_pulls: int = 0
    """Pulls that wait for messages now."""
    requests: int = 0
    """Since the subject was first seen, as the next four."""
    bytes_in: int = 0
    """Bytes of its requests."""
    bytes_out: int = 0
    """Bytes of answers to it."""
    delayed: int = 0
    """Times that its answers were held back, or that it was told to wait."""
    refused: int = 0
    """Requests and connections that were refused."""
    wait_ms: int = 0
    """What a request would have to wait now."""


def parse_limits(text: str, kind: QuotaKind, what: str = "the quota") -> QuotaLimits:
    """Read `requestsPerSecond=1000,bytesInPerSecond=10M`. Raises ConfigError. `what`: for errors."""
    found = dict[str, int]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (word.strip() for word in part.partition("="))
        name, match = _SNAKE.get(key), _VALUE.match(value)
        if name is None or kind not in _ONLY.get(name, tuple(QuotaKind)):
            known = ", ".join(CAMEL[name] for name in CAMEL if kind in _ONLY.get(name, tuple(QuotaKind)))
            raise ConfigError(f"{what}: {key[:40]!r} is no limit of a {kind.value}; there are {known}")
        if not equals or match is None:
            raise ConfigError(
                f"{what}: {key}={value[:40]!r}: need a whole number, perhaps with K, M or G behind it; 0 is no limit"
            )
        amount = int(match[1]) * _UNITS[match[2]]
        if amount > VALUE_MAX:
            raise ConfigError(f"{what}: {key}={value[:40]} is above {VALUE_MAX}")
        found[name] = amount
    return QuotaLimits(**found)


def check_subject(kind: str, name: str) -> Subject:
    """Return the subject of a quota. Raises ConfigError: no such kind, or no name."""
    try:
        known = QuotaKind(kind)
    except ValueError:
        raise ConfigError(f"there are no quotas of a {kind[:40]!r}: say client, account or address") from None
    if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise ConfigError(f"{name[:40]!r} is no name of a {kind}: need 1 to {NAME_CHARS_MAX} printable characters")
    return known, name
