"""What a handler can say of a message, besides that it is done."""

from __future__ import annotations

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


def delay_level_of(error: BaseException) -> int:
    """The delay level with which a message whose handling raised `error` goes back."""
    if isinstance(error, Reject):
        return DEAD_LETTER_LEVEL
    if isinstance(error, Later):
        return error.delay_level
    return BROKER_DECIDES
