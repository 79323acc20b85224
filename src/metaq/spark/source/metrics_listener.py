"""`metaq.spark.MetricsListener`: pushes metrics of a session's queries that read `format("metaq")`."""

from __future__ import annotations

import logging
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from metaq.errors import ConfigError
from metaq.metrics.pushing import Pusher
from metaq.metrics.queries import QueryFigures
from metaq.spark.source.progress import of_progress

_LOG = logging.getLogger(__name__)


class MetricsListener(StreamingQueryListener):  # type: ignore[misc]
    """Pushes rows, batches, their seconds and what is left to read, of each query after each micro-batch.

        spark.streams.addListener(metaq.spark.MetricsListener("http://pushgateway:9091", job="orders"))

    A query is named by its name, or its id. See docs/monitoring.md, and docs/prometheus.md for the names. `close` it
    before the process ends: the figures of the last batch may still be on their way.

    Args:
        to: URL of a Pushgateway, or path of a `.prom` file for node_exporter.
        job: name of the job at a Pushgateway.
    Raises: ConfigError: `to` is neither.
    """

    def __init__(self, to: str, job: str = "metaq-spark") -> None:
        self._figures = QueryFigures()
        self._pusher = Pusher(to, job, self._figures.samples)

    def close(self) -> None:
        """Push what is due, and end."""
        self._pusher.close()

    # -------------------------------------------------------------- what Spark calls; the names are Spark's
    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Do nothing: a query that has no batch yet has no figures."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Count a micro-batch."""
        progress = event.progress
        try:
            found = of_progress(progress)
        except ConfigError as fault:  # a query of other sources: a listener gets the events of all
            _LOG.debug("%s", fault)
            return
        milliseconds = (progress.durationMs or {}).get("triggerExecution")
        self._figures.batch(
            progress.name or str(progress.id),
            progress.numInputRows or 0,
            None if milliseconds is None else milliseconds / 1000,
            found.behind if found is not None else None,
        )
        self._pusher.note()

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing: an idle query has no news."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802, ARG002
        """Push what is due."""
        self._pusher.note()
