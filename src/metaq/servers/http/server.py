"""The HTTP server of a broker: what its pages share, and the application that leads to them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from metaq.errors import BadRequest, MetaqError, Refused, shortage
from metaq.log import RateLimitedLog
from metaq.model.acl.judgement import Denied
from metaq.net.budget import Budget, ListenLimits
from metaq.net.peer import Peer
from metaq.options import BrokerOptions
from metaq.servers.http.answers import problem_answer
from metaq.servers.http.callers import Callers
from metaq.servers.http.connection import ClientGone, HttpConnection, HttpSpace
from metaq.servers.http.health import HealthPages
from metaq.servers.http.messages.progress import Progress
from metaq.servers.http.messages.puller import Puller
from metaq.servers.http.messages.pulling import Pulling
from metaq.servers.http.messages.sending import Sending
from metaq.servers.http.messages.streaming import Streaming
from metaq.servers.http.problems import Problem, problem_of
from metaq.servers.http.requests import Acks
from metaq.servers.http.scrape import Scrape
from metaq.servers.server import BrokerServices, PeerServer

if TYPE_CHECKING:
    from metaq.net.tls.server import ServerTls

log = logging.getLogger(__name__)

AUTHENTICATE: Final = {"www-authenticate": 'Basic realm="metaq", charset="UTF-8"'}


class HttpServer:
    """The sessions of one broker's HTTP server. A `metaq.servers.server.SessionServer`.

    Args: services: of the broker. connections: yields the protocol servers and how many connections each has.
    """

    def __init__(self, services: BrokerServices, connections: Callable[[], Iterable[tuple[str, int]]]) -> None:
        broker, callers = services.broker, Callers(services.access)
        self._acks = Acks(broker, services.call_soon)
        self._puller = Puller(broker)
        pages = (
            HealthPages(broker),
            Scrape(broker, callers, connections),
            Sending(broker, self._acks, callers),
            Pulling(self._puller, callers),
            Streaming(broker, self._puller, callers),
            Progress(broker, callers),
        )
        self._faults = RateLimitedLog(log, broker.clock)
        self._space = HttpSpace(application(pages, self._faults), broker.clock)

    def session(self, peer: Peer) -> HttpConnection:
        """Make the session of a new connection."""
        return HttpConnection(peer, self._space)

    def tick(self) -> None:
        """End what has waited too long."""
        self._space.tick()
        self._acks.tick()
        self._faults.tick()

    def close(self) -> None:
        """Cancel what is still being answered: its connections are closed."""
        for task in list(self._space.state.tasks):
            task.cancel()
        self._puller.close()


def application(pages: Iterable[Any], faults: RateLimitedLog) -> Starlette:
    """Return the application of some pages. What they raise is answered as a problem."""

    async def refused(_request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused), "it is registered for these"
        answer = problem_answer(problem_of(error))
        if isinstance(error, Denied):
            answer.status_code = 401 if "authorization" not in _request.headers else 403
            if answer.status_code == 401:
                answer.headers.update(AUTHENTICATE)
        return answer

    async def malformed(_request: Request, error: Exception) -> Response:
        return problem_answer(Problem(400, "the request cannot be understood", str(error)))

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "it is registered for these"
        text = f"{request.method} {request.url.path[:200]}: {error.detail}"
        answer = problem_answer(Problem(error.status_code, text))
        answer.headers.update(error.headers or {})
        return answer

    return _Guarded(
        Starlette(
            routes=[route for page in pages for route in page.routes()],
            exception_handlers={Refused: refused, BadRequest: malformed, HTTPException: unknown},
        ),
        faults,
    )  # type: ignore[return-value]


class _Guarded:
    """An application of which no failure gets out: whoever asks is told, and the log has the rest."""

    def __init__(self, app: Starlette, faults: RateLimitedLog) -> None:
        self._app, self._faults = app, faults

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        begun = False

        async def noting(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except ClientGone:
            pass
        except Exception as error:  # noqa: BLE001  whatever a page does wrong, its request alone pays
            self._tell(scope["path"], error)
            if begun:
                scope["state"]["connection"].peer.close("its answer failed")
                return
            detail = shortage(error) or f"{type(error).__name__}: {error}"
            await problem_answer(Problem(500, "the request failed", detail))(scope, receive, send)

    def _tell(self, path: str, error: Exception) -> None:
        if isinstance(error, MetaqError | OSError | MemoryError):
            self._faults.warning((path, type(error)), "a request of %.200s failed: %s", path, error)
        else:
            self._faults.error((path, type(error)), "a request of %.200s failed", path, error=error)


def http_server(
    options: BrokerOptions,
    limits: ListenLimits,
    connections: Callable[[], Iterable[tuple[str, int]]],
    budget: Budget | None = None,
    tls: ServerTls | None = None,
) -> PeerServer[BrokerServices]:
    """Make the server of a broker's `httpPort`, not bound yet.

    Args:
        options: have its address and port.
        limits: of what peers may take.
        connections: yields the protocol servers and how many connections each has.
        budget: of all servers of the process.
        tls: of the process; None: plain text only.
    """

    def open_sessions(services: BrokerServices, server: PeerServer[BrokerServices]) -> HttpServer:
        server.admit_by(services.broker.quotas)
        return HttpServer(services, connections)

    assert options.http_port is not None, "there is an HTTP server"
    return PeerServer(
        "http", (options.http_bind_address, options.http_port), limits, open_sessions,
        what="the HTTP server (httpPort)", budget=budget, tls=tls,
    )  # fmt: skip
