"""The metrics: four kinds of windows, their figures, and their columns. Loads no Spark, Arrow or NumPy.

A window is `windowSeconds` long and begins at a whole multiple of that since 1970, UTC. What decides the window:

    messages     per topic, broker: the store time of the message, the broker's clock
    deliveries   per topic, group, broker: when the delivery began or ended, the consumer's clock
    groups       per topic, group, broker: when it was sampled, the driver's clock
    brokers      per broker: when it was sampled, the driver's clock
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

PERCENTS: Final = (50, 90, 99)


class Metric(Struct, frozen=True):
    """One kind of window."""

    name: str
    labels: tuple[str, ...]
    """Labels of its series: some of topic, group and broker."""
    sums: dict[str, str]
    """Sums: column → meaning. Each has a rate too, `…_per_second`."""
    levels: dict[str, str] = {}
    """Sampled values: column → meaning. The column is the last value, `…_max` the largest."""
    spreads: dict[str, str] = {}
    """Latencies in ms: `…_p50`, `…_p90`, `…_p99`, `…_mean`, `…_max`, and `…_histogram`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns with numbers, which rules may name."""
        return (
            *(name for sum_ in self.sums for name in (sum_, f"{sum_}_per_second")),
            *(name for level in self.levels for name in (level, f"{level}_max")),
            *(f"{spread}_{end}" for spread in self.spreads for end in (*(f"p{p}" for p in PERCENTS), "mean", "max")),
        )


METRICS: Final = {
    one.name: one
    for one in (
        Metric(
            "messages",
            ("topic", "broker"),
            {
                "messages": "Messages stored.",
                "bytes": "Bytes of their records in the log, what brokers count as put.",
            },
            spreads={"born_stored": "From the producer's clock to the broker's."},
        ),
        Metric(
            "deliveries",
            ("topic", "group", "broker"),
            {"deliveries": "Deliveries that consumers traced.", "failed": "Those that ended without success."},
            spreads={
                "stored_consumed": "From the message's store time to the beginning of a delivery.",
                "born_consumed": "From the message's birth to the same.",
                "handling": "From the beginning of a delivery to its end.",
            },
        ),
        Metric(
            "groups",
            ("topic", "group", "broker"),
            {
                "consumed": "Messages by which the group's progress moved on.",
                "consumed_bytes": "Bytes of those that this pipeline has read, as they are stored.",
            },
            levels={
                "lag_messages": "Messages that the group has not consumed.",
                "lag_seconds": "Age of the oldest of them, 0 if there is none.",
            },
        ),
        Metric(
            "brokers",
            ("broker",),
            {
                "put_messages": "The broker's own counter of messages stored, all topics.",
                "put_bytes": "Its counter of bytes stored.",
                "got_messages": "Its counter of messages handed out.",
            },
        ),
    )
}
LABELS: Final = {name: metric.labels for name, metric in METRICS.items()}
METRIC_OF: Final = {column: name for name, metric in METRICS.items() for column in metric.columns}
"""Column → the metric that has it."""
