"""`python -m metaq.metrics.reference` prints docs/prometheus.md: all metrics, from their table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from metaq.metrics import table
from metaq.metrics.metric import Kind, Metric, Of

PREFIX: Final = "metaq_"
SUFFIX: Final[Mapping[Kind, str]] = {Kind.COUNTER: "_total", Kind.INFO: "_info"}
_PARTS: Final = (
    ("Brokers and name servers", (Of.BROKER, Of.NAMESRV)),
    ("Brokers", (Of.BROKER,)),
    ("Name servers", (Of.NAMESRV,)),
    ("Producers", (Of.PRODUCER,)),
    ("Consumers", (Of.CONSUMER,)),
    ("Pipelines and queries of Spark", (Of.PIPELINE,)),
)
_HEAD: Final = """\
# Metrics for Prometheus

<!-- Made by `python -m metaq.metrics.reference`; tests/metrics/test_reference.py holds it to the table. -->

All metrics of brokers, name servers, clients and pipelines. How to have them scraped, the Grafana dashboard and the alerts are in
[monitoring.md](monitoring.md). Counters count since the start of the process. A histogram has the series `_bucket`, `_count` and
`_sum`; those of durations have buckets from 10 µs to 50 s, of clients from 1 ms to 500 s. Names of topics and groups are bounded by `metricsNamesMax`: the busiest have
series of their own, all others are one, `(others)`, which only grows.
"""


def full_name(metric: Metric) -> str:
    """Return a metric's name as queries have it; of a histogram the common part."""
    return PREFIX + metric.name + SUFFIX.get(metric.kind, "")


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield _HEAD.rstrip()
    for title, of in _PARTS:
        yield ""
        yield f"## {title}"
        yield ""
        yield "| name | kind | labels | what it says |"
        yield "|---|---|---|---|"
        for metric in table.ALL:
            if metric.of == of:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                yield f"| `{full_name(metric)}` | {metric.kind.value} | {labels} | {metric.help} |"


if __name__ == "__main__":
    print("\n".join(page()))  # noqa: T201  that is what it is for
