"""What a handler can say of a message, besides that it is done."""

from __future__ import annotations

import math

from metaq.model.message import as_delay_level

DEAD_LETTER_LEVEL = -1
BROKER_DECIDES = 0


class Reject(Exception):
    """Raise it while handling a message to file the message with the dead letters at once."""


class Later(Exception):
    """Raise or return it while handling a message to get the message again later.

    `delay_level`: 1..18 of the broker's delays (1 s ... 2 h); 0 lets the broker choose, longer each time.
    Raises TypeError, InvalidMessage (a ValueError) for another.
    """

    def __init__(self, delay_level: int = BROKER_DECIDES) -> None:
        self.delay_level = as_delay_level(delay_level)
        super().__init__(self.delay_level)


class Pause(Exception):
    """Raise or return it while handling a message to stop the message's queue for a while: the database is down, say.

    The message comes again after that, before those behind it that nobody has yet, and no retry is spent.
    `seconds`: how long, above 0. Raises TypeError, ValueError for another.
    """

    def __init__(self, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"Pause({seconds!r}): need seconds, a number")
        if not 0 < seconds < math.inf:
            raise ValueError(f"Pause({seconds!r}): need seconds above 0")
        self.seconds = float(seconds)
        super().__init__(self.seconds)


def delay_level_of(error: BaseException) -> int:
    """The delay level with which a message whose handling raised `error` goes back."""
    if isinstance(error, Reject):
        return DEAD_LETTER_LEVEL
    if isinstance(error, Later):
        return error.delay_level
    return BROKER_DECIDES
