"""When the log says that a ZooKeeper is away: soon at a start, later when a connection was missing for long, and then again."""

from __future__ import annotations

from typing import Final

from metaq.log import AGAIN_SECONDS, AGAIN_SECONDS_MAX

NO_ANSWER: Final = "no answer"
"""Why a connection is missing of which kazoo has said nothing yet."""


class Absence:
    """The time without a connection, seconds of a monotonic clock.

    Args:
        since: when it began.
        patience: seconds until the first line.
    """

    def __init__(self, since: float, patience: float) -> None:
        self.next = since + patience
        """When the next line is due."""
        self._pause = AGAIN_SECONDS
        self.told = False
        """A line was due."""

    def due(self, now: float) -> bool:
        """Return whether to say it now; the next line is due later then."""
        if now < self.next:
            return False
        self.told, self.next = True, now + self._pause
        self._pause = min(self._pause * 2, AGAIN_SECONDS_MAX)
        return True
