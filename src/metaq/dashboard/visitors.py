"""Who asks: a browser with its cookie, perhaps logged in; and the connections that it may use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from metaq.client.identity.options import ClientOptions
from metaq.clock import Clock
from metaq.dashboard.cluster import Cluster
from metaq.dashboard.rendering.renderer import Notice
from metaq.dashboard.security.guard import COOKIE, TOKEN_FIELD, FormTokens, is_cookie, is_own_origin
from metaq.dashboard.security.sessions import Sessions
from metaq.errors import MetaqError

log = logging.getLogger(__name__)

NOTICES_MAX: Final = 256


class Visitor(Struct, frozen=True):
    """`cookie`: of the browser, a new one if it had none. `cluster`: None: it has to log in first. `account`: "": nobody.

    `must_return`: it came by a link elsewhere, with which browsers do not send a strict cookie: it is sent here once more.
    """

    cookie: str
    is_new: bool
    cluster: Cluster | None
    account: str
    must_return: bool


class Visitors:
    """All visitors, and the clusters as they see them.

    Args: namesrv: of the cluster. options: of the dashboard's own client. scheme: http or https. looked: called after each look.
    """

    def __init__(
        self, namesrv: str | None, options: ClientOptions, clock: Clock, scheme: str, looked: Callable[[], None]
    ) -> None:
        self.options, self.clock = options, clock
        self._namesrv, self._scheme, self._looked = namesrv, scheme, looked
        self.login = False
        """Whether visitors have to log in."""
        self.tokens = FormTokens(clock)
        self.sessions = Sessions(clock, self.release)
        self._clusters: dict[ClientOptions, tuple[Cluster, int]] = {}
        self._notices: dict[str, Notice] = {}
        self.own = self.acquire(options)

    def acquire(self, options: ClientOptions) -> Cluster:
        """Return the connections of an account, the same for all who are it. Raises ConfigError."""
        cluster, users = self._clusters.get(options, (None, 0))
        if cluster is None:
            cluster = Cluster(self._namesrv, options, self.clock)
            cluster.sampler.when_looked(self._looked)
        self._clusters[options] = cluster, users + 1
        return cluster

    async def release(self, cluster: Cluster) -> None:
        """Give up connections; with the last who had them they are closed."""
        for options, (one, users) in list(self._clusters.items()):
            if one is cluster:
                if users > 1:
                    self._clusters[options] = one, users - 1
                    return
                del self._clusters[options]
                await cluster.close()

    async def close(self) -> None:
        """Close all."""
        await self.sessions.close()
        clusters = [cluster for cluster, _ in self._clusters.values()]
        self._clusters.clear()
        for outcome in await asyncio.gather(*(one.close() for one in clusters), return_exceptions=True):
            if isinstance(outcome, MetaqError):
                log.debug("connections were not closed cleanly: %s", outcome)

    def of(self, request: Request) -> Visitor:
        """Return who asks."""
        cookie = request.cookies.get(COOKIE, "")
        known = is_cookie(cookie)
        if not known and request.headers.get("sec-fetch-site") == "cross-site":
            return Visitor("", False, None, "", must_return=request.headers.get("sec-fetch-dest") == "document")
        if not known:
            cookie = self.clock.token()
        if not self.login:
            return Visitor(cookie, not known, self.own, "", must_return=False)
        session = self.sessions.of(cookie) if known else None
        if session is None:
            return Visitor(cookie, not known, None, "", must_return=False)
        return Visitor(cookie, False, session.cluster, session.account, must_return=False)

    def is_still(self, visitor: Visitor) -> bool:
        """Return whether what a visitor looks at may still be shown; not counted as use."""
        if not self.login:
            return visitor.cluster is self.own
        return self.sessions.lasts(visitor.cookie)

    def check_form(self, request: Request, visitor: Visitor, form: Mapping[str, str]) -> None:
        """Raise HTTPException unless a form was sent by a page that this visitor got from us."""
        host = request.headers.get("host", "")
        if not is_own_origin(request.headers.get("origin"), host, self._scheme):
            raise HTTPException(403, "this form was sent by a page elsewhere, and nothing was done")
        if visitor.is_new or not self.tokens.fits(visitor.cookie, form.get(TOKEN_FIELD, "")):
            raise HTTPException(
                403, "this form is too old, or the browser takes no cookies: load its page again; nothing was done"
            )

    def set_cookie(self, answer: Response, cookie: str) -> None:
        """Have a browser keep its cookie, for its session."""
        answer.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", secure=self._scheme == "https", path="/")

    def notify(self, cookie: str, notice: Notice) -> None:
        """Have something told above the visitor's next page."""
        self._notices.pop(cookie, None)
        self._notices[cookie] = notice
        if len(self._notices) > NOTICES_MAX:
            del self._notices[next(iter(self._notices))]

    def notice(self, cookie: str) -> Notice | None:
        """Take what is to be told."""
        return self._notices.pop(cookie, None)
