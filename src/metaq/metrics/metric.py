"""A metric, and one value of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from metaq.histogram import Histogram


class Kind(enum.Enum):
    """What a metric does: the words of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Of(enum.Enum):
    """Whose metric it is."""

    BROKER = "broker"
    NAMESRV = "name server"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    PIPELINE = "pipeline"


class Metric(Struct, frozen=True):
    """One entry of the table of metrics.

    `name`: without the suffix of its kind, which the text adds (`_total`, `_info`). `unit`: of the values; "" for counts. The
    name ends with it, as OpenMetrics wants. `labels`: names of what values are told apart by. `of`: who has it.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    of: tuple[Of, ...] = (Of.BROKER,)


Value: TypeAlias = "float | Histogram | Mapping[str, str]"
"""A number; of a histogram its counts; of an info its pairs."""


class Sample(NamedTuple):
    """A value of a metric, with the values of its labels."""

    metric: Metric
    value: Value
    labels: tuple[str, ...] = ()
