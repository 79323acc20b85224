"""Answers: pages, what their forms have done, errors, and streams of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route

from metaq.admin.brokers import BrokerNotFound
from metaq.admin.groups import GroupNotFound
from metaq.admin.messages import MessageNotFound
from metaq.admin.topics import TopicNotFound
from metaq.admin.traces import TraceNotFound
from metaq.admin.transactions import TransactionNotFound
from metaq.admin.zookeeper.seen import NodeNotFound
from metaq.clock import Clock
from metaq.dashboard.beside.folders import FolderNotShown
from metaq.dashboard.beside.sources import Sources
from metaq.dashboard.cluster import PAGE_SECONDS, Cluster
from metaq.dashboard.decoding.schemas import Decoder
from metaq.dashboard.live import VIEWERS_MAX, EventStream, Live
from metaq.dashboard.page import FORMAT, Asked, Done, Page, query_of
from metaq.dashboard.rendering.renderer import Frame, Notice, Renderer
from metaq.dashboard.requests import raw_path, relative
from metaq.dashboard.visitors import Visitor, Visitors
from metaq.errors import AccessDenied, BadRequest, ConfigError, ConnectionFailed, MetaqError, NoRoute, RequestTimeout
from metaq.servers.http.problems import CONTENT_TYPE, Problem

_NOT_FOUND: Final = (
    TopicNotFound, GroupNotFound, BrokerNotFound, MessageNotFound, TraceNotFound, TransactionNotFound, NoRoute,
    FolderNotShown, NodeNotFound,
)  # fmt: skip
TITLES: Final = {
    400: "This cannot be understood",
    403: "Not allowed",
    404: "Not found",
    405: "Not allowed",
    502: "The cluster refuses",
    503: "The cluster does not answer",
}


class Asking(Struct, frozen=True):
    """A page that is asked for. `place`: its path, with names quoted as they came; `params`: without the format."""

    page: Page
    path: Mapping[str, str]
    place: str
    params: Mapping[str, str]
    visitor: Visitor
    cluster: Cluster


def asking_of(page: Page, request: Request, visitor: Visitor, cluster: Cluster) -> Asking:
    """Return what a request asks for."""
    params = {name: value for name, value in request.query_params.items() if name != FORMAT}
    return Asking(page, request.path_params, raw_path(request), params, visitor, cluster)


class Answering:
    """Makes answers.

    Args:
        allow_changes: forms are shown and accepted.
        sources: what is shown beside the cluster.
        schemas: topic → how its bodies are decoded.
    """

    def __init__(
        self,
        renderer: Renderer,
        visitors: Visitors,
        live: Live,
        clock: Clock,
        *,
        allow_changes: bool,
        sources: Sources | None = None,
        schemas: Mapping[str, Decoder] | None = None,
    ) -> None:
        self._renderer, self._visitors, self._live, self._clock = renderer, visitors, live, clock
        self._allow_changes, self._sources, self._schemas = allow_changes, sources, schemas or {}

    async def page(self, asking: Asking, *, as_json: bool) -> Response:
        """Answer with a page, or with its values."""
        try:
            values = await self._values(asking)
        except MetaqError as error:
            status, text = status_of(error), str(error)
            return self.problem(status, text) if as_json else self.error(asking.visitor, asking.cluster, status, text)
        if as_json:
            return Response(
                msgspec.json.encode(values), media_type="application/json", headers={"cache-control": "no-store"}
            )
        frame = self._frame(asking.visitor, asking.cluster, asking.place, asking.params)
        return self._html(self._renderer.page(asking.page, values, frame, asking.path).html, asking.visitor)

    async def file(self, asking: Asking) -> Response:
        """Answer with bytes for a file."""
        assert asking.page.file is not None, "it has one"
        try:
            found = await asking.page.file(self._asked(asking))
        except MetaqError as error:
            return self.problem(status_of(error), str(error))
        # The name is of message ids and the like: what is no plain character in it could end the field.
        name = "".join(one if one.isascii() and (one.isalnum() or one in "-_.") else "_" for one in found.name)[:120]
        fields = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
        return Response(found.body, media_type="application/octet-stream", headers=fields)

    async def change(self, asking: Asking, form: Mapping[str, str]) -> Response:
        """Do what a form asks for, and lead back to its page, which tells of it."""
        run = asking.page.changes.get(form.get("change", ""))
        if run is None:
            raise HTTPException(400, "the form does not say what is to be done")
        if not self._allow_changes:
            raise HTTPException(
                403, "this dashboard only shows: changes are accepted if it is started with --allow-changes"
            )
        place = form.get("back") or asking.place
        try:
            done = await run(self._asked(asking), form)
            if isinstance(done, Done):
                place = done.place
            notice = Notice(done if isinstance(done, str) else done.text)
        except MetaqError as error:
            notice = Notice(str(error), bad=True)
        self._visitors.notify(asking.visitor.cookie, notice)
        return RedirectResponse(relative(place), 303)

    async def _values(self, asking: Asking) -> Struct:
        try:
            async with asyncio.timeout(PAGE_SECONDS):
                await asking.cluster.sampler.looked()
                return await asking.page.load(self._asked(asking))
        except TimeoutError:
            raise RequestTimeout(f"the cluster did not answer within {PAGE_SECONDS:g} s") from None

    def _asked(self, asking: Asking) -> Asked:
        query = query_of(asking.params, asking.page.query)
        return Asked(
            asking.cluster,
            asking.path,
            query,
            self._clock.now_ms(),
            self._allow_changes,
            asking.visitor.account,
            self._sources,
            self._schemas,
        )

    def _frame(
        self, visitor: Visitor, cluster: Cluster, place: str, params: Mapping[str, str], notice: Notice | None = None
    ) -> Frame:
        return Frame(
            path=place, query=params, cluster=";".join(cluster.name_servers), state=cluster.sampler.state, now_ms=self._clock.now_ms(),
            token=self._visitors.tokens.of(visitor.cookie), account=visitor.account, login=self._visitors.login,
            may_change=self._allow_changes, notice=notice or self._visitors.notice(visitor.cookie),
        )  # fmt: skip

    def _html(self, html: str, visitor: Visitor, status: int = 200) -> Response:
        answer = Response(html, status, media_type="text/html", headers={"cache-control": "no-store"})
        if visitor.is_new:
            self._visitors.set_cookie(answer, visitor.cookie)
        return answer

    # -------------------------------------------------------------- without a page

    def problem(self, status: int, text: str) -> Response:
        """Answer a program that something failed."""
        problem = Problem(status, TITLES.get(status, "It failed"), text)
        return Response(problem.body(), status, problem.headers, CONTENT_TYPE)

    def error(self, visitor: Visitor, cluster: Cluster, status: int, text: str) -> Response:
        """Answer a person that something failed."""
        title = TITLES.get(status, "It failed")
        frame = self._frame(visitor, cluster, "/", {})
        return self._html(self._renderer.other("error.html", title, frame, status=status, text=text), visitor, status)

    def form(self, visitor: Visitor, template: str, title: str, status: int = 200, **values: Any) -> Response:
        """Answer with a form that needs no cluster."""
        cluster = self._visitors.own
        frame = self._frame(visitor, cluster, "/login", {})
        return self._html(self._renderer.other(template, title, frame, **values), visitor, status)

    def bounce(self, request: Request) -> Response:
        """Have a browser that followed a link elsewhere ask again by itself: then it sends its cookie."""
        query = request.url.query
        place = raw_path(request) + (f"?{query}" if query else "")
        return Response(self._renderer.bare("bounce.html", place=relative(place)), media_type="text/html")

    def follow(
        self, request: Request, visitor: Visitor, cluster: Cluster, pages: Sequence[tuple[Page, BaseRoute]]
    ) -> Any:
        """Answer with a stream of what changes in a page. Raises HTTPException: there is no such page, or too many viewers."""
        asking = self._followed(request.query_params.get("of", ""), visitor, cluster, pages)
        if self._live.viewers >= VIEWERS_MAX:
            raise HTTPException(503, f"{VIEWERS_MAX} open pages are followed already: load this one again to see news")

        async def make() -> Mapping[str, str] | None:
            if not self._visitors.is_still(visitor):
                return None
            values = await asking.page.load(self._asked(asking))
            # One for all who look: no token of anybody's, and no notice.
            frame = Frame(
                path=asking.place, query=asking.params, cluster=";".join(cluster.name_servers), state=cluster.sampler.state,
                now_ms=self._clock.now_ms(), token="", login=self._visitors.login, may_change=self._allow_changes,
            )  # fmt: skip
            return self._renderer.page(asking.page, values, frame, asking.path).fragments

        # Of one session, so that its end is the end of what it follows; without sessions, of all together.
        whose = visitor.cookie if self._visitors.login else ""
        key = (whose, asking.page.name, asking.place, tuple(sorted(asking.params.items())))
        return EventStream(self._live, key, make, request.state.connection)

    def _followed(
        self, url: str, visitor: Visitor, cluster: Cluster, pages: Sequence[tuple[Page, BaseRoute]]
    ) -> Asking:
        parts = urlsplit(relative(url))
        scope = {"type": "http", "method": "GET", "path": unquote(parts.path), "root_path": ""}
        for page, route in pages:
            assert isinstance(route, Route), "pages are"
            match, found = route.matches(scope)
            if match is Match.FULL and page.follows:
                params = {name: value for name, value in parse_qsl(parts.query, max_num_fields=50) if name != FORMAT}
                return Asking(page, found["path_params"], parts.path, params, visitor, cluster)
        raise HTTPException(404, "there is no such page to follow")


def status_of(error: MetaqError) -> int:
    """Return the status of the answer to a request that failed so."""
    if isinstance(error, _NOT_FOUND):
        return 404
    if isinstance(error, AccessDenied):
        return 403
    if isinstance(error, BadRequest | ConfigError):
        return 400
    return 503 if isinstance(error, RequestTimeout | ConnectionFailed) else 502
