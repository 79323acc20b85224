"""Where a broker's name servers are, as the HTTP page of an address server says (`fetchNamesrvAddrByAddressServer`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from metaq.client.identity.sources import POLL_SECONDS, fetch_name_servers
from metaq.errors import ConfigError, ConnectionFailed
from metaq.net.page import checked_url
from metaq.options import BrokerOptions

log = logging.getLogger(__name__)


def address_server(options: BrokerOptions) -> str | None:
    """Return the URL of the page; None: it is not asked. Raises ConfigError: it is to be, and there is none."""
    if options.namesrv_addr or not options.fetch_namesrv_addr_by_address_server:
        return None
    if not options.address_server:
        raise ConfigError(
            "fetchNamesrvAddrByAddressServer=true: set addressServer to the URL of the page, or namesrvAddr"
        )
    return checked_url(options.address_server)


async def fetch(url: str) -> tuple[str, ...]:
    """Return the name servers. Raises ConnectionFailed: no page; ConfigError: it is no list of them."""
    return await asyncio.to_thread(fetch_name_servers, url)


async def follow(url: str, known: Sequence[str], exchange: Callable[[Sequence[str]], Awaitable[None]]) -> None:
    """Look at the page until cancelled, and hand on what has changed. While it cannot be had, the known ones stay."""
    failing = ""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        try:
            found = await fetch(url)
            failing = ""
            if set(found) != set(known):
                await exchange(found)
                known = found
        except (ConnectionFailed, ConfigError) as error:
            if str(error) != failing:
                log.warning("the name servers stay %s: %s", ";".join(known), error)
            failing = str(error)
        except Exception:
            log.exception("the name servers could not be exchanged; it is tried again")
