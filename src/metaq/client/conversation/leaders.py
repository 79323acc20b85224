"""When the name servers are asked who leads a broker that is in doubt. No I/O, no clock: times come in as arguments.

A broker is in doubt when a request to it has failed on its way, was not answered in time, or was refused because the broker does
not lead. Then the route is asked for at once, and again for as long as requests fail or the route tells no leader.
"""

from __future__ import annotations

import bisect

DOUBT_SECONDS = 3.0
"""Time after the last failed request for which a leader that is told is looked at again, s."""
_AGES = (1.0, 10.0, 120.0)
_PAUSES = (0.1, 0.2, 0.5, 2.0)
"""Pause between two questions: the first while the search is younger than the first entry of `_AGES`, and so on, s."""


class LeaderSearch:
    """The search for the leader of one broker. `now`: seconds of one clock."""

    def __init__(self, now: float) -> None:
        self._began = self._doubted = now
        self._asked = False

    def doubt(self, now: float) -> None:
        """Note another failed request."""
        self._doubted = now

    def pause(self, now: float, *, is_led: bool) -> float | None:
        """Return the seconds before the next question; None: the search is over. `is_led`: whether the route tells a leader."""
        if not self._asked:
            self._asked = True
            return 0.0
        if is_led and now - self._doubted >= DOUBT_SECONDS:
            return None
        return _PAUSES[bisect.bisect_right(_AGES, now - self._began)]
