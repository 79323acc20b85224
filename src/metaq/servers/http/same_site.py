"""Requests that a page of another site makes a browser send: they carry what the browser knows, and nobody has asked for them."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from metaq.errors import Reason, Refused

_OWN: Final = frozenset({"same-origin", "none"})
"""Of Sec-Fetch-Site: a page of this server, or the person at the browser."""


def refuse_cross_site(request: Request) -> None:
    """Raise Refused DENIED if another site's page caused the request. Clients that are no browsers tell no site, and pass.

    Of a browser that knows no Sec-Fetch-Site the Origin has to name this server.
    """
    site, origin = request.headers.get("sec-fetch-site", ""), request.headers.get("origin", "")
    own = site in _OWN if site else not origin or urlsplit(origin).netloc == request.headers.get("host", "")
    if not own:
        raise Refused(
            Reason.DENIED, "a page of another site caused this request: nothing was done; ask from a page of this server, or without a browser"
        )  # fmt: skip
