"""Histories of figures: the last quarter of an hour, in bounded memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterable
from typing import Final

POINTS: Final = 180
"""Looks that a history goes back: a quarter of an hour of one each five seconds."""
NAMES_MAX: Final = 512
"""Histories of one kind. Of more, those are kept whose figures are the largest."""


class Series:
    """A figure over the last looks."""

    __slots__ = ("_next", "_points", "seen")

    def __init__(self) -> None:
        self._points = array("f", [math.nan]) * POINTS
        self._next = 0
        self.seen = 0
        """Number of the look that it was last in."""

    def add(self, value: float | None) -> None:
        """Add a look; None: it is not known."""
        self._points[self._next] = math.nan if value is None else value
        self._next = (self._next + 1) % POINTS

    def points(self) -> list[float | None]:
        """Return the looks, the newest last; without those before the first."""
        found = [*self._points[self._next :], *self._points[: self._next]]
        start = next((index for index, one in enumerate(found) if not math.isnan(one)), POINTS)
        return [None if math.isnan(one) else round(one, 3) for one in found[start:]]

    @property
    def size(self) -> float:
        """Return what decides whether it is kept: the largest of the last looks."""
        return max((one for one in self._points if not math.isnan(one)), default=0.0)


class Histories:
    """Histories by name, of one kind."""

    def __init__(self, most: int = NAMES_MAX) -> None:
        self._most = most
        self._series: dict[Hashable, Series] = {}
        self._looks = 0

    def add(self, values: Iterable[tuple[Hashable, float | None]]) -> None:
        """Add one look at all. A name that is not in it any more goes when it has left the quarter of an hour."""
        self._looks += 1
        found = dict(values)
        for name, series in list(self._series.items()):
            series.add(found.get(name))
            if name in found:
                series.seen = self._looks
            elif self._looks - series.seen > POINTS:
                del self._series[name]
        new = [(name, value) for name, value in found.items() if name not in self._series]
        room = self._most - len(self._series)
        if len(new) > room:
            # Busy ones, only: an idle topic has no history worth memory.
            new = sorted((one for one in new if one[1]), key=lambda one: one[1] or 0, reverse=True)[: self._most]
            for name in sorted(self._series, key=lambda one: self._series[one].size)[: max(0, len(new) - room)]:
                if self._series[name].size:
                    break
                del self._series[name]
            new = new[: self._most - len(self._series)]
        for name, value in new:
            series = self._series[name] = Series()
            series.add(value)
            series.seen = self._looks

    def of(self, name: Hashable) -> list[float | None]:
        """Return a history; empty: there is none."""
        series = self._series.get(name)
        return series.points() if series is not None else []

    def __len__(self) -> int:
        return len(self._series)
