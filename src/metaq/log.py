"""Logging of what may happen a thousand times a second: told at once the first time, then counted.

What is left out is never silent: its number is in the next line of the same kind, or in the line that `tick` writes when
the kind has not come again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable

from msgspec import Struct

from metaq.clock import SYSTEM, Clock

SECONDS = 10.0
KINDS_MAX = 1024
"""A key that peers choose, such as an address, must not make a table without end."""


class _Kind(Struct):
    """One kind of event that was told, and what came since."""

    told: float
    """Monotonic seconds."""
    level: int
    text: str
    left_out: int = 0


class RateLimitedLog:
    """Writes each kind of event to `logger` at most once in `seconds`. Safe to use from any thread."""

    def __init__(self, logger: logging.Logger, clock: Clock = SYSTEM, seconds: float = SECONDS) -> None:
        self._logger, self._clock, self._seconds = logger, clock, seconds
        self._kinds: dict[int, _Kind] = {}
        """By the hash of the key: what peers put into keys may be long."""
        self._lock = threading.Lock()

    def warning(self, key: Hashable, text: str, *args: object, error: BaseException | None = None) -> bool:
        """`text % args` as a warning, or a count; see `write`."""
        return self.write(logging.WARNING, key, text, *args, error=error)

    def error(self, key: Hashable, text: str, *args: object, error: BaseException | None = None) -> bool:
        """`text % args` as an error, or a count; see `write`."""
        return self.write(logging.ERROR, key, text, *args, error=error)

    def write(self, level: int, key: Hashable, text: str, *args: object, error: BaseException | None = None) -> bool:
        """Write a line, unless one of the same `key` was written in the last `seconds`: then count it.

        Args: error: its traceback goes with the line. Returns whether a line was written.
        """
        if not self._logger.isEnabledFor(level):
            return False
        now = self._clock.monotonic()
        with self._lock:
            place = hash(key)
            kind = self._kinds.get(place)
            if kind is not None and now - kind.told < self._seconds:
                kind.left_out += 1
                kind.level, kind.text = level, text
                return False
            told = text if kind is None else text + _since(kind, now)
            self._kinds.pop(place, None)  # the table's order is the order of telling
            self._kinds[place] = _Kind(now, level, text)
            oldest = self._kinds.pop(next(iter(self._kinds))) if len(self._kinds) > KINDS_MAX else None
        self._logger.log(level, told, *args, exc_info=error)
        if oldest is not None:
            self._tell(oldest, now)
        return True

    def tick(self) -> None:
        """Let time pass: tell how many were left out of the kinds whose time is over, and forget those kinds."""
        now, over = self._clock.monotonic(), list[_Kind]()
        with self._lock:
            while self._kinds:
                place = next(iter(self._kinds))
                if now - self._kinds[place].told < self._seconds:
                    break
                over.append(self._kinds.pop(place))
        for kind in over:
            self._tell(kind, now)

    def _tell(self, kind: _Kind, now: float) -> None:
        if kind.left_out:
            self._logger.log(kind.level, "%d more in the last %.0f s: %s", kind.left_out, now - kind.told, kind.text)


class OnceLog:
    """Writes each kind of event to `logger` once, until it is over: what fails every second is news only the first time."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._written: set[str] = set()

    def once(self, key: str, text: str, level: int = logging.WARNING) -> None:
        """Write the line, unless that was done since the last `over` of the same key."""
        if key not in self._written:
            self._written.add(key)
            self._logger.log(level, "%s", text)

    def over(self, key: str) -> None:
        """The event has ended: the next one is written again."""
        self._written.discard(key)


def _since(kind: _Kind, now: float) -> str:
    return f" (and {kind.left_out} more like it in the last {now - kind.told:.0f} s)" if kind.left_out else ""
