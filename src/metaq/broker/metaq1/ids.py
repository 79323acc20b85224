"""Ids of messages that 1.x clients put: each is given once, also when the clock is set back, or the broker started again."""

from __future__ import annotations

from typing import Final, Protocol

from metaq.clock import Clock
from metaq.model.metaq1.partition import SEQUENCE_BITS, born_id

RUN_MAX: Final = 1 << SEQUENCE_BITS
"""Ids that one call of `take` can give."""


class StoreTime(Protocol):
    """The end of the log."""

    store_ms: int
    """No record that is stored from now on has an earlier store time; the newest one's when the broker starts."""


class MessageIds:
    """The ids of one broker, ascending.

    No record is stored with a time before that of an id that was given: so the newest record tells a start where to go on,
    also if the clock was set back and ids ran ahead of it.
    """

    def __init__(self, clock: Clock, broker_id: int, log: StoreTime) -> None:
        self._clock, self._broker_id, self._log = clock, broker_id, log
        self._ms, self._sequence = log.store_ms, RUN_MAX

    def open(self) -> None:
        """Go on behind the newest record, which another broker may have stored meanwhile."""
        self._ms, self._sequence = max(self._ms, self._log.store_ms), RUN_MAX

    def take(self, count: int = 1) -> int:
        """The first of `count` consecutive ids, at most `RUN_MAX`, that nobody else gets.

        A millisecond has 4096. More than that are taken from the next one, which this call does not wait for.
        """
        now = self._clock.now_ms()
        if now > self._ms:
            self._ms, self._sequence = now, 0
        elif self._sequence + count > RUN_MAX:
            self._ms, self._sequence = self._ms + 1, 0
        self._log.store_ms = max(self._log.store_ms, self._ms)
        first = born_id(self._ms, self._broker_id, self._sequence)
        self._sequence += count
        return first

    def give_back(self, count: int) -> None:
        """The last `count` ids of the last call of `take` were not given to anybody."""
        self._sequence -= count
