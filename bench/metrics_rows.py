"""What metrics cost (`metrics_bench.py`): the broker's work with a scraper over that without, and a scrape of 10 000 topics."""

from collections.abc import Callable

import processes
from row import Bench, Measured, Row, once


def _metrics(key: str) -> Callable[[Bench], Measured]:
    def measured(bench: Bench) -> dict[str, Measured]:
        flags = () if bench.scale >= 1 else ("--quick",)
        found = processes.script("metrics_bench.py", "--disk", str(bench.disk), *flags)
        return {"all": {name: value for name, value in found.items() if isinstance(value, int | float)}}

    def measure(bench: Bench) -> Measured:
        numbers = once(bench, "metrics", lambda: measured(bench))["all"]
        return {**numbers, "value": numbers[key]}

    return measure


METRICS_ROWS = (
    Row(
        "metrics-send", "CPU of a send, 64 × 1, with a scrape a second, times that without", "×", 1.02, 1.0,
        _metrics("send_ratio"), runs=1, lower_is_better=True,
    ),
    Row("metrics-pull", "the same, pulls of 32 × 100 B", "×", 1.02, 1.0, _metrics("pull_ratio"), runs=1, lower_is_better=True),
    Row("metrics-scrape", "a scrape at 10 000 topics", "ms", 50, 25, _metrics("scrape_ms"), runs=1, lower_is_better=True),
    Row(
        "metrics-hold", "longest hold of the loop by such a scrape, median", "ms", 5, 3, _metrics("hold_ms"), runs=1,
        lower_is_better=True,
    ),
)  # fmt: skip
