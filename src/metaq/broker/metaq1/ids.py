"""Message ids of MetaQ 1.x puts, unique also after a restart or when the clock is set back.

Uniqueness matters: Java's 1.x client silently drops a message whose group and id are among the last 4096 it has processed.
"""

from __future__ import annotations

from typing import Final, Protocol

from metaq.clock import Clock
from metaq.model.metaq1.partition import FOREIGN, SEQUENCE_BITS, born_id, time_of

RUN_MAX: Final = 1 << SEQUENCE_BITS
"""Ids per call of `take`, and per millisecond."""


AHEAD_MS_MAX: Final = 24 * 3600 * 1000
"""Most that a master's clock may be ahead."""


class StoreTime(Protocol):
    """The part of the log's tail that ids depend on."""

    store_ms: int
    """Lower bound of the store times of further records, ms; at a start, the newest record's store time."""


class MessageIds:
    """The ids of one broker, ascending.

    No record gets a store time before the time in an id given out, so the newest record tells a start where to continue, also if
    the clock was set back, or ids ran ahead of it.
    """

    def __init__(self, clock: Clock, broker_id: int, log: StoreTime) -> None:
        self._clock, self._broker_id, self._log = clock, broker_id, log
        self._ms, self._sequence = log.store_ms, RUN_MAX

    def open(self) -> None:
        """Continue behind the newest record, which a slave has received from its master meanwhile."""
        self._ms, self._sequence = max(self._ms, self._log.store_ms), RUN_MAX

    def take(self, count: int = 1) -> int:
        """Reserve `count` consecutive ids, at most `RUN_MAX`, and return the first.

        A millisecond has 4096. Further ones are taken from the next millisecond at once; the original waits for it.
        """
        now = self._clock.now_ms()
        if now > self._ms:
            self._ms, self._sequence = now, 0
        elif self._sequence + count > RUN_MAX:
            self._ms, self._sequence = self._ms + 1, 0
        # Ids ahead of the clock move the store time with them, for the next start.
        self._log.store_ms = max(self._log.store_ms, self._ms)
        first = born_id(self._ms, self._broker_id, self._sequence)
        self._sequence += count
        return first

    def passed(self, message_id: int) -> None:
        """Continue behind an id that the master of a pair gave out: it and this broker have one brokerId.

        One that lies far ahead of the clock says nothing of time, such as one below 0, which 1.4.6.2 gives out.
        """
        if not 0 < message_id < FOREIGN:
            return
        ms = time_of(message_id)
        if self._ms <= ms <= self._clock.now_ms() + AHEAD_MS_MAX:
            self._ms, self._sequence = ms, RUN_MAX
            self._log.store_ms = max(self._log.store_ms, ms)

    def give_back(self, count: int) -> None:
        """Return the last `count` ids of the last call of `take`, which were not used."""
        self._sequence -= count
