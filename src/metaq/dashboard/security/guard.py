"""Checks before a request is looked at, and header fields of every answer."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from metaq.address import split_address
from metaq.clock import Clock
from metaq.errors import ConfigError
from metaq.net.address import is_address

COOKIE: Final = "metaq-dashboard"
TOKEN_FIELD: Final = "token"  # noqa: S105  the name of a form's field
_TOKEN_CHARS: Final = 32

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Nothing is loaded from elsewhere, nothing inline runs, and no other page may frame or open into this one."""


class Hosts:
    """Names under which the dashboard is asked. Any other in `Host` is a page elsewhere whose name was bound to our address.

    An address is always taken: DNS rebinding needs a name. Args: names: beside `localhost`.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}

    def knows(self, host: str) -> bool:
        """Return whether a request with this header field is for us."""
        name = host_of(host)
        return name in self._names or is_address(name)


def host_of(host: str) -> str:
    """Return the name or address in a `Host` header field, without its port; "": it is none."""
    text = host.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    if text.count(":") == 1:
        try:
            return split_address(text)[0].rstrip(".")
        except ConfigError:
            return ""
    return text.rstrip(".")


def is_own_origin(origin: str | None, host: str, scheme: str) -> bool:
    """Return whether a form was sent by a page of ours: browsers say where each POST comes from."""
    if not origin or origin == "null":
        return False
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme == scheme and parts.netloc.lower() == host.strip().lower()


class FormTokens:
    """Tokens that only pages of ours have, each bound to a visitor's cookie."""

    def __init__(self, clock: Clock) -> None:
        self._key = bytes.fromhex(clock.token() + clock.token())

    def of(self, cookie: str) -> str:
        """Return the token of a visitor's forms."""
        return hmac.new(self._key, cookie.encode(), hashlib.sha256).hexdigest()

    def fits(self, cookie: str, token: str) -> bool:
        """Return whether a form is of a page that this visitor got."""
        return bool(cookie) and hmac.compare_digest(self.of(cookie).encode(), token.encode())


def is_cookie(text: str) -> bool:
    """Return whether a visitor's cookie can be one of ours."""
    return len(text) == _TOKEN_CHARS and all(char in "0123456789abcdef" for char in text)
