"""Requests of HTTP, as an audit log has them."""

from __future__ import annotations

from starlette.requests import Request

from metaq.broker.audit import Audit, AuditedRequest
from metaq.errors import MetaqError, Refused
from metaq.net.address import join_address
from metaq.servers.http.callers import claimed_account
from metaq.servers.http.operations import Operation


class HttpAudit:
    """The audit of one server: whatever is refused, and the outcome of operations that administer. Args: audit: of the process;
    None: nothing is noted."""

    def __init__(self, audit: Audit | None) -> None:
        self._audit = audit

    def refused(self, request: Request, error: Refused) -> None:
        """Note a refused request."""
        if self._audit is not None:
            address = request.state.connection.peer.address[0]
            self._audit.refused(address, error.reason, error.text, lambda: _audited(request))

    def done(self, request: Request, status: int) -> None:
        """Note a request that administers and has its answer."""
        if self._audit is not None:
            if status < 400:
                self._audit.done(_audited(request))
            else:
                self._audit.failed(_audited(request), f"status {status}")

    def failed(self, request: Request, error: Exception) -> None:
        """Note a request that administers and has failed."""
        if self._audit is not None:
            text = str(error) if isinstance(error, MetaqError) else f"{type(error).__name__}: {error}"
            self._audit.failed(_audited(request), text)


def _audited(request: Request) -> AuditedRequest:
    operation: Operation | None = getattr(request.state, "operation", None)
    place = request.path_params
    return AuditedRequest(
        "http", operation.name if operation is not None else f"{request.method} {request.url.path[:200]}",
        join_address(*request.state.connection.peer.address), account=claimed_account(request),
        topic=str(place.get("topic", "")), group=str(place.get("group", "")),
        values=dict(request.query_params) if operation is not None and operation.administers else {},
    )  # fmt: skip
