"""A metric, and one value of it."""

from __future__ import annotations

import bisect
import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct


class Kind(enum.Enum):
    """What a metric does: the words of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Metric(Struct, frozen=True):
    """One entry of the table of metrics.

    `name`: without the suffix of its kind, which the text adds (`_total`, `_info`). `unit`: of the values; "" for counts. The
    name ends with it, as OpenMetrics wants. `labels`: names of what values are told apart by.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""


class Histogram(NamedTuple):
    """Counts by size: `counts[i]` of values up to `bounds[i]`, not summed up, and the last of those above all bounds."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


Value: TypeAlias = "float | Histogram | Mapping[str, str]"
"""A number; of a histogram its counts; of an info its pairs."""


class Sample(NamedTuple):
    """A value of a metric, with the values of its labels."""

    metric: Metric
    value: Value
    labels: tuple[str, ...] = ()


class Durations:
    """A histogram of durations, to which who measures adds.

    Args: bounds: seconds, ascending.
    """

    __slots__ = ("_counts", "bounds", "sum")

    BOUNDS = tuple(round(base * 10.0**power, 10) for power in range(-5, 2) for base in (1, 2.5, 5))
    """10 µs to 50 s, three in each decade."""

    def __init__(self, bounds: Sequence[float] = BOUNDS) -> None:
        self.bounds, self.sum = bounds, 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect.bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def value(self) -> Histogram:
        """Return what was counted so far."""
        return Histogram(self.bounds, tuple(self._counts), self.sum)
