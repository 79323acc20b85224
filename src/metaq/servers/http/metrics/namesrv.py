"""A name server's figures as samples."""

from __future__ import annotations

from collections.abc import Iterator

from metaq.metrics import table
from metaq.metrics.metric import Sample
from metaq.namesrv.service import NameService


def samples_of(service: NameService) -> Iterator[Sample]:
    """Yield the samples of this moment."""
    figures = service.figures()
    yield Sample(table.NAMESRV_BROKERS, figures.brokers)
    yield Sample(table.NAMESRV_TOPICS, figures.topics)
    yield Sample(table.NAMESRV_REGISTRATIONS, figures.registrations)
    yield Sample(table.NAMESRV_ROUTES, figures.routes_found, ("found",))
    yield Sample(table.NAMESRV_ROUTES, figures.routes_missing, ("missing",))
    for why, count in figures.removed.items():
        yield Sample(table.NAMESRV_REMOVED, count, (why,))
