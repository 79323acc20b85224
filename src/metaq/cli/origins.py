"""Where values came from that the clients of a command find in the environment: the option or context that put them there."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Final

_ORIGINS: Final[dict[str, str]] = {}
"""Name as errors have it → what the user wrote instead."""


def forget() -> None:
    """Begin a command."""
    _ORIGINS.clear()


def put(environ: MutableMapping[str, str], variable: str, value: str, origin: str) -> None:
    """Set a variable, and have errors that name it name its origin."""
    environ[variable] = value
    note(variable, origin)


def note(name: str, origin: str) -> None:
    """Have errors name `origin` where they would name `name`."""
    _ORIGINS[name] = origin


def in_words(error: Exception) -> str:
    """Return the text of an error, with the origins of the values that it names."""
    text = str(error)
    for name, origin in _ORIGINS.items():
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", lambda _, origin=origin: origin, text)  # type: ignore[misc]
    return text
