"""A look at the start whether the addresses that others are told lead to this broker, as far as it can see that itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from metaq.app.addressing.told import listens_everywhere
from metaq.client.conversation.administration import Identify
from metaq.client.conversation.driver import Caller, ask
from metaq.errors import MetaqError
from metaq.net.address import is_loopback, split_address

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""Longest wait for an answer at one address."""
_REMEDY: Final = (
    "clients that are told it will not reach this broker either, unless only this machine cannot: correct the option "
    "(docs/addresses.md)"
)


class Reachability:
    """Asks at each address which process answers there. Nothing but the log depends on the outcome.

    Args:
        caller: sends the requests.
        instance: this process, as `Identify` tells it.
        told: address that clients are told → the option that it comes from.
        listens_at: host that the broker listens on.
    """

    def __init__(self, caller: Caller, instance: str, told: Mapping[str, str], listens_at: str) -> None:
        self._caller, self._instance, self._told, self._listens_at = caller, instance, told, listens_at

    async def look(self) -> None:
        """Log a warning for each address that does not lead here."""
        await asyncio.gather(*(self._look_at(address, option) for address, option in self._told.items()))

    async def _look_at(self, address: str, option: str) -> None:
        host, _ = split_address(address)
        if is_loopback(host) and listens_everywhere(self._listens_at):
            log.warning(
                "clients are told %s (%s), which leads them to their own machines, while this broker listens on %s: set %s to the "
                "address by which other machines reach this one, or bindAddress to %s",
                address, option, self._listens_at, option, host,
            )  # fmt: skip
        elif host == self._listens_at:
            return  # where it listens it is
        try:
            found = await ask(self._caller, address, Identify(), ANSWER_SECONDS)
        except MetaqError as error:
            log.warning("clients are told %s (%s), which does not answer here: %s; %s", address, option, error, _REMEDY)
            return
        if found is None or found.instance != self._instance:
            log.warning(
                "clients are told %s (%s), where another server answers, not this broker; %s", address, option, _REMEDY
            )
