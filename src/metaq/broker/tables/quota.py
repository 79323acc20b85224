"""A cap on topics and groups that clients can make us create: so many in all, so many a minute."""

from __future__ import annotations

from collections.abc import Callable

from metaq.clock import Clock


class Quota:
    """Counts creations. A minute's allowance refills evenly, so a burst may use it up and must then wait.

    Args: limits: how many may exist in all, whoever made them, and how many may be made in a minute, as they are now.
    """

    __slots__ = ("_clock", "_left", "_limits", "_refilled")

    def __init__(self, clock: Clock, limits: Callable[[], tuple[int, int]]) -> None:
        self._clock, self._limits = clock, limits
        self._left = float(limits()[1])
        self._refilled = clock.monotonic()

    def take(self, existing: int) -> str:
        """Claim one creation. Returns "" if granted, else which limit refuses it and when to try again."""
        total_max, per_minute = self._limits()
        if existing >= total_max:
            return f"the limit of {total_max} is reached"
        now = self._clock.monotonic()
        self._left = min(per_minute, self._left + (now - self._refilled) * per_minute / 60)
        self._refilled = now
        if self._left < 1:
            return f"the limit of {per_minute} a minute is reached, try again later"
        self._left -= 1
        return ""

    def give_back(self) -> None:
        """What was granted was not made after all."""
        self._left = min(self._limits()[1], self._left + 1)
