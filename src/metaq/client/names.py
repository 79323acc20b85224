"""Checks of what users pass in, with errors for users."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from metaq.errors import BadRequest, ConfigError


def checked(check: Callable[[str], str], name: str) -> str:
    """`check(name)`, whose BadRequest, meant for peers, becomes a ConfigError. Raises TypeError for what is no text."""
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no name: pass a str")
    try:
        return check(name)
    except BadRequest as error:
        raise ConfigError(str(error)) from None


def milliseconds(time: float | dt.datetime) -> int:
    """A moment as milliseconds since the epoch. A datetime without zone is local time; a number is seconds."""
    seconds = time.timestamp() if isinstance(time, dt.datetime) else float(time)
    return round(seconds * 1000)
