"""Errors of the HTTP server, as RFC 9457 has them: `application/problem+json`."""

from __future__ import annotations

import http
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from metaq.errors import MetaqError, Reason, Refused

CONTENT_TYPE: Final = "application/problem+json"
RETRY_SECONDS: Final = 1
"""What a client is told to wait before it repeats a request that was refused for a while."""

STATUS_OF: Final[Mapping[Reason, int]] = {
    Reason.INVALID: 400,
    Reason.NO_PERMISSION: 403,
    Reason.DENIED: 403,
    Reason.NO_TOPIC: 404,
    Reason.NO_GROUP: 404,
    Reason.NOT_SUBSCRIBED: 409,
    Reason.SUBSCRIPTION_OLD: 409,
    Reason.BAD_FILTER: 400,
    Reason.NO_FILTER: 400,
    Reason.OFFLINE: 409,
    Reason.UNANSWERED: 504,
    Reason.NOT_FOUND: 404,
    Reason.ILLEGAL_MESSAGE: 422,
    Reason.STALE: 409,
    Reason.BUSY: 503,
    Reason.THROTTLED: 429,
    Reason.UNAVAILABLE: 503,
    Reason.NOT_LEADING: 503,
    Reason.NOT_STORED: 507,
}
"""Status of each reason. Complete: tests/servers/http/test_problems.py."""


class Problem(Struct, frozen=True, omit_defaults=True):
    """Body of an error answer.

    `reason`: name of the `metaq.errors.Reason`, in lower case with hyphens, for programs; "": it never reached a service.
    """

    status: int
    title: str
    detail: str = ""
    reason: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """Header fields of the answer, beside those of its body."""
        return {"retry-after": str(RETRY_SECONDS)} if self.status in {429, 503} else {}

    def body(self) -> bytes:
        return msgspec.json.encode(self)

    def answer(self) -> bytes:
        """Return a whole answer, behind which the connection is closed: for what is no request."""
        body = self.body()
        phrase = http.HTTPStatus(self.status).phrase
        lines = (
            f"HTTP/1.1 {self.status} {phrase}",
            f"content-type: {CONTENT_TYPE}",
            f"content-length: {len(body)}",
            "connection: close",
            "",
            "",
        )
        return "\r\n".join(lines).encode() + body


class ProblemError(MetaqError):
    """A request is answered with a problem that no service's refusal tells."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.title)
        self.problem = problem


def problem_of(refused: Refused) -> Problem:
    """Return the problem that tells a refusal."""
    reason = refused.reason
    return Problem(STATUS_OF[reason], reason.value, refused.text, reason.name.lower().replace("_", "-"))
