"""The ASGI application: every request is guarded, then a page, an action of its forms, or what pages load."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from metaq.clock import Clock
from metaq.dashboard.answering import Answering, asking_of
from metaq.dashboard.login import Logins
from metaq.dashboard.page import FORMAT, Page
from metaq.dashboard.rendering.static import StaticFile
from metaq.dashboard.requests import fields_of_form
from metaq.dashboard.security.guard import HEADERS, Hosts
from metaq.dashboard.visitors import Visitors
from metaq.log import RateLimitedLog
from metaq.servers.http.connection import ClientGone

log = logging.getLogger(__name__)


class Application:
    """The application. Args: pages: all. static: by name. visitors: who asks. hosts: names that are ours."""

    def __init__(
        self,
        pages: Sequence[Page],
        static: Mapping[str, StaticFile],
        visitors: Visitors,
        logins: Logins,
        answering: Answering,
        hosts: Hosts,
        clock: Clock,
    ) -> None:
        self._static, self._visitors, self._logins = static, visitors, logins
        self._answering, self._hosts = answering, hosts
        self._faults = RateLimitedLog(log, clock)
        self._pages: list[tuple[Page, BaseRoute]] = [(page, self._route(page)) for page in pages]
        routes = [
            Route("/static/{name}", self._file),
            Route("/live", self._follow),
            Route("/login", self._log_in, methods=["GET", "POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            *(route for _, route in self._pages),
        ]
        self._app = Starlette(routes=routes, exception_handlers={HTTPException: self._unknown})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        begun = False

        async def guarded(message: Any) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                fields = message.setdefault("headers", [])
                message["headers"] = [*fields, *((name.encode(), value.encode()) for name, value in HEADERS.items())]
            await send(message)

        request = Request(scope)
        if not self._hosts.knows(request.headers.get("host", "")):
            text = "This dashboard is not known under the name that was asked for: start it with --name, or ask for its address.\n"
            await Response(text, 421, media_type="text/plain")(scope, receive, guarded)
            return
        try:
            await self._app(scope, receive, guarded)
        except ClientGone:
            pass
        except Exception as error:  # noqa: BLE001  whatever a page does wrong, its request alone pays
            self._faults.error((scope["path"], type(error)), "a request of %.200s failed", scope["path"], error=error)
            if begun:
                scope["state"]["connection"].peer.close("its answer failed")
                return
            text = f"This page failed: {type(error).__name__}. The dashboard's log has the rest.\n"
            await Response(text, 500, media_type="text/plain")(scope, receive, guarded)

    def _route(self, page: Page) -> Route:
        async def run(request: Request) -> Response:
            visitor = self._visitors.of(request)
            if visitor.must_return:
                return self._answering.bounce(request)
            if visitor.cluster is None:
                return self._logins.wanted(request)
            asking = asking_of(page, request, visitor, visitor.cluster)
            if request.method == "POST":
                form = await fields_of_form(request)
                self._visitors.check_form(request, visitor, form)
                return await self._answering.change(asking, form)
            if page.file is not None and request.query_params.get(FORMAT) == "file":
                return await self._answering.file(asking)
            return await self._answering.page(asking, as_json=_wants_json(request))

        return Route(page.path, run, methods=["GET", "POST"] if page.changes else ["GET"], name=page.name)

    async def _follow(self, request: Request) -> Any:
        visitor = self._visitors.of(request)
        if visitor.cluster is None or not visitor.cookie:
            raise HTTPException(403, "log in first")
        return self._answering.follow(request, visitor, visitor.cluster, self._pages)

    async def _file(self, request: Request) -> Response:
        file = self._static.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404, "no such file")
        kept = "public, max-age=31536000, immutable" if request.query_params.get("v") else "no-cache"
        return Response(file.body, headers={"cache-control": kept, "content-type": file.kind})

    async def _log_in(self, request: Request) -> Response:
        visitor = self._visitors.of(request)
        if visitor.must_return:
            return self._answering.bounce(request)
        if request.method == "GET":
            return self._logins.form(request, visitor)
        form = await fields_of_form(request)
        self._visitors.check_form(request, visitor, form)
        return await self._logins.log_in(request, visitor, form)

    async def _log_out(self, request: Request) -> Response:
        visitor = self._visitors.of(request)
        form = await fields_of_form(request)
        self._visitors.check_form(request, visitor, form)
        return await self._logins.log_out(visitor)

    async def _unknown(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "it is registered for these"
        visitor = self._visitors.of(request)
        if _wants_json(request) or request.url.path == "/live":
            return self._answering.problem(error.status_code, error.detail)
        if visitor.cluster is None:
            return Response(f"{error.detail}\n", error.status_code, media_type="text/plain")
        return self._answering.error(visitor, visitor.cluster, error.status_code, error.detail)


def _wants_json(request: Request) -> bool:
    return request.query_params.get(FORMAT) == "json"
