"""Predicates: an operator's own functions that select messages at the broker, by body too (docs/predicates.md)."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from metaq.errors import ConfigError

PREDICATE: Final = "PREDICATE"
"""Expression type of a subscription by predicate."""
NO, YES, RAISED, FAILED, OUT_OF_MEMORY = 0, 1, 2, 3, 0xFF
"""Verdicts of a predicate: no, yes, it raised, its process failed. OUT_OF_MEMORY is the process's own last word."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z")
_PLACE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z")


class Predicate(Struct, frozen=True):
    """Messages for which a function that is registered at the brokers is true: `topics={"orders": Predicate("large")}`.

    Only a MetaQ broker knows any. Raises ConfigError: no predicate can have the name.
    """

    name: str
    """Name under which the brokers have the function (docs/predicates.md)."""

    def __post_init__(self) -> None:
        checked_name(self.name)


def checked_name(name: object) -> str:
    """Return `name` if a predicate can have it. Raises ConfigError; TypeError: no text."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a predicate is {name!r}: pass a str")
    if not _NAME.match(name):
        raise ConfigError(f"a predicate cannot be called {name[:60]!r}: use 1 to 100 letters, digits, and any of _ . -")
    return name


def predicates_of(text: str) -> dict[str, str]:
    """Parse `large=shop.filters:is_large;other=...` (filterPredicates) to name → `module:function`. Raises
    ConfigError."""
    found: dict[str, str] = {}
    for piece in filter(None, (piece.strip() for piece in text.split(";"))):
        name, _, place = (part.strip() for part in piece.partition("="))
        if not _PLACE.match(place):
            raise ConfigError(f"filterPredicates: {piece[:80]!r} is not NAME=MODULE:FUNCTION")
        if checked_name(name) in found:
            raise ConfigError(f"filterPredicates: there are two predicates {name!r}")
        found[name] = place
    return found
