"""Metrics of a pipeline that runs: pushed with each batch, where the option `metricsUrl` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaq.errors import ConfigError
from metaq.metrics.queries import QueryFigures
from metaq.pipelines.run import Run, RunStatus

if TYPE_CHECKING:
    from metaq.metrics.pushing import Pusher

ROWS = ("rows", "messages")
"""Figures of a batch that say how much it has read, the first that it has."""


def push_from(run: Run, target: str, name: str) -> None:
    """Push metrics of a run with each of its batches, and at its end.

    Args:
        run: of the pipeline.
        target: as of `metaq.metrics.pushing.Pusher`.
        name: of the query, the label of its metrics, and the job at a Pushgateway: `metaq-NAME`.
    Raises: ConfigError: the target is none, or prometheus_client is not installed.
    """
    try:
        from metaq.metrics.pushing import Pusher  # only where it is wanted: it is an extra
    except ModuleNotFoundError as error:
        raise ConfigError(f"metricsUrl needs the package {error.name}: pip install 'pymetaq[http]'") from None
    figures = QueryFigures()
    pusher = Pusher(target, f"metaq-{name}", figures.samples)
    run.watch(_Watch(figures, pusher, name).seen)
    run.at_end(pusher.close)


class _Watch:
    """Counts the batches of a run, by its status."""

    def __init__(self, figures: QueryFigures, pusher: Pusher, name: str) -> None:
        self._figures, self._pusher, self._name, self._batches = figures, pusher, name, 0

    def seen(self, status: RunStatus) -> None:
        """Count what is new. In the thread that changed the status."""
        if status.batches == self._batches:
            return
        self._batches = status.batches
        last = status.last
        rows = next((last[name] for name in ROWS if isinstance(last.get(name), int)), 0)
        seconds = last.get("seconds")
        self._figures.batch(
            self._name, rows, float(seconds) if isinstance(seconds, int | float) else None, status.behind
        )
        self._pusher.note()
