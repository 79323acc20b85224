"""The ASGI application: operations by their paths, and an answer for whatever they raise."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from metaq.broker.audit import Audit
from metaq.errors import BadRequest, MetaqError, Reason, Refused, shortage
from metaq.log import RateLimitedLog
from metaq.model.acl.judgement import Denied
from metaq.servers.http.answers import json_answer, problem_answer
from metaq.servers.http.auditing import HttpAudit
from metaq.servers.http.connection import ClientGone
from metaq.servers.http.metering import UNCHARGED, HttpMetering
from metaq.servers.http.operations import JSON, Content, Operation, Run, openapi
from metaq.servers.http.problems import Problem, ProblemError, problem_of
from metaq.servers.http.same_site import refuse_cross_site
from metaq.servers.tally import Tally

log = logging.getLogger(__name__)

_DIGITS_MAX: Final = 16
"""Digits of a content-length that can be true."""
AUTHENTICATE: Final = {"www-authenticate": 'Basic realm="metaq", charset="UTF-8"'}


class Page(Protocol):
    """Operations that belong together."""

    def operations(self) -> Sequence[Operation]:
        """Return them."""
        ...


class _Starlette(Starlette):
    """Starlette without its answer to what nobody has caught, which `Application` gives."""

    def build_middleware_stack(self) -> ASGIApp:
        return ExceptionMiddleware(self.router, handlers=self.exception_handlers)


class Application:
    """The application of some operations, and of `/openapi.json`, which describes them. No failure gets out of it: whoever asks is told,
    and the log has the rest.

    Args:
        faults: gets what is nobody's mistake but ours, or the machine's.
        audit: of the process.
        tally: counts requests and failures.
    """

    def __init__(
        self,
        operations: Iterable[Operation],
        faults: RateLimitedLog,
        version: str,
        audit: Audit | None = None,
        tally: Tally | None = None,
    ) -> None:
        self._faults, self._audit, self._tally = faults, HttpAudit(audit), tally or Tally()
        description = Operation(
            name="openapi", method="GET", path="/openapi.json", text="Describe all operations by OpenAPI 3.1.", run=self._describe,
            answers={200: Content(JSON)},
        )  # fmt: skip
        listed = [*operations, description]
        self._description = openapi(listed, version)
        self._app = _Starlette(
            routes=[route for one in listed for route in one.routes(self._run_of(one))],
            exception_handlers={
                Refused: self._on_refused, BadRequest: self._malformed, HTTPException: _unknown, ProblemError: _problem,
            },
        )  # fmt: skip

    def _run_of(self, operation: Operation) -> Run:
        """Return what a route runs: the operation, which the audit log learns of."""

        async def run(request: Request) -> Response:
            request.state.operation = operation
            if operation.method != "GET":
                refuse_cross_site(request)
            if not operation.administers:
                return await operation.run(request)
            try:
                answer = await operation.run(request)
            except Refused:
                raise  # it is noted where all refusals are
            except Exception as error:
                self._audit.failed(request, error)
                raise
            self._audit.done(request, answer.status_code)
            return answer

        return run

    async def _describe(self, _request: Request) -> Response:
        return json_answer(self._description)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        begun = False

        async def noting(message: Any) -> None:
            nonlocal begun
            if not begun:
                operation: Operation | None = scope["state"].get("operation")
                self._tally.answered(operation.name if operation is not None else "", message["status"])
            begun = True
            await send(message)

        try:
            if (refusal := await self._charge(Request(scope, receive))) is None:
                await self._app(scope, receive, noting)
            else:
                await refusal(scope, receive, noting)
        except ClientGone:
            pass
        except Exception as error:  # noqa: BLE001  whatever a page does wrong, its request alone pays
            self._tell(scope["path"], error)
            self._tally.failed(error)
            if begun:
                scope["state"]["connection"].peer.close("its answer failed")
                return
            detail = shortage(error) or f"{type(error).__name__}: {error}"
            await problem_answer(Problem(500, "the request failed", detail))(scope, receive, noting)

    async def _charge(self, request: Request) -> Response | None:
        """Charge a request to whoever sends it, and have it wait. Return what refuses it; None: it is taken."""
        metering: HttpMetering | None = request.state.connection.metering
        if metering is None or not metering.limited or request.url.path.startswith(UNCHARGED):
            return None
        try:
            await metering.take(_size_of(request))
        except Refused as refused:
            return self._refused(request, refused)
        return None

    async def _on_refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused), "it is registered for these"
        return self._refused(request, error)

    def _refused(self, request: Request, error: Refused) -> Response:
        self._audit.refused(request, error)
        self._tally.failed(error)
        answer = problem_answer(problem_of(error))
        metering: HttpMetering | None = request.state.connection.metering
        if error.reason is Reason.THROTTLED and metering is not None:
            answer.headers["retry-after"] = str(metering.retry_seconds)
        if isinstance(error, Denied) and "authorization" not in request.headers:
            answer.status_code = 401
            answer.headers.update(AUTHENTICATE)
        return answer

    def _tell(self, path: str, error: Exception) -> None:
        if isinstance(error, MetaqError | OSError | MemoryError):
            self._faults.warning((path, type(error)), "a request of %.200s failed: %s", path, error)
        else:
            self._faults.error((path, type(error)), "a request of %.200s failed", path, error=error)

    async def _malformed(self, _request: Request, error: Exception) -> Response:
        self._tally.failed(error)
        return problem_answer(Problem(400, "the request cannot be understood", str(error)))


def _size_of(request: Request) -> int:
    """Return the bytes of a request, as far as its head tells them."""
    promised = request.headers.get("content-length", "")
    head = sum(len(name) + len(value) + 4 for name, value in request.headers.raw)
    return head + (int(promised) if promised.isdecimal() and len(promised) < _DIGITS_MAX else 0)


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these"
    answer = problem_answer(Problem(error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}"))
    answer.headers.update(error.headers or {})
    return answer


async def _problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError), "it is registered for these"
    return problem_answer(error.problem)
