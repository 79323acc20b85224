"""Counts by size, for whoever measures: the store, services, servers and clients. `metaq.metrics` shows them."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Final, NamedTuple

DURATIONS: Final = tuple(round(base * 10.0**power, 10) for power in range(-5, 2) for base in (1, 2.5, 5))
"""10 µs to 50 s, three in each decade."""
SIZES: Final = tuple(float(4**power) for power in range(5, 15))
"""1 KiB to 256 MiB."""


class Histogram(NamedTuple):
    """Counts by size: `counts[i]` of values up to `bounds[i]`, not summed up, and the last of those above all bounds."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


class Measured:
    """A histogram, to which who measures adds: from one thread at a time.

    Args: bounds: ascending.
    """

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float] = DURATIONS) -> None:
        self.bounds, self.sum = bounds, 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value; one below 0, which clocks of two machines may give, as 0."""
        value = max(0.0, value)
        self._counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many were counted so far."""
        return sum(self._counts)

    def value(self) -> Histogram:
        """Return what was counted so far."""
        return Histogram(self.bounds, tuple(self._counts), self.sum)
