"""What a handler can say of a message, besides that it is done."""

from __future__ import annotations

DEAD_LETTER_LEVEL = -1
BROKER_DECIDES = 0
DELAY_LEVEL_MAX = 18


class Reject(Exception):
    """Raise it while handling a message to file the message with the dead letters at once."""


class Later(Exception):
    """Raise or return it while handling a message to get the message again later.

    `delay_level`: 1..18 on the broker's ladder of delays (1 s ... 2 h); 0 lets the broker choose, longer each time.
    """

    def __init__(self, delay_level: int = BROKER_DECIDES) -> None:
        if not 0 <= delay_level <= DELAY_LEVEL_MAX:
            raise ValueError(f"delay_level={delay_level}: need 0..{DELAY_LEVEL_MAX}")
        super().__init__(delay_level)
        self.delay_level = delay_level


def delay_level_of(error: BaseException) -> int:
    """The delay level with which a message whose handling raised `error` goes back."""
    if isinstance(error, Reject):
        return DEAD_LETTER_LEVEL
    if isinstance(error, Later):
        return error.delay_level
    return BROKER_DECIDES
