"""Checks of names that users pass in, and namespaces, which prefix names (RocketMQ's `ns%topic`)."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable

from msgspec import Struct

from metaq.errors import ConfigError, Refused
from metaq.model import MessageQueue
from metaq.model.topics.system import SYSTEM_GROUP_PREFIX, SYSTEM_PREFIX, SYSTEM_TOPIC_NAMES
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_group, check_topic

EARLIEST, LATEST = "earliest", "latest"
_ALIASES = {EARLIEST: EARLIEST, LATEST: LATEST, "first": EARLIEST, "last": LATEST}

_SEPARATOR = "%"


class Namespace(Struct, frozen=True):
    """A namespace, which keeps equal names of topics and groups apart: at brokers they are `ns%name`, and `%RETRY%ns%group`.

    `wrapped` is for what goes to brokers and name servers, `plain` for what comes back to the user. Both leave alone
    what is in that form already, system names, and everything if the namespace has no name.
    """

    name: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)

    def wrapped(self, name: str) -> str:
        """Return a topic or group with the namespace, as at brokers."""
        prefix, rest = _split(name)
        if not self.name or not name or _is_system(name) or rest.startswith(self.name + _SEPARATOR):
            return name
        return f"{prefix}{self.name}{_SEPARATOR}{rest}"

    def plain(self, name: str) -> str:
        """Return a topic or group without the namespace, as users name it."""
        if not self.name:
            return name
        prefix, rest = _split(name)
        return prefix + rest.removeprefix(self.name + _SEPARATOR)

    def check_topic(self, name: str) -> str:
        """Check a topic's name. Raises ConfigError: with the namespace it is illegal; TypeError."""
        return checked(check_topic, self.wrapped(checked(check_topic, name)))

    def check_group(self, name: str) -> str:
        """Check a group's name, as `check_topic`."""
        return checked(check_group, self.wrapped(checked(check_group, name)))

    def wrapped_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.wrapped(queue.topic)) if self.name else queue

    def plain_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.plain(queue.topic)) if self.name else queue


def _split(name: str) -> tuple[str, str]:
    """Split off the prefix of a retry or dead-letter topic."""
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def _is_system(name: str) -> bool:
    return name in SYSTEM_TOPIC_NAMES or name.startswith((SYSTEM_PREFIX, SYSTEM_GROUP_PREFIX))


def checked(check: Callable[[str], str], name: str) -> str:
    """Check a name with `check`, and turn its Refused, meant for peers, into a ConfigError. Raises TypeError: no text."""
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no name: pass a str")
    try:
        return check(name)
    except Refused as error:
        raise ConfigError(str(error)) from None


def start_of(start: str | float | dt.datetime) -> str | int:
    """Parse a start position: "earliest", "latest", or milliseconds since the epoch.

    "first" and "last" are the same by RocketMQ's names. Raises ConfigError, and TypeError as `milliseconds`.
    """
    if not isinstance(start, str):
        return milliseconds(start)
    if start not in _ALIASES:
        raise ConfigError(f"start={start!r}: need 'earliest', 'latest', a datetime, or seconds since the epoch")
    return _ALIASES[start]


def milliseconds(time: float | dt.datetime) -> int:
    """Return a time as milliseconds since the epoch. A datetime without zone is local time; a number is seconds.

    Raises: TypeError: something else. ConfigError: not a moment since 1970.
    """
    if isinstance(time, bool) or not isinstance(time, int | float | dt.datetime):
        raise TypeError(f"{time!r} is no moment: pass a datetime, or seconds since the epoch")
    seconds = time.timestamp() if isinstance(time, dt.datetime) else float(time)
    if not math.isfinite(seconds) or seconds < 0:
        shown = time.isoformat() if isinstance(time, dt.datetime) else time
        raise ConfigError(f"{shown} is no moment since 1970: pass a datetime, or seconds since the epoch")
    return round(seconds * 1000)
