"""Requests of remoting, as an audit log has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

from metaq.broker.audit import Audit, AuditedRequest
from metaq.errors import BadRequest, Refused
from metaq.model.access import Action
from metaq.net.peer import Peer
from metaq.servers.remoting.handlers import Handler
from metaq.wire.bodies.parts import Body, option_changes_of
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command
from metaq.wire.signing import ACCESS_KEY

LOOKS: Final = frozenset(
    {
        RequestCode.QUOTAS,
        RequestCode.OPTIONS,
        RequestCode.LOG_LINES,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.LOG_CHECKSUMS,
        RequestCode.LOG_BYTES,
    }
)
"""Requests for administrators that change nothing. Slaves that compare their log ask the last two for each MiB."""
BODY_BYTES_MAX: Final = 64 * 1024
"""A larger body is not looked into for values."""
_TOPICS: Final = ("topic", "b")
"""Ext fields with the topic; short names are those of SEND_MESSAGE_V2."""
_GROUPS: Final = ("group", "consumerGroup", "groupName", "producerGroup", "a")


class AuditedSession(Protocol):
    """The connection of a request."""

    peer: Peer
    remote: str
    client_id: str


class RequestAudit:
    """The audit of one remoting server.

    Args: audit: of the process. handlers: of the server; those that administer are audited.
    """

    def __init__(self, audit: Audit, handlers: Mapping[int, Handler]) -> None:
        self._audit = audit
        self.administrative: Final = frozenset(
            code for code, handler in handlers.items() if handler.action is Action.ADMINISTER and code not in LOOKS
        )
        """Codes whose outcome is noted, whatever it is."""

    def answered(self, session: AuditedSession, command: Command, answer: Command) -> None:
        """Note an administrative request that has its answer."""
        if answer.code:
            self._audit.failed(self._request(session, command), answer.remark or f"code {answer.code}")
        else:
            self._audit.done(self._request(session, command))

    def failed(self, session: AuditedSession, command: Command, error: Exception) -> None:
        """Note a request that ends with an error: any that is refused, and administrative ones."""
        if isinstance(error, Refused):
            self._audit.refused(
                session.peer.address[0], error.reason, error.text, lambda: self._request(session, command)
            )
        elif command.code in self.administrative:
            text = str(error) if isinstance(error, BadRequest) else f"{type(error).__name__}: {error}"
            self._audit.failed(self._request(session, command), text)

    def unsupported(self, session: AuditedSession, command: Command) -> None:
        """Note a request that there is no handler for: an administrator's tool of RocketMQ may ask what only RocketMQ does."""
        self._audit.refused(
            session.peer.address[0], None, "request type not supported", lambda: self._request(session, command)
        )

    def _request(self, session: AuditedSession, command: Command) -> AuditedRequest:
        ext = command.ext
        values: dict[str, object] = dict(ext)
        if command.code in _BODIES and len(command.body) <= BODY_BYTES_MAX:
            values |= _BODIES[command.code](command.body)
        try:
            name = RequestCode(command.code).name
        except ValueError:
            name = ""
        # What a message says is no setting: only administrative requests show their values.
        shown = values if command.code in self.administrative else {}
        return AuditedRequest(
            "remoting", name, session.remote, command.code, ext.get(ACCESS_KEY, ""), session.client_id,
            _first(values, _TOPICS), _first(values, _GROUPS), shown,
        )  # fmt: skip


def _json_values(body: Body) -> dict[str, object]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _option_values(body: Body) -> dict[str, object]:
    try:
        return dict(option_changes_of(body))
    except BadRequest:
        return {}


_BODIES: Final[Mapping[int, Callable[[Body], dict[str, object]]]] = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _json_values,
    RequestCode.UPDATE_BROKER_CONFIG: _option_values,
    RequestCode.UPDATE_NAMESRV_CONFIG: _option_values,
}
"""Requests that have their values in the body, and how to read it; nothing of a body that cannot be read."""


def _first(values: Mapping[str, object], names: tuple[str, ...]) -> str:
    return next((str(values[name]) for name in names if values.get(name)), "")
