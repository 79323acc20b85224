"""The HTTP server of a broker: what its pages share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import metaq
from metaq.log import RateLimitedLog
from metaq.net.budget import Budget, ListenLimits
from metaq.net.peer import Peer
from metaq.options import BrokerOptions
from metaq.servers.http.application import Application, Page
from metaq.servers.http.callers import Callers
from metaq.servers.http.connection import HttpConnection, HttpSpace
from metaq.servers.http.health import HealthPages
from metaq.servers.http.inspection import Inspecting
from metaq.servers.http.messages.progress import GroupProgress
from metaq.servers.http.messages.puller import ColdReader, Puller
from metaq.servers.http.messages.pulling import Pulling
from metaq.servers.http.messages.receiving import Receiving
from metaq.servers.http.messages.saves import OffsetSaves
from metaq.servers.http.messages.sending import Sending
from metaq.servers.http.messages.streaming import Streaming
from metaq.servers.http.metrics.process import ProcessFigures, ServerFigures
from metaq.servers.http.requests import Acks
from metaq.servers.http.scrape import Scrape
from metaq.servers.http.starting import EarlyServer
from metaq.servers.server import BrokerServices, PeerServer

if TYPE_CHECKING:
    from metaq.net.tls.server import ServerTls

log = logging.getLogger(__name__)


class HttpServer:
    """The sessions of one broker's HTTP server. A `metaq.servers.server.SessionServer`.

    Args: services: of the broker. process: figures of its process.
    """

    def __init__(self, services: BrokerServices, process: ProcessFigures) -> None:
        self._process = process
        process.start()
        broker, callers = services.broker, Callers(services.access)
        self._acks = Acks(broker, services.call_soon)
        self._cold = ColdReader()
        puller, saves = Puller(broker, self._cold), OffsetSaves(broker, services.call_soon)
        sending = Sending(broker, self._acks, callers, services.host, services.tally)
        self._streaming = Streaming(broker, puller, callers)
        pages: list[Page] = [
            HealthPages(broker, services.watched),
            Scrape(broker, callers, process),
            sending,
            Pulling(puller, callers),
            self._streaming,
            GroupProgress(broker, callers, saves, self._acks),
            Receiving(broker, puller, callers, saves),
            Inspecting(broker, callers, metaq.__version__),
        ]
        if broker.metaq1 is not None:
            # Only where MetaQ 1.x is served: see `Metaq1Service`.
            from metaq.servers.http.metaq1.gateway import Gateway
            from metaq.servers.http.metaq1.pages.pages import Metaq1Pages

            stats = services.metaq1_stats
            assert stats is not None, "MetaQ 1.x is served"
            pages.append(Gateway(broker, broker.metaq1, self._acks, self._cold, callers, stats))
            pages.append(Metaq1Pages(broker, broker.metaq1, callers, stats, services.log, metaq.__version__))
        self._faults = RateLimitedLog(log, broker.clock)
        operations = [operation for page in pages for operation in page.operations()]
        app = Application(operations, self._faults, metaq.__version__, services.audit, services.tally)
        self._space = HttpSpace(app, broker.clock, direct=sending, quotas=broker.quotas)

    def session(self, peer: Peer) -> HttpConnection:
        """Make the session of a new connection."""
        return HttpConnection(peer, self._space)

    def tick(self) -> None:
        """End what has waited too long."""
        self._space.tick()
        self._acks.tick()
        self._streaming.tick()
        self._faults.tick()

    def close(self) -> None:
        """Cancel what is still being answered: its connections are closed."""
        self._process.close()
        for task in list(self._space.state.tasks):
            task.cancel()
        self._streaming.close()
        self._cold.close()


def http_server(
    options: BrokerOptions,
    limits: ListenLimits,
    servers: Callable[[], Iterable[ServerFigures]],
    budget: Budget,
    tls: ServerTls | None = None,
) -> EarlyServer:
    """Make the server of a broker's `httpPort`, not bound yet.

    Args:
        options: have its address and port.
        limits: of what peers may take.
        servers: returns all protocol servers.
        budget: of all servers of the process.
        tls: of the process; None: plain text only.
    """

    def open_sessions(services: BrokerServices, server: PeerServer[BrokerServices]) -> HttpServer:
        server.admit_by(services.broker.quotas)
        return HttpServer(services, ProcessFigures(servers, budget, services.tally))

    assert options.http_port is not None, "there is an HTTP server"
    return EarlyServer(
        "http", (options.http_bind_address, options.http_port), limits, open_sessions,
        what="the HTTP server (httpPort; dashboardHttpPort of a server.ini)", budget=budget, tls=tls,
    )  # fmt: skip
