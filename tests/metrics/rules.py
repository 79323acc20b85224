"""The rules and the dashboard that are shipped, as PromQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import yaml

from metaq.metrics import table
from metaq.metrics.metric import Kind, Metric
from metaq.metrics.reference import PREFIX
from tests.support import ROOT

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "metaq.json"
TARGET_LABELS = {"instance", "job"}
"""What Prometheus itself adds."""
SERIES = {
    Kind.COUNTER: ("_total",),
    Kind.INFO: ("_info",),
    Kind.GAUGE: ("",),
    Kind.HISTOGRAM: ("_bucket", "_count", "_sum"),
}


def rules() -> list[dict[str, Any]]:
    """Return all rules, in their order."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def dashboard_queries() -> list[tuple[str, str]]:
    """Return (title of the panel, PromQL), with values for Grafana's variables."""
    return [
        (panel["title"], target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*"))
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel.get("targets", ())
    ]


def series() -> dict[str, Metric]:
    """Return the names of all series that the table stands for."""
    return {PREFIX + metric.name + suffix: metric for metric in table.ALL for suffix in SERIES[metric.kind]}


def nodes(expr: Any) -> Iterator[Any]:
    """Yield an expression of promql_parser, and all that it is made of."""
    yield expr
    for name in ("lhs", "rhs", "expr", "param", "vector_selector", "args"):
        found = getattr(expr, name, None)
        for one in found if isinstance(found, list | tuple) else [] if found is None else [found]:
            yield from nodes(one)


def selectors(text: str) -> list[Any]:
    """Return the selectors of an expression. Raises ValueError: it is none."""
    return [node for node in nodes(promql_parser.parse(text)) if isinstance(node, promql_parser.VectorSelector)]


def labels_named(text: str) -> set[str]:
    """Return the labels by which an expression or a text names something: `by (…)`, `$labels.…`, `{{…}}`."""
    found = set[str]()
    for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", text):
        found |= {name.strip() for name in group.split(",")}
    return found | set(re.findall(r"\$labels\.(\w+)", text)) | set(re.findall(r"\{\{(\w+)\}\}", text))
