"""Open windows: mergeable sums, levels and histograms."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from metaq.pipelines.metrics.figures import LABELS, PERCENTS, Metric
from metaq.pipelines.metrics.histogram import Histogram


class Series(Struct, frozen=True, order=True, array_like=True):
    """Identity of a series of windows. A label that its metric does not have is empty."""

    metric: str
    topic: str = ""
    group: str = ""
    broker: str = ""

    @property
    def labels(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in LABELS[self.metric]}


class Window(Struct):
    """Figures of one series in one window."""

    sums: dict[str, int] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    spreads: dict[str, Histogram] = field(default_factory=dict)

    def count(self, name: str, value: int) -> None:
        self.sums[name] = self.sums.get(name, 0) + value

    def level(self, name: str, value: float) -> None:
        self.last[name] = value
        self.most[name] = max(value, self.most.get(name, value))

    def spread(self, name: str) -> Histogram:
        """Return the histogram of that name, made if there is none."""
        return self.spreads.setdefault(name, Histogram())

    def merge(self, other: Window) -> None:
        """Merge later figures into these."""
        for name, value in other.sums.items():
            self.count(name, value)
        self.last |= other.last
        for name, most in other.most.items():
            self.most[name] = max(most, self.most.get(name, most))
        for name, histogram in other.spreads.items():
            self.spread(name).merge(histogram)

    def columns(self, metric: Metric, seconds: float) -> dict[str, float | None]:
        """Return column → value of the metric; None: not measured. Args: seconds: length of the window."""
        found: dict[str, float | None] = {}
        for name in metric.sums:
            value = self.sums.get(name, 0)
            found[name], found[f"{name}_per_second"] = value, value / seconds
        for name in metric.levels:
            found[name], found[f"{name}_max"] = self.last.get(name), self.most.get(name)
        for name in metric.spreads:
            histogram = self.spreads.get(name, _NOTHING)
            for percent in PERCENTS:
                found[f"{name}_p{percent}"] = histogram.percentile(percent)
            found[f"{name}_mean"] = histogram.mean
            found[f"{name}_max"] = histogram.high if histogram.count else None
        return found


_NOTHING: Final = Histogram()


def window_start(moment_ms: int, window_ms: int) -> int:
    """Return the beginning of the window that contains a time, ms since 1970."""
    return moment_ms - moment_ms % window_ms
