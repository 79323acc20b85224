"""Whether the event loop stood still: nothing is served then, and nobody can ask why before it is over."""

from __future__ import annotations

import logging
from typing import Final

from metaq.clock import Clock
from metaq.log import RateLimitedLog

log = logging.getLogger(__name__)

STUCK_SECONDS: Final = 1.0
"""A timer that comes so much too late is told."""
TOLD_SECONDS: Final = 60.0
"""So long after that."""


class LoopWatch:
    """Compares the time at which a timer comes with the time for which it was set.

    Args:
        clock: of the timer.
        every: its interval, s.
    """

    def __init__(self, clock: Clock, every: float) -> None:
        self._clock, self._every = clock, every
        self._last = clock.monotonic()
        self._stuck, self._stuck_at = 0.0, 0.0
        self._faults = RateLimitedLog(log, clock)

    def tick(self) -> None:
        """The timer has come."""
        now = self._clock.monotonic()
        late, self._last = now - self._last - self._every, now
        if now - self._stuck_at > TOLD_SECONDS:
            self._stuck = 0.0
        if late >= STUCK_SECONDS and late >= self._stuck:
            self._stuck, self._stuck_at = late, now
        if late >= STUCK_SECONDS:
            self._faults.warning("stuck", "the event loop stood still for %.1f s: no client was served", late)
        self._faults.tick()

    @property
    def trouble(self) -> str:
        """The longest time that it stood still in the last minute; "": it did not."""
        ago = self._clock.monotonic() - self._stuck_at
        if not self._stuck or ago > TOLD_SECONDS:
            return ""
        return f"the event loop stood still for {self._stuck:.1f} s, {ago:.0f} s ago: no client was served"
