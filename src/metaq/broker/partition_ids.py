"""Ids of messages that 1.x clients put: each is given once, also when the clock is set back, or the broker started again."""

from __future__ import annotations

from typing import Final

from metaq.clock import Clock
from metaq.model.partition import SEQUENCE_BITS, born_id

RUN_MAX: Final = 1 << SEQUENCE_BITS
"""Ids that one call of `take` can give."""


class MessageIds:
    """The ids of one broker, ascending."""

    def __init__(self, clock: Clock, broker_id: int, newest_ms: int) -> None:
        """Args: newest_ms: store time of the newest record. No id that this broker has given is younger."""
        self._clock, self._broker_id = clock, broker_id
        self._ms, self._sequence = newest_ms, RUN_MAX

    def take(self, count: int = 1) -> int:
        """The first of `count` consecutive ids, at most `RUN_MAX`, that nobody else gets.

        A millisecond has 4096. More than that are taken from the next one, which this call does not wait for.
        """
        now = self._clock.now_ms()
        if now > self._ms:
            self._ms, self._sequence = now, 0
        elif self._sequence + count > RUN_MAX:
            self._ms, self._sequence = self._ms + 1, 0
        first = born_id(self._ms, self._broker_id, self._sequence)
        self._sequence += count
        return first

    def give_back(self, count: int) -> None:
        """The last `count` ids of the last call of `take` were not given to anybody."""
        self._sequence -= count
