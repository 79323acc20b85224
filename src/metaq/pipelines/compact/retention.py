"""Retention: which dates of an archive have expired. Pure.

The driver's clock alone must not decide, because removal is final: a machine whose clock is in the next century would remove
everything. So two must agree that a date is long past: the driver's clock, and the archived messages, by their brokers' clocks.
Of each queue the date of its last file counts, and of all queues the newest: a broker whose clock was wrong no longer counts
once its next messages are archived.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable

from msgspec import Struct

from metaq.archive.index import place_in_name
from metaq.archive.records import ArchivedFile, Manifest

_USUAL = dt.timedelta(days=1)
"""Age up to which the newest message shows that an archive is still written to."""


class Bound(Struct, frozen=True):
    """Cut-off dates, YYYY-MM-DD: of what expires, and of what would expire by the clock alone."""

    first: str
    """Files of earlier dates expire."""
    by_clock: str
    """Files of earlier dates would expire by the clock alone."""
    today: str
    newest: str
    """Newest date of the archived messages; empty: none is known."""
    behind: bool = False
    """Whether the newest messages are older than those of an archive that is written to."""

    def over(self, files: Iterable[ArchivedFile]) -> list[ArchivedFile]:
        return [file for file in files if file.date < self.first]

    def held(self, files: Iterable[ArchivedFile]) -> str:
        """Return a sentence on dates that are kept although they are due by the clock, and why; empty: none."""
        held = [file for file in files if self.behind and self.first <= file.date < self.by_clock]
        if not held:
            return ""
        said = f"the newest messages in the archive are of {self.newest}" if self.newest else "no batch says from when"
        return (
            f"{len(held):,} files of dates before {self.by_clock} stay: by this machine's clock it is {self.today}, and {said}. "
            "They go when newer messages are archived; if the clock is right and none will come, say trustClock"
        )


class Dates:
    """Newest date of an archive's messages, by queue."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, int], tuple[int, str]] = {}

    def take(self, manifest: Manifest) -> None:
        """Note a published batch; in any order."""
        for file in manifest.files:
            found = place_in_name(file.path)
            if found is not None:
                (broker, queue_id), start = found
                place = (file.topic, broker, queue_id)
                self._last[place] = max(self._last.get(place, (-1, "")), (start, file.date))

    @property
    def newest(self) -> str:
        return max((date for _, date in self._last.values()), default="")

    def bound(self, now_ms: int, keep_days: int, *, trust_clock: bool = False) -> Bound:
        """Return the cut-off dates. Args: trust_clock: whether to go by the clock alone."""
        try:
            today = dt.date(1970, 1, 1) + dt.timedelta(milliseconds=now_ms)
        except OverflowError:  # A clock beyond the year 9999: nothing expires.
            return Bound("", "", "", self.newest)
        by_clock = _before(today, keep_days)
        if trust_clock:
            return Bound(by_clock, by_clock, str(today), self.newest)
        by_messages, behind = "", True
        with contextlib.suppress(ValueError):
            newest = dt.date.fromisoformat(self.newest)
            by_messages, behind = _before(newest, keep_days), today - newest > _USUAL
        # ISO dates are ordered as texts. An empty one, of an archive without known messages, lets nothing expire.
        return Bound(min(by_clock, by_messages), by_clock, str(today), self.newest, behind)


def _before(day: dt.date, days: int) -> str:
    try:
        return str(day - dt.timedelta(days=days))
    except OverflowError:
        return ""
