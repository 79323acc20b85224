"""Helper time that the questions of each group take: who is slow, and whose turn it is.

Time is accounted to a group and a predicate together: a predicate may be quick for the messages of one topic and slow for
those of another.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

SLOW_SECONDS: Final = 0.02
"""Average time of a question from which on a group is slow, s. 256 messages take a simple function 1.5 ms."""
PACES_MAX: Final = 1024
CREDIT_SECONDS: Final = 0.1
"""Time that a group has ahead of the others when it comes: whoever has just been answered is mostly not there for its turn."""
_WEIGHT: Final = 1 / 8
"""Weight of one question in a predicate's average, by which groups that are new are judged: names of groups are cheap."""


class Pace(Struct):
    """Helper time of one group and predicate."""

    seconds: float
    """Average of a question, s; the last one counts for half."""
    used: float
    """Time used, s, counted from what the others had used when it came: the least goes first."""

    @property
    def slow(self) -> bool:
        """Whether its questions keep a helper for long."""
        return self.seconds > SLOW_SECONDS


class Paces:
    """The last `PACES_MAX` groups that have asked."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Pace] = {}
        self._predicates: dict[str, float] = {}
        self._reached = 0.0
        """Time that those who wait have used at least."""

    def of(self, group: str, predicate: str) -> Pace:
        """Return the pace of a group. A new one's is that of its predicate."""
        key = group, predicate
        pace = self._known.get(key)
        if pace is None:
            if len(self._known) >= PACES_MAX:
                del self._known[next(iter(self._known))]
            pace = self._known[key] = Pace(self._predicates.get(predicate, 0.0), self._reached)
        return pace

    def came(self, pace: Pace) -> None:
        """Have a group that was idle wait from now on. Of the time that it did not use, little is saved up."""
        pace.used = max(pace.used, self._reached - CREDIT_SECONDS)

    def began(self, pace: Pace) -> None:
        """Note that a question of a group was sent, the one that had used the least."""
        self._reached = max(self._reached, pace.used)

    def took(self, group: str, predicate: str, seconds: float) -> None:
        """Account for a question that is over."""
        pace = self.of(group, predicate)
        pace.seconds = (pace.seconds + seconds) / 2
        pace.used += seconds
        average = self._predicates.get(predicate, 0.0)
        self._predicates[predicate] = average + (seconds - average) * _WEIGHT
