"""Open windows: mergeable sums, levels and histograms."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from metaq.pipelines.metrics.figures import LABELS, METRICS, PERCENTS
from metaq.pipelines.metrics.histogram import Histogram


class MetricSeries(Struct, frozen=True, order=True, array_like=True):
    """Identity of a series of windows: what is measured, and of which topic, group and broker. A label that its metric does not have is empty."""

    metric: str
    """`messages`, `deliveries`, `groups` or `brokers` (docs/metrics.md)."""
    topic: str = ""
    """Name of the topic; empty for `brokers`."""
    group: str = ""
    """Name of the consumer group; empty for `messages` and `brokers`."""
    broker: str = ""
    """Name of the broker; empty where brokers are merged (`over_brokers`)."""

    @property
    def labels(self) -> dict[str, str]:
        """Labels that the metric has, name → value."""
        return {name: getattr(self, name) for name in LABELS[self.metric]}


class MetricWindow(Struct):
    """Figures of one series in one window, by the names of the columns in docs/metrics.md. Mutable, not thread-safe."""

    sums: dict[str, int] = field(default_factory=dict)
    """Sums of the window, such as `messages` and `bytes`; one that is missing is 0."""
    last: dict[str, float] = field(default_factory=dict)
    """Sampled values, such as `lag_messages` and `lag_seconds`: the last of the window."""
    most: dict[str, float] = field(default_factory=dict)
    """The largest of the same values in the window."""
    spreads: dict[str, Histogram] = field(default_factory=dict)
    """Latencies in ms, such as `born_stored`."""

    def count(self, name: str, value: int) -> None:
        """Add to a sum."""
        self.sums[name] = self.sums.get(name, 0) + value

    def level(self, name: str, value: float) -> None:
        """Take a later sample of a value."""
        self.last[name] = value
        self.most[name] = max(value, self.most.get(name, value))

    def spread(self, name: str) -> Histogram:
        """Return the histogram of that name, made if there is none."""
        return self.spreads.setdefault(name, Histogram())

    def merge(self, other: MetricWindow) -> None:
        """Merge later figures into these."""
        for name, value in other.sums.items():
            self.count(name, value)
        self.last |= other.last
        for name, most in other.most.items():
            self.most[name] = max(most, self.most.get(name, most))
        for name, histogram in other.spreads.items():
            self.spread(name).merge(histogram)

    def columns(self, metric: str, seconds: float) -> dict[str, float | None]:
        """Return column → value, as in the pipeline's files; None: not measured.

        Args: metric: that of the series. seconds: length of the window.
        """
        kind = METRICS[metric]
        found: dict[str, float | None] = {}
        for name in kind.sums:
            value = self.sums.get(name, 0)
            found[name], found[f"{name}_per_second"] = value, value / seconds
        for name in kind.levels:
            found[name], found[f"{name}_max"] = self.last.get(name), self.most.get(name)
        for name in kind.spreads:
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
