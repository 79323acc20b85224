"""The name servers that an HTTP address server tells, for commands that are given none."""

from __future__ import annotations

from typing import Final

from metaq.client.conversation.name_servers import parse_addresses
from metaq.net.page import checked_url, fetch_text

SECONDS: Final = 3.0


def name_servers_at(url: str) -> str:
    """Return the name servers, `host:port;host:port`. Raises ConfigError: no URL, or no list of them; ConnectionFailed."""
    return ";".join(parse_addresses(fetch_text(checked_url(url), SECONDS)))
