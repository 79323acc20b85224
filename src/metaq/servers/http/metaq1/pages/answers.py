"""Answers of the pages: HTML for people, JSON for programs; both for what is refused, too."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.errors import BadRequest, Refused
from metaq.model.access import Action
from metaq.model.acl.judgement import Denied
from metaq.servers.http.answers import json_answer
from metaq.servers.http.application import AUTHENTICATE
from metaq.servers.http.callers import Callers
from metaq.servers.http.metaq1.pages.html import FIELDS, Inner, element, page
from metaq.servers.http.problems import STATUS_OF

_JSON: Final = re.compile(r"application/(vnd.+)?json")
"""As in the original; there the type of the request's body alone counts."""
HTML: Final = "text/html"
ANY_JSON: Final = dict[str, Any]
"""Type by which pages are described to programs."""
Run = Callable[[Request], Awaitable[Response]]


def wants_json(request: Request) -> bool:
    """Return whether a request is a program's: its body's type is JSON, or it takes JSON and no HTML."""
    taken = request.headers.get("accept", "")
    asked = _JSON.match(request.headers.get("content-type", ""))
    return asked is not None or ("json" in taken and HTML not in taken)


def html_answer(title: str, *inner: Inner, status: int = 200, fields: Mapping[str, str] | None = None) -> Response:
    """Return a page as an answer."""
    return Response(page(title, *inner), status, {**FIELDS, **(fields or {})}, HTML)


def either(request: Request, value: object, title: str, show: Callable[[], tuple[Inner, ...]]) -> Response:
    """Return a value as JSON, or the page that shows it. `show`: makes what stands in it."""
    if wants_json(request):
        return json_answer(value, headers={"cache-control": "no-store"})
    return html_answer(title, *show())


class Guarded:
    """Lets those in who may, and tells others why not. Args: broker: has the rules. callers: finds who asks."""

    def __init__(self, broker: Broker, callers: Callers) -> None:
        self._broker, self.callers = broker, callers

    def page(self, run: Run, action: Action = Action.OBSERVE) -> Run:
        """Return `run` for callers that may take this action; what it refuses is a page of its own for people."""

        async def answer(request: Request) -> Response:
            try:
                self._broker.gatekeeper.check(self.callers.of(request), action, "")
                return await run(request)
            except (Refused, BadRequest) as error:
                if wants_json(request) or HTML not in request.headers.get("accept", ""):
                    raise
                return _refused(request, error)

        return answer


def _refused(request: Request, error: Refused | BadRequest) -> Response:
    status = STATUS_OF[error.reason] if isinstance(error, Refused) else 400
    fields: dict[str, str] = {}
    if isinstance(error, Denied) and "authorization" not in request.headers:
        status, fields = 401, AUTHENTICATE
    text = error.text if isinstance(error, Refused) else str(error)
    return html_answer("Refused" if status != 404 else "Not found", element("p", text), status=status, fields=fields)
