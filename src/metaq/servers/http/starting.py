"""The HTTP server of a broker that is not open yet: it says that the process lives, and how far its start is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from starlette.responses import Response

from metaq.clock import Clock
from metaq.net.peer import Peer
from metaq.servers.http.answers import json_answer, problem_answer
from metaq.servers.http.connection import HttpConnection, HttpSpace
from metaq.servers.http.health import Health
from metaq.servers.http.problems import Problem
from metaq.servers.server import BrokerServices, PeerServer, SessionServer

_LIVE: Final = "/health/live"
_READY: Final = frozenset({"/health", "/health/ready"})
REASON: Final = "starting"
"""Of the problem that all other pages answer with."""


class StartingSessions:
    """Sessions until the broker is open. A `metaq.servers.server.SessionServer`, and the application of its sessions.

    Args:
        clock: of the limits.
        name, role: the broker's.
        status: how far the start is.
    """

    def __init__(self, clock: Clock, name: str, role: str, status: Callable[[], str]) -> None:
        self._name, self._role, self._status = name, role, status
        self._space = HttpSpace(self.answer, clock)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request. The connection ends behind it: the broker's pages are for the next one."""
        answer = self._answer(scope["path"])
        answer.headers["connection"] = "close"
        await answer(scope, receive, send)

    def _answer(self, path: str) -> Response:
        status = self._status()
        if path == _LIVE:
            return json_answer(Health("ok", self._name, self._role, notes=(status,)))
        if path in _READY:
            problem = Problem(503, "")
            return json_answer(Health("unready", self._name, self._role, (status,)), 503, problem.headers)
        return problem_answer(Problem(503, "the broker is starting", status, REASON))

    def session(self, peer: Peer) -> HttpConnection:
        """Make the session of a new connection."""
        return HttpConnection(peer, self._space)

    def tick(self) -> None:
        """End what has waited too long."""
        self._space.tick()

    def close(self) -> None:
        """Cancel what is still being answered."""
        for task in list(self._space.state.tasks):
            task.cancel()


class EarlyServer(PeerServer[BrokerServices]):
    """A server that may answer before there are services."""

    _early: StartingSessions | None = None

    async def begin(self, sessions: StartingSessions) -> None:
        """Let clients in whom `sessions` answers, until `start`. Raises ConfigError: another process took the port."""
        self._early = sessions
        await self._listener.start(self._session)

    def _session(self, peer: Peer) -> HttpConnection:
        sessions: SessionServer | None = self._sessions or self._early
        assert sessions is not None, "somebody has to answer"
        session = sessions.session(peer)
        assert isinstance(session, HttpConnection), "they are of one protocol"
        return session

    async def start(self, services: BrokerServices) -> None:
        """Have the pages of the broker answer from now on."""
        if self._early is None:
            await super().start(services)
        else:
            self._sessions = self._open_sessions(services, self)

    def tick(self) -> None:
        """End what has waited too long."""
        if self._early is not None:
            self._early.tick()
        super().tick()

    async def close(self) -> None:
        """Stop accepting, and end the connections."""
        await super().close()
        if self._early is not None:
            self._early.close()
