"""Requests that wait a moment for a leader that acknowledges nothing at present: ZooKeeper is slow, or its followers are just coming.

A client whose tries fail at once gives up within milliseconds. One that is answered a second later has noticed nothing.
"""

from __future__ import annotations

from typing import Final

from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.saved import Pending

HOLD_SECONDS: Final = 2.0
"""So long from its beginning a lapse is waited out; then requests are refused at once, until it is over."""


class Lapse:
    """The present lapse of one leader, if there is one. Only on the thread that owns the broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None
        """Since when it lasts, monotonic seconds; None: there is none, as far as is known."""
        self._pending: Pending | None = None

    def wait(self) -> Pending | None:
        """Return what ends with the lapse, which is refused if that lasts; None: it has lasted too long already."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since >= HOLD_SECONDS:
            return None
        if self._pending is None:
            self._pending = Pending()
        return self._pending

    def look(self, lacking: str) -> None:
        """Note whether it goes on. Args: lacking: why nothing is acknowledged; "": it is over."""
        if not lacking:
            self._since = None
            self._end(None)
        elif self._since is not None and self._clock.monotonic() - self._since >= HOLD_SECONDS:
            self._end(Refused(Reason.NOT_LEADING, lacking))

    def _end(self, refused: Refused | None) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.finish(refused)
