"""Fetch a short page by HTTP: what an address server says where the name servers are."""

from __future__ import annotations

import urllib.parse
from typing import Final

from metaq.errors import ConfigError, ConnectionFailed

PAGE_BYTES_MAX: Final = 64 * 1024
_OK: Final = 200


def checked_url(url: str) -> str:
    """Return the URL of a page. Raises ConfigError: it is none of http or https."""
    try:
        parts = urllib.parse.urlsplit(url.strip())
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        known = False
    if not known or any(map(str.isspace, url.strip())):
        raise ConfigError(f"the address server {url!r:.200} is no URL, such as http://host:8080/rocketmq/nsaddr")
    return url.strip()


def fetch_text(url: str, timeout: float) -> str:
    """Return the text of a page. Blocks, for a thread; redirections are not followed.

    Raises ConnectionFailed: no answer, or another than 200; ConfigError: no URL.

    Args: timeout: seconds for the connection, and for each piece of the answer.
    """
    import http.client  # here: it loads a parser of e-mails, for the few who have an address server

    parts = urllib.parse.urlsplit(checked_url(url))
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request(
            "GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), headers={"Connection": "close"}
        )
        answer = connection.getresponse()
        if answer.status != _OK:
            raise ConnectionFailed(f"the address server {url} answers {answer.status} {answer.reason}")
        data = answer.read(PAGE_BYTES_MAX + 1)
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionFailed(f"the address server {url} does not answer: {error}") from error
    finally:
        connection.close()
    if len(data) > PAGE_BYTES_MAX:
        raise ConnectionFailed(
            f"the address server {url} answers more than {PAGE_BYTES_MAX} bytes: that is no list of name servers"
        )
    return data.decode("utf-8", "replace")
