"""docs/prometheus.md says what the table says."""

from __future__ import annotations

from metaq.metrics import table
from metaq.metrics.reference import full_name, page
from tests.support import ROOT


def test_the_page_is_the_tables():
    assert (ROOT / "docs" / "prometheus.md").read_text() == "\n".join(page()) + "\n", (
        "run python -m metaq.metrics.reference > docs/prometheus.md"
    )


def test_each_metric_is_on_the_page_once():
    lines = list(page())
    for metric in table.ALL:
        assert sum(line.startswith(f"| `{full_name(metric)}` |") for line in lines) == 1, metric
