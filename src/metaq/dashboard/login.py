"""Logging in with an account of the cluster, and out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from metaq.clock import Clock
from metaq.dashboard.answering import Answering
from metaq.dashboard.page import FORMAT
from metaq.dashboard.requests import raw_path, relative
from metaq.dashboard.security.accounts import NotProven, prove, visitor_options
from metaq.dashboard.security.sessions import Failures
from metaq.dashboard.visitors import Visitor, Visitors
from metaq.errors import AccessDenied, ConfigError, MetaqError
from metaq.log import RateLimitedLog

log = logging.getLogger(__name__)

LOGIN_SECONDS: Final = 8.0
"""What proving an account may take: servers that are away are tried one after the other."""
WRONG: Final = "No such account, or a wrong secret key."


class Logins:
    """Lets visitors in who can sign."""

    def __init__(self, visitors: Visitors, answering: Answering, clock: Clock) -> None:
        self._visitors, self._answering = visitors, answering
        self._failures = Failures(clock)
        self._log = RateLimitedLog(log, clock)

    def wanted(self, request: Request) -> Response:
        """Answer a visitor who has to log in first."""
        if request.query_params.get(FORMAT) == "json":
            return self._answering.problem(401, "log in first")
        query = request.url.query
        place = raw_path(request) + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?next={quote(place, safe='')}", 303)

    def form(self, request: Request, visitor: Visitor) -> Response:
        """Answer with the form, or go on where nobody has to log in."""
        place = relative(request.query_params.get("next", "/"))
        if visitor.cluster is not None:
            return RedirectResponse(place, 303)
        return self._form(visitor, place)

    def _form(self, visitor: Visitor, place: str, error: str = "", status: int = 200, account: str = "") -> Response:
        return self._answering.form(
            visitor, "login.html", "Log in", status, next=place, error=error, access_key=account
        )

    async def log_in(self, request: Request, visitor: Visitor, form: Mapping[str, str]) -> Response:
        """Let a visitor in whose keys prove to be an account's."""
        place, access_key = relative(form.get("next", "/")), form.get("access_key", "").strip()
        if not self._visitors.login:
            return RedirectResponse(place, 303)
        address = request.client.host if request.client is not None else ""
        if self._failures.too_many(address):
            text = "Too many failed logins. Wait a minute."
            return self._form(visitor, place, text, 429, access_key)
        self._failures.add(address)
        try:
            options = visitor_options(self._visitors.options, access_key, form.get("secret_key", ""))
            cluster = self._visitors.acquire(options)
        except ConfigError as error:
            return self._form(visitor, place, str(error), 400, access_key)
        try:
            await cluster.ask(prove(cluster.core), LOGIN_SECONDS)
        except AccessDenied:
            await self._visitors.release(cluster)
            self._log.warning(("login", address), "a login as %.60r from %s is refused", access_key, address)
            return self._form(visitor, place, WRONG, 403, access_key)
        except MetaqError as error:
            await self._visitors.release(cluster)
            self._failures.forgive(address)
            why = error if isinstance(error, NotProven) else f"the cluster cannot be asked: {error}"
            return self._form(visitor, place, f"Nobody can say now whether this account exists: {why}", 503, access_key)
        self._failures.forgive(address)
        cluster.sampler.start()
        await self._visitors.sessions.end(visitor.cookie)
        cookie = await self._visitors.sessions.begin(access_key, cluster)
        log.info("%.60r has logged in from %s", access_key, address)
        answer = RedirectResponse(place, 303)
        self._visitors.set_cookie(answer, cookie)
        return answer

    async def log_out(self, visitor: Visitor) -> Response:
        """End a visitor's session."""
        await self._visitors.sessions.end(visitor.cookie)
        answer = RedirectResponse("/login", 303)
        self._visitors.set_cookie(answer, self._visitors.clock.token())
        return answer
