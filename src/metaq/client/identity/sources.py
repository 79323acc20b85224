"""Where a client has its name servers from: what it is given, NAMESRV_ADDR, or the page of an HTTP address server."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final

from metaq.client.conversation.name_servers import NameServers, parse_addresses
from metaq.client.identity.options import ClientOptions
from metaq.errors import ConfigError, ConnectionFailed
from metaq.log import RateLimitedLog
from metaq.net.page import checked_url, fetch_text

log = logging.getLogger("metaq.client")

NAMESRV_ENVIRONMENT: Final = "NAMESRV_ADDR"
ADDRESS_SERVER_ENVIRONMENT: Final = "METAQ_ADDRESS_SERVER"
POLL_SECONDS = 120.0
"""Between two looks at the page, s, as in RocketMQ."""
TIMEOUT: Final = 3.0
"""Longest wait for the page, s."""


def checked_addresses(namesrv: str | None) -> tuple[str, ...]:
    """Any thread: the name servers; None reads NAMESRV_ADDR. Raises ConfigError: none is given, or one is malformed."""
    return parse_addresses(namesrv if namesrv is not None else os.environ.get(NAMESRV_ENVIRONMENT, ""))


def address_server_of(namesrv: str | None, options: ClientOptions) -> str | None:
    """Any thread: the URL of the address server to ask; None: the name servers are given otherwise, or there is none.

    Raises ConfigError: METAQ_ADDRESS_SERVER is no URL.
    """
    if namesrv is not None or os.environ.get(NAMESRV_ENVIRONMENT):
        return None
    if options.address_server is not None:
        return options.address_server
    url = os.environ.get(ADDRESS_SERVER_ENVIRONMENT)
    return checked_url(url) if url else None


def fetch_name_servers(url: str) -> tuple[str, ...]:
    """Any thread, blocks: the name servers on the page. Raises ConnectionFailed: no page; ConfigError: it is no list of them."""
    return parse_addresses(fetch_text(url, TIMEOUT))


async def look_again(url: str, name_servers: NameServers, faults: RateLimitedLog) -> None:
    """Use the name servers that the page tells now. While it cannot be had, or is no list of them, the known ones stay."""
    before = str(name_servers)
    try:
        is_other = name_servers.exchange(await asyncio.to_thread(fetch_name_servers, url))
    except (ConnectionFailed, ConfigError) as error:
        faults.warning("address server", "the name servers stay %s: %s", before, error)
        return
    if is_other:
        log.info("the address server names other name servers: %s in place of %s", name_servers, before)
