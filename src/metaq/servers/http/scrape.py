"""`/metrics`: a broker's figures as text for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.metrics.exposition import Page, page, wants_open_metrics
from metaq.model.access import Action
from metaq.servers.http.answers import in_turns
from metaq.servers.http.callers import Callers
from metaq.servers.http.metrics.broker import BrokerMetrics
from metaq.servers.http.operations import TEXT, Content, Operation


class Scrape:
    """The page. Scrapes that come together are answered one after the other: each looks at every group.

    Args:
        broker: the broker.
        callers: finds who asks.
        connections: yields the protocol servers and how many connections each has.
    """

    def __init__(self, broker: Broker, callers: Callers, connections: Callable[[], Iterable[tuple[str, int]]]) -> None:
        self._broker, self._callers = broker, callers
        self._metrics = BrokerMetrics(broker, connections, broker.options.metrics_names_max)
        self._lock = asyncio.Lock()

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                name="metrics", method="GET", path="/metrics", text="Tell the broker's figures, for Prometheus or by OpenMetrics.",
                run=self._page, answers={200: Content(TEXT)},
            )
        ]  # fmt: skip

    async def _page(self, request: Request) -> Response:
        self._broker.gatekeeper.check(self._callers.of(request), Action.OBSERVE, "")
        async with self._lock:
            answer = await self._collect(open_metrics=wants_open_metrics(request.headers.get("accept", "")))
        return Response(answer.body, headers={"content-type": answer.content_type})

    async def _collect(self, *, open_metrics: bool) -> Page:
        metrics = self._metrics
        samples = await in_turns(metrics.samples())
        samples += await metrics.lag_samples(await in_turns(metrics.lags()))
        return await in_turns(page(samples, open_metrics=open_metrics))
