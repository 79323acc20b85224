"""The HTTP server of a name server: its metrics and its health."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

import metaq
from metaq.broker.acl import AccessControl
from metaq.log import RateLimitedLog
from metaq.metrics.exposition import page, wants_open_metrics
from metaq.model.access import Action
from metaq.namesrv.service import NameService
from metaq.net.budget import Budget, ListenLimits
from metaq.net.peer import Peer
from metaq.options import NamesrvOptions
from metaq.servers.http.answers import in_turns, json_answer
from metaq.servers.http.application import Application
from metaq.servers.http.callers import Callers
from metaq.servers.http.connection import HttpConnection, HttpSpace
from metaq.servers.http.health import Health
from metaq.servers.http.metrics.namesrv import samples_of
from metaq.servers.http.metrics.process import ProcessFigures, ServerFigures
from metaq.servers.http.operations import JSON, Content, Operation
from metaq.servers.http.scrape import metrics_operation
from metaq.servers.server import PeerServer
from metaq.servers.tally import Tally

if TYPE_CHECKING:
    from metaq.net.tls.server import ServerTls

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""Interval of the look at requests that have waited too long: a name server's own timer runs every ten seconds."""


class NamesrvPages:
    """`/metrics`, `/health/live` and `/health/ready` of a name server. Health is open to everybody.

    Args: service: the name server. callers: finds who asks. process: figures of its process. access: accounts; None: there are none.
    """

    def __init__(
        self, service: NameService, callers: Callers, process: ProcessFigures, access: AccessControl | None
    ) -> None:
        self._service, self._callers, self._process, self._access = service, callers, process, access

    def operations(self) -> list[Operation]:
        """Return the operations."""
        answers = {200: Content(JSON, Health)}
        return [
            metrics_operation(self._metrics),
            Operation(
                name="healthLive", method="GET", path="/health/live", text="Tell that the process lives.", run=self._live,
                answers=answers,
            ),
            Operation(
                name="healthReady", method="GET", path="/health/ready", text="Tell that clients are served.", run=self._ready,
                answers=answers,
            ),
        ]  # fmt: skip

    async def _metrics(self, request: Request) -> Response:
        caller = self._callers.of(request)
        if self._access is not None:
            self._access.gatekeeper.check(caller, Action.OBSERVE, "")
        samples = [*self._process.samples(self._service.started_ms), *samples_of(self._service)]
        open_metrics = wants_open_metrics(request.headers.get("accept", ""))
        answer = await in_turns(page(samples, open_metrics=open_metrics))
        return Response(answer.body, headers={"content-type": answer.content_type})

    async def _live(self, _request: Request) -> Response:
        return json_answer(Health("ok", "", "namesrv"))

    async def _ready(self, _request: Request) -> Response:
        # Also without a broker: an empty route table is an answer, and brokers register when it is there.
        figures = self._service.figures()
        notes = () if figures.brokers else ("no broker is registered",)
        return json_answer(Health("ready", "", "namesrv", (), notes))


class NamesrvHttp:
    """The sessions of a name server's HTTP server. A `metaq.servers.server.SessionServer`.

    Args as of `NamesrvPages`, and tally: counts the requests.
    """

    def __init__(
        self, service: NameService, process: ProcessFigures, access: AccessControl | None, tally: Tally
    ) -> None:
        self._process, self._faults = process, RateLimitedLog(log, service.clock)
        pages = NamesrvPages(service, Callers(access), process, access)
        app = Application(pages.operations(), self._faults, metaq.__version__, tally=tally)
        self._space = HttpSpace(app, service.clock)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(TICK_SECONDS, self._look)
        process.start()

    def _look(self) -> None:
        self._timer = self._loop.call_later(TICK_SECONDS, self._look)
        self._space.tick()

    def session(self, peer: Peer) -> HttpConnection:
        """Make the session of a new connection."""
        return HttpConnection(peer, self._space)

    def tick(self) -> None:
        """End what has waited too long."""
        self._space.tick()
        self._faults.tick()

    def close(self) -> None:
        """Cancel what is still being answered: its connections are closed."""
        self._process.close()
        self._timer.cancel()
        for task in list(self._space.state.tasks):
            task.cancel()


def namesrv_http_server(
    options: NamesrvOptions,
    limits: ListenLimits,
    servers: Callable[[], Iterable[ServerFigures]],
    budget: Budget,
    tally: Tally,
    access: AccessControl | None = None,
    tls: ServerTls | None = None,
) -> PeerServer[NameService]:
    """Make the server of a name server's `httpPort`, not bound yet.

    Args:
        options: have its address and port.
        limits: of what peers may take.
        servers: returns all protocol servers.
        budget: of all servers of the process.
        tally: counts the requests of all of them.
        access: accounts; None: there are none.
        tls: of the process; None: plain text only.
    """

    def open_sessions(service: NameService, _server: PeerServer[NameService]) -> NamesrvHttp:
        return NamesrvHttp(service, ProcessFigures(servers, budget, tally), access, tally)

    assert options.http_port is not None, "there is an HTTP server"
    return PeerServer(
        "http", (options.http_bind_address, options.http_port), limits, open_sessions,
        what="the HTTP server (httpPort)", budget=budget, tls=tls,
    )  # fmt: skip
