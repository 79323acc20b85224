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

This page lists all metrics that brokers, name servers, clients, pipelines and Spark queries export for Prometheus, for those who write queries and alerts.
[monitoring.md](monitoring.md) shows how to have them scraped, and has a Grafana dashboard and alerts. Metrics need the extra `http`
(`pip install 'pymetaq[http]'`): brokers and name servers serve them at `/metrics` of their `httpPort`, producers and consumers count in a
`metaq.ClientMetrics`, and pipelines push them to their `metricsUrl`.

- Counters begin with 0 when the process starts.
- A histogram has the series `_bucket`, `_count` and `_sum`. Durations have buckets from 10 µs to 50 s at servers, from 1 ms to 500 s at clients, and
  from 10 ms to 5 000 s in pipelines.
- The labels `topic` and `group` do not have all names. At brokers the `metricsNamesMax` (100) busiest topics, groups, and pairs of both have their own
  series, at clients the first 200 topics. All others share the series `(others)`. No counter ever decreases.
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
        yield "| name | kind | labels | meaning |"
        yield "|---|---|---|---|"
        for metric in table.ALL:
            if metric.of == of:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                yield f"| `{full_name(metric)}` | {metric.kind.value} | {labels} | {metric.help} |"


if __name__ == "__main__":
    print("\n".join(page()))  # noqa: T201  that is what it is for
