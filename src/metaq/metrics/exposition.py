"""Samples as text for Prometheus, in its own format or in that of OpenMetrics. prometheus_client writes both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, assert_never

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client import generate_latest as in_text
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPEN_METRICS_TYPE
from prometheus_client.openmetrics.exposition import generate_latest as in_open_metrics

from metaq.histogram import Histogram
from metaq.in_pieces import InPieces
from metaq.metrics.metric import Kind, Metric, Sample

PREFIX: Final = "metaq_"
_END: Final = b"# EOF\n"


class Page(NamedTuple):
    """The answer to a scrape."""

    content_type: str
    body: bytes


def wants_open_metrics(accept: str) -> bool:
    """Return whether the Accept field of a scrape asks for OpenMetrics."""
    return any(part.split(";")[0].strip() == "application/openmetrics-text" for part in accept.split(","))


def page(samples: Iterable[Sample], *, open_metrics: bool = False) -> InPieces[Page]:
    """Return the samples as text, one metric in each piece. Those of one metric need not come together."""
    parts, end = list[bytes](), _END if open_metrics else b""
    write: Callable[[Any], bytes] = in_open_metrics if open_metrics else in_text
    for family in families(samples):
        yield
        # One after the other: the text of all metrics would hold the loop for as long as it takes.
        parts.append(write(_Collected([family])).removesuffix(end))
    return Page(OPEN_METRICS_TYPE if open_metrics else CONTENT_TYPE_LATEST, b"".join(parts) + end)


def families(samples: Iterable[Sample]) -> list[Family]:
    """Return prometheus_client's families of the samples, in the order in which their metrics come first."""
    found = dict[str, Family]()
    for sample in samples:
        family = found.get(sample.metric.name)
        if family is None:
            family = found[sample.metric.name] = _family(sample.metric)
        _add(family, sample)
    return list(found.values())


class _Collected(NamedTuple):
    """What prometheus_client's writers ask of a registry."""

    families: list[Family]

    def collect(self) -> Iterator[Family]:
        return iter(self.families)


def _family(metric: Metric) -> Family:
    name, labels = PREFIX + metric.name, metric.labels
    match metric.kind:
        case Kind.COUNTER:
            return CounterMetricFamily(name, metric.help, labels=labels, unit=metric.unit)
        case Kind.GAUGE:
            return GaugeMetricFamily(name, metric.help, labels=labels, unit=metric.unit)
        case Kind.HISTOGRAM:
            return HistogramMetricFamily(name, metric.help, labels=labels, unit=metric.unit)
        case Kind.INFO:
            return InfoMetricFamily(name, metric.help, labels=labels)
    assert_never(metric.kind)


def _add(family: Family, sample: Sample) -> None:
    value, labels = sample.value, sample.labels
    match family:
        case HistogramMetricFamily():
            assert isinstance(value, Histogram), f"{family.name} is a histogram"
            family.add_metric(labels, _buckets(value), value.sum)
        case InfoMetricFamily():
            assert isinstance(value, Mapping), f"{family.name} is an info"
            family.add_metric(labels, dict(value))
        case CounterMetricFamily() | GaugeMetricFamily():
            assert isinstance(value, float | int), f"{family.name} is a number"
            family.add_metric(labels, value)


def _buckets(value: Histogram) -> list[tuple[str, float]]:
    buckets, below = list[tuple[str, float]](), 0
    for bound, count in zip((*map(str, value.bounds), "+Inf"), value.counts, strict=True):
        below += count
        buckets.append((bound, below))
    return buckets
