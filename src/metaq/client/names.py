"""Checks of what users pass in, with errors for users."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable

from metaq.errors import ConfigError, Refused

EARLIEST, LATEST = "earliest", "latest"
_ALIASES = {EARLIEST: EARLIEST, LATEST: LATEST, "first": EARLIEST, "last": LATEST}


def checked(check: Callable[[str], str], name: str) -> str:
    """`check(name)`, whose Refused, meant for peers, becomes a ConfigError. Raises TypeError for what is no text."""
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no name: pass a str")
    try:
        return check(name)
    except Refused as error:
        raise ConfigError(str(error)) from None


def start_of(start: str | float | dt.datetime) -> str | int:
    """Where to begin: "earliest", "latest", or milliseconds since the epoch.

    "first" and "last" are the same by RocketMQ's names. Raises ConfigError, and TypeError as `milliseconds`.
    """
    if not isinstance(start, str):
        return milliseconds(start)
    if start not in _ALIASES:
        raise ConfigError(f"start={start!r}: need 'earliest', 'latest', a datetime, or seconds since the epoch")
    return _ALIASES[start]


def milliseconds(time: float | dt.datetime) -> int:
    """A moment as milliseconds since the epoch. A datetime without zone is local time; a number is seconds.

    Raises: TypeError: something else. ConfigError: not a moment since 1970.
    """
    if isinstance(time, bool) or not isinstance(time, int | float | dt.datetime):
        raise TypeError(f"{time!r} is no moment: pass a datetime, or seconds since the epoch")
    seconds = time.timestamp() if isinstance(time, dt.datetime) else float(time)
    if not math.isfinite(seconds) or seconds < 0:
        raise ConfigError(f"{time!r} is no moment since 1970: pass a datetime, or seconds since the epoch")
    return round(seconds * 1000)
