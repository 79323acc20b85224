"""Whether the next sync begins now, or waits for the producers whom the last one has answered.

Producers that wait for each answer send their next message when they have it, some ten microseconds apart. A sync that
begins with the first of them serves it alone, and the others wait for that one before theirs begins: two groups take
turns, each with a sync that costs the same. One that begins when all are back serves all.

It is waited for them by turns of the loop, not by time: a turn without any of them takes microseconds, and after some
dozens the rest is taken for slow. Where that happens often it is not done for a while (`metaq.net.sweep.Vigil`).
"""

from __future__ import annotations

from typing import Final

from metaq.net.sweep import Vigil

TURNS_WITHOUT_MAX: Final = 24
"""Of the loop, behind each other, in which nobody came: some hundred microseconds."""
TURNS_MAX: Final = 1000
"""In all: some milliseconds."""


class Gathering:
    """Counts who is back. Sizes are bytes of answers, which are about equal. `on`: False never waits."""

    def __init__(self, *, on: bool) -> None:
        self._on, self._vigil = on, Vigil()
        self._expected = self._seen = self._turns = self._without = 0

    def released(self, answered: int, left: int) -> None:
        """So much was answered, and so much waits already for the next sync."""
        self._expected = answered + left if self._on and answered and self._vigil.worth_it() else 0
        self._seen, self._turns, self._without = left, 0, 0

    def goes_on(self, waiting: int) -> bool:
        """Whether to look again in the next turn, when so much waits; False: sync now."""
        if not self._expected:
            return False
        if waiting > self._seen:
            self._seen, self._without = waiting, 0
        self._turns += 1
        self._without += 1
        if waiting < self._expected and self._without <= TURNS_WITHOUT_MAX and self._turns <= TURNS_MAX:
            return True
        self._vigil.count(came=4 * waiting >= 3 * self._expected)
        self._expected = 0
        return False
