"""`/metrics`: a broker's figures as text for Prometheus."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.metrics.exposition import Page, page, wants_open_metrics
from metaq.model.access import Action
from metaq.servers.http.answers import in_turns
from metaq.servers.http.callers import Callers
from metaq.servers.http.metrics.broker import BrokerMetrics
from metaq.servers.http.metrics.groups import GroupMetrics
from metaq.servers.http.metrics.process import ProcessFigures
from metaq.servers.http.operations import TEXT, Content, Operation, Run


def metrics_operation(run: Run) -> Operation:
    """Return the operation `GET /metrics`, of a broker or a name server."""
    return Operation(
        name="metrics", method="GET", path="/metrics", text="Tell the server's figures, for Prometheus or by OpenMetrics.",
        run=run, answers={200: Content(TEXT)},
    )  # fmt: skip


class Scrape:
    """The page. Scrapes that come together are answered one after the other: each looks at every group.

    Args:
        broker: the broker.
        callers: finds who asks.
        process: figures of the process.
    """

    def __init__(self, broker: Broker, callers: Callers, process: ProcessFigures) -> None:
        self._broker, self._callers = broker, callers
        self._metrics = BrokerMetrics(broker, process, broker.options.metrics_names_max)
        self._groups = GroupMetrics(broker, broker.options.metrics_names_max)
        self._lock = asyncio.Lock()

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [metrics_operation(self._page)]

    async def _page(self, request: Request) -> Response:
        self._broker.gatekeeper.check(self._callers.of(request), Action.OBSERVE, "")
        async with self._lock:
            answer = await self._collect(open_metrics=wants_open_metrics(request.headers.get("accept", "")))
        return Response(answer.body, headers={"content-type": answer.content_type})

    async def _collect(self, *, open_metrics: bool) -> Page:
        samples = await in_turns(self._metrics.samples())
        samples += await self._groups.samples(await in_turns(self._groups.lags()))
        return await in_turns(page(samples, open_metrics=open_metrics))
