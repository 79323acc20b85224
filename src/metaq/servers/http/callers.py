"""Who asks: the account of an HTTP request, proven by its access key and secret key (RFC 7617, Basic)."""

from __future__ import annotations

import base64
from typing import Final

from starlette.requests import Request

from metaq.broker.acl import AccessControl
from metaq.errors import Reason, Refused
from metaq.model.access import Caller
from metaq.model.acl.secret import Secret
from metaq.net.peer import Peer
from metaq.servers.http.connection import HttpConnection
from metaq.servers.metering import account_of
from metaq.servers.server import caller_of

FIELD_CHARS_MAX: Final = 1024
"""Longest Authorization field that is looked at."""


class Callers:
    """Finds the caller of a request. `access`: accounts; None: everybody is nobody, and may what the gatekeeper allows."""

    def __init__(self, access: AccessControl | None) -> None:
        self._access = access

    def of(self, request: Request) -> Caller:
        """Return the caller. Raises Denied: no account of this name, a wrong secret, or none where one is needed; Refused
        THROTTLED: it owes too much, or has too many connections; INVALID: the Authorization field is none of Basic."""
        connection: HttpConnection = request.state.connection
        caller = self.named(connection.peer, request.headers.get("authorization", ""))
        metering = connection.metering
        if metering is not None and (account := account_of(caller)) != metering.account:
            metering.proven(account, 0, refuse=True)
        return caller

    def named(self, peer: Peer, authorization: str) -> Caller:
        """Return the caller of a request with this Authorization field; "": it has none. Raises as `of`."""
        caller = caller_of(peer)
        if self._access is None:
            return caller
        access_key, secret = credentials_of(authorization)
        return self._access.identify(caller, access_key, lambda right: right == secret)


def claimed_account(request: Request) -> str:
    """Return the account that a request names, proven or not; "" if it names none."""
    try:
        return credentials_of(request.headers.get("authorization", ""))[0]
    except Refused:
        return ""


def credentials_of(field: str) -> tuple[str, Secret]:
    """Return access key and secret key of an Authorization field; both empty where there is none. Raises Refused INVALID."""
    if not field:
        return "", Secret("")
    kind, _, coded = field[:FIELD_CHARS_MAX].partition(" ")
    try:
        name, colon, secret = base64.b64decode(coded.strip(), validate=True).decode().partition(":")
    except ValueError:  # of Base64 or UTF-8
        name = colon = secret = ""
    if kind.lower() != "basic" or not colon:
        raise Refused(
            Reason.INVALID,
            "the Authorization field is no Basic access-key:secret-key in Base64, which this server takes",
        )
    return name, Secret(secret)
