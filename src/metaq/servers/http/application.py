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

from metaq.errors import BadRequest, MetaqError, Refused, shortage
from metaq.log import RateLimitedLog
from metaq.model.acl.judgement import Denied
from metaq.servers.http.answers import json_answer, problem_answer
from metaq.servers.http.connection import ClientGone
from metaq.servers.http.operations import JSON, Content, Operation, openapi
from metaq.servers.http.problems import Problem, problem_of

log = logging.getLogger(__name__)

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

    Args: faults: gets what is nobody's mistake but ours, or the machine's.
    """

    def __init__(self, operations: Iterable[Operation], faults: RateLimitedLog, version: str) -> None:
        self._faults = faults
        description = Operation(
            name="openapi", method="GET", path="/openapi.json", text="Describe all operations by OpenAPI 3.1.", run=self._describe,
            answers={200: Content(JSON)},
        )  # fmt: skip
        listed = [*operations, description]
        self._description = openapi(listed, version)
        self._app = _Starlette(
            routes=[route for one in listed for route in one.routes()],
            exception_handlers={Refused: _refused, BadRequest: _malformed, HTTPException: _unknown},
        )

    async def _describe(self, _request: Request) -> Response:
        return json_answer(self._description)

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


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused), "it is registered for these"
    answer = problem_answer(problem_of(error))
    if isinstance(error, Denied) and "authorization" not in request.headers:
        answer.status_code = 401
        answer.headers.update(AUTHENTICATE)
    return answer


async def _malformed(_request: Request, error: Exception) -> Response:
    return problem_answer(Problem(400, "the request cannot be understood", str(error)))


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these"
    answer = problem_answer(Problem(error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}"))
    answer.headers.update(error.headers or {})
    return answer
