"""Which dates of an archive have expired. Pure.

A clock alone decides nothing here, for what goes is gone: a machine that believes to be in the next century would let
everything go. So two must agree that a date is long past: the clock of the driver, and the archived messages, which bear the
clocks of their brokers. Of each queue the date of its last file counts, and of those the newest: a broker that was wrong, ahead or
behind, says nothing any more when its next messages are archived.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable

from msgspec import Struct

from metaq.archive.index import place_in_name
from metaq.archive.records import ArchivedFile, Manifest

_USUAL = dt.timedelta(days=1)
"""Days that the newest message may be old in an archive that is written to."""


class Bound(Struct, frozen=True):
    """Cut-off dates: what expires, and what would by the clock alone. Dates are ISO's."""

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
        """Dates that are kept although they are due by the clock, and why; empty: none."""
        held = [file for file in files if self.behind and self.first <= file.date < self.by_clock]
        if not held:
            return ""
        said = f"the newest messages in the archive are of {self.newest}" if self.newest else "no batch says from when"
        return (
            f"{len(held):,} files of dates before {self.by_clock} stay: by this machine's clock it is {self.today}, and {said}. "
            "They go when newer messages are archived; if the clock is right and none will come, say trustClock"
        )


class Dates:
    """How far the messages of an archive have come in time."""

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
        """Compute the cut-offs. Args: trust_clock: by the clock alone."""
        try:
            today = dt.date(1970, 1, 1) + dt.timedelta(milliseconds=now_ms)
        except OverflowError:  # No calendar has that day.
            return Bound("", "", "", self.newest)
        by_clock = _before(today, keep_days)
        if trust_clock:
            return Bound(by_clock, by_clock, str(today), self.newest)
        by_messages, behind = "", True
        with contextlib.suppress(ValueError):
            newest = dt.date.fromisoformat(self.newest)
            by_messages, behind = _before(newest, keep_days), today - newest > _USUAL
        return Bound(min(by_clock, by_messages), by_clock, str(today), self.newest, behind)


def _before(day: dt.date, days: int) -> str:
    try:
        return str(day - dt.timedelta(days=days))
    except OverflowError:
        return ""
