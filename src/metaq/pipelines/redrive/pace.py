"""How long to wait so that no more than so many messages a second are sent."""

from __future__ import annotations

STEP_SECONDS = 5.0
"""What may be sent in so many seconds goes as one transaction: messages come in bursts of that."""


class Pace:
    """Says when the next messages may go. Time that was lost, because a broker was away, is not made up for by a burst."""

    def __init__(self, rate: float | None) -> None:
        """Args: rate: messages a second, above 0; None: no limit."""
        self._rate = rate
        self._free_at: float | None = None

    def step(self, most: int) -> int:
        """How many messages should go together, at least one and at most `most`."""
        return most if self._rate is None else max(1, min(most, int(self._rate * STEP_SECONDS)))

    def pause(self, now: float) -> float:
        """Seconds until the next messages may go; 0: they may go now."""
        return 0.0 if self._free_at is None else max(0.0, self._free_at - now)

    def sent(self, messages: int, began: float) -> None:
        """So many have gone, in a step that began at `began`."""
        if self._rate is not None:
            self._free_at = max(began, self._free_at or began) + messages / self._rate
