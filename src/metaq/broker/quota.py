"""A cap on things that strangers can make us create: so many in all, so many a minute."""

from __future__ import annotations

from metaq.clock import Clock


class Quota:
    """Counts creations. A minute's allowance refills evenly, so a burst may use it up and must then wait.

    Args: total_max: how many may exist in all, whoever made them. per_minute: how many may be made in a minute.
    """

    __slots__ = ("_clock", "_left", "_refilled", "per_minute", "total_max")

    def __init__(self, clock: Clock, total_max: int, per_minute: int) -> None:
        self._clock = clock
        self.total_max, self.per_minute = total_max, per_minute
        self._left = float(per_minute)
        self._refilled = clock.monotonic()

    def take(self, existing: int) -> str:
        """Claim one creation. Returns "" if granted, else which limit refuses it and when to try again."""
        if existing >= self.total_max:
            return f"the limit of {self.total_max} is reached"
        now = self._clock.monotonic()
        self._left = min(self.per_minute, self._left + (now - self._refilled) * self.per_minute / 60)
        self._refilled = now
        if self._left < 1:
            return f"the limit of {self.per_minute} a minute is reached, try again later"
        self._left -= 1
        return ""

    def give_back(self) -> None:
        """What was granted was not made after all."""
        self._left = min(self.per_minute, self._left + 1)
