"""Logging of what may come a thousand times a second, and of what nobody waits for.

Of events, the first is logged at once, then they are counted. The number left out is in the next line of the same kind, or in a line of `tick` if the kind does not come again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from typing import Protocol

from msgspec import Struct

from metaq.clock import SYSTEM, Clock

SECONDS = 10.0
"""Shortest interval between two lines of one kind."""
FIRST_SECONDS = 1.0
"""Wait for somebody else before the log says what for: most answer in a tenth of that."""
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 10.0, 60.0
"""From the first such line to the second, and between two at most: each pause is twice as long as the one before."""
KINDS_MAX = 1024
"""Most kinds that are remembered: keys that peers choose, such as addresses, have no end."""


class _Kind(Struct):
    """A kind of event: its last line, and the events since."""

    told: float
    """Time of the last line, monotonic seconds."""
    level: int
    text: str
    """The last line, with its arguments in it: those of events that are left out are not formatted, as they may be many."""
    left_out: int = 0


class RateLimitedLog:
    """Writes each kind of event to `logger` at most once in `seconds`. For any thread.

    Args:
        logger: gets the lines.
        clock: of the interval.
        seconds: the interval.
    """

    def __init__(self, logger: logging.Logger, clock: Clock = SYSTEM, seconds: float = SECONDS) -> None:
        self._logger, self._clock, self._seconds = logger, clock, seconds
        self._kinds: dict[int, _Kind] = {}
        """Hash of the key → kind: keys of peers may be long."""
        self._lock = threading.Lock()

    def warning(self, key: Hashable, text: str, *args: object, error: BaseException | None = None) -> bool:
        """Write `text % args` as a warning, or count it; see `write`."""
        return self.write(logging.WARNING, key, text, *args, error=error)

    def error(self, key: Hashable, text: str, *args: object, error: BaseException | None = None) -> bool:
        """Write `text % args` as an error, or count it; see `write`."""
        return self.write(logging.ERROR, key, text, *args, error=error)

    def write(self, level: int, key: Hashable, text: str, *args: object, error: BaseException | None = None) -> bool:
        """Write a line, or count it if one of the same `key` was written in the last `seconds`. Return whether it was
        written.

        `error`: its traceback goes with the line.
        """
        if not self._logger.isEnabledFor(level):
            return False
        now = self._clock.monotonic()
        with self._lock:
            place = hash(key)
            kind = self._kinds.get(place)
            if kind is not None and now - kind.told < self._seconds:
                kind.left_out += 1
                kind.level = level
                return False
            told = text if kind is None else text + _since(kind, now)
            self._kinds.pop(place, None)  # the table's order is the order of telling
            self._kinds[place] = _Kind(now, level, text % args if args else text)
            oldest = self._kinds.pop(next(iter(self._kinds))) if len(self._kinds) > KINDS_MAX else None
        self._logger.log(level, told, *args, exc_info=error)
        if oldest is not None:
            self._tell(oldest, now)
        return True

    def tick(self) -> None:
        """Log how many events were left out of kinds whose interval is over, and forget those kinds."""
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
            self._logger.log(
                kind.level, "%d more like this in the last %.0f s: %s", kind.left_out, now - kind.told, kind.text
            )


def _since(kind: _Kind, now: float) -> str:
    return f" (and {kind.left_out} more like it in the last {now - kind.told:.0f} s)" if kind.left_out else ""


class Ended(Protocol):
    """A task that has ended, as asyncio's."""

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        ...

    def exception(self) -> BaseException | None:
        """What it has raised; None: nothing."""
        ...


def when_dead(logger: logging.Logger, text: str) -> Callable[[Ended], None]:
    """Return what logs the death of a task that nobody awaits, for its `add_done_callback`.

    Args: text: what is not done any more. Nothing is logged of a task that was cancelled, or ends without an error.
    """

    def tell(task: Ended) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("%s", text, exc_info=error)

    return tell
