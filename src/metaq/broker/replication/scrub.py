"""When a slave compares its log with its master's, how fast, and what it knows of the outcome."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import structs

from metaq.broker.environment import Environment
from metaq.model.scrub import LogDifference, ScrubState

FIRST_SECONDS: Final = 600.0
"""Pause before the first pass of a process, s: a slave that starts has other things to read."""
TOLD_MAX: Final = 20
"""Differences that the runtime information has."""
_HOUR: Final = 3600.0


class Scrub:
    """The passes of one slave. Only on the thread that owns the broker."""

    def __init__(self, environment: Environment) -> None:
        self._options, self._clock = environment.options, environment.clock
        self._next_after = self._clock.monotonic()
        self._waits: float | None = FIRST_SECONDS
        """Pause before the first pass; None: it has begun, and `scrubInterval` counts."""
        self._began_ms = 0
        self._fresh: dict[int, LogDifference] = {}
        """What the pass has found that is under way."""
        self._known: dict[int, LogDifference] = {}
        """What the last one has found."""
        self.state = ScrubState()

    def due_in(self) -> float | None:
        """Return the seconds until a pass is to begin, 0 if it is; None: there are none (`scrubInterval=0`)."""
        interval = self._options.scrub_interval * _HOUR
        if not interval:
            return None
        pause = interval if self._waits is None else min(interval, self._waits)
        return max(0.0, self._next_after + pause - self._clock.monotonic())

    def pause_after(self, size: int) -> float:
        """Return how long to wait when so many bytes were read, s."""
        return size / self._options.max_scrub_byte_in_second

    def begin(self) -> None:
        """A pass begins."""
        self._began_ms, self._fresh = self._clock.now_ms(), {}

    def found(self, differences: Iterable[LogDifference]) -> list[LogDifference]:
        """Keep what a pass has found. Returns those that were not known before."""
        new = [one for one in differences if self._fresh.get(one.log_offset) != one]
        self._fresh |= {one.log_offset: one for one in new}
        told = [one for one in new if self._known.get(one.log_offset) != one]
        self._tell()
        return told

    def end(self, compared: int, *, alone: bool) -> None:
        """The pass has ended. `compared`: bytes. `alone`: only this slave's own records were checked."""
        self._next_after, self._waits = self._clock.monotonic(), None
        self._known, self._fresh = self._fresh, {}
        self.state = ScrubState(self._began_ms, self._clock.now_ms(), compared, alone)
        self._tell()

    def repaired(self, log_offset: int, size: int) -> None:
        """Forget what was found there: it is repaired."""
        for table in (self._known, self._fresh):
            for place in [place for place in table if log_offset <= place < log_offset + size]:
                del table[place]
        self._tell()

    def _tell(self) -> None:
        known = self._known | self._fresh
        places = sorted(known)
        first = tuple(known[place] for place in places[:TOLD_MAX])
        self.state = structs.replace(self.state, found=len(places), differences=first)
