"""Other brokers that register under this broker's name.

To a name server a broker is its name and id: of two with the same, the last registration holds. Clients then talk to one
or the other, in turns of a registration period, and their progress in a queue of one is taken for that in the other's.
RocketMQ's name servers say nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from metaq.address import split_address
from metaq.client.conversation.administration import GetSettings
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.driver import Caller, ask
from metaq.client.conversation.routes import GetCluster
from metaq.model.topics.registration import BrokerIdentity

log = logging.getLogger(__name__)


RETRY_SECONDS: Final = 1.0
"""Pause before the next look when two brokers have met and it is not settled which one goes on; then twice as long, and so on."""


class Namesakes:
    """Looks at the name servers, before the first registration and once in each period, for other addresses under this
    broker's name. Where it is not settled which of two goes on, it looks again sooner: the other may just be starting.

    Args:
        caller: sends the requests, over the connections of the registrations.
        name_servers: their addresses.
        identity: the broker's names and addresses.
        failing: returns the name servers at which this broker is not registered now.
        period: seconds between two looks.
        met: called with another address that answers as a broker; returns whether it is settled which of the two goes on.
        timeout: seconds for each answer: they are asked one after the other, and one that is silent holds up the look at the others.
    """

    def __init__(
        self,
        caller: Caller,
        name_servers: Sequence[str],
        identity: BrokerIdentity,
        failing: Callable[[], Collection[str]],
        period: float,
        met: Callable[[str], Awaitable[bool]] | None = None,
        *,
        timeout: float,
    ) -> None:
        self._caller, self._name_servers, self._identity = caller, name_servers, identity
        self._failing, self._period, self._met, self._timeout = failing, period, met, timeout
        self._hurried = asyncio.Event()
        self._found: dict[str, str] = {}
        """Name server → other address found there and logged."""
        self._unsettled: dict[str, str] = {}
        """Name server → address found there last, of a broker with which it is not settled who goes on."""

    async def keep_looking(self) -> None:
        """Look until cancelled."""
        await self.look(registered=False)
        retry = RETRY_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(retry, self._period) if self._unsettled else self._period):
                    await self._hurried.wait()
            self._hurried.clear()
            retry = 2 * retry if self._unsettled else RETRY_SECONDS
            await self.look(registered=True)

    def exchange(self, name_servers: Sequence[str]) -> None:
        """Look at these name servers from now on."""
        self._name_servers = name_servers

    def hurry(self) -> None:
        """Look at once: a registration has replaced another broker's."""
        self._hurried.set()

    async def look(self, *, registered: bool) -> None:
        """Log an error for each name server that has another address under the name, once per address.

        `registered`: this broker has registered since, so another address is that of a broker that has registered after
        it. Else it may have been this broker's own before it moved, and counts only if a broker answers there.
        """
        for server in self._name_servers:
            try:
                await self._look_at(server, registered=registered)
            except Exception:
                log.exception("looking for brokers of this name at name server %s failed", server)

    async def _look_at(self, server: str, *, registered: bool) -> None:
        if registered and server in self._failing():
            return
        who = self._identity
        try:
            data = (await ask(self._caller, server, GetCluster(), self._timeout)).brokers.get(who.broker)
        except FAULTS:
            return  # the registration says so
        other = data.addresses.get(who.broker_id) if data is not None else None
        if other is None or other in who.addresses:
            # Each of two brokers that register in turns may find itself alone, whenever it looks.
            await self._settle(server, self._unsettled.get(server))
            return
        if await self._settle(server, other):
            return
        if other == self._found.get(server):
            return
        if not registered and not await self._runs_at(other):
            return
        self._found[server] = other
        log.error(
            "another broker named %s runs at %s, which name server %s lists in turns with this one at %s: clients would "
            "take the progress in a queue of one for that of the other, and miss messages; give one of the two another "
            "brokerName and restart it",
            who.broker, other, server, who.address,
        )  # fmt: skip

    async def _settle(self, server: str, other: str | None) -> bool:
        """Return whether it is settled who goes on, this broker or the one at `other`; if not, that one is met again at the next look."""
        if other is None or self._met is None:
            return False
        is_settled = await self._met(other)
        if is_settled:
            self._unsettled.pop(server, None)
        else:
            self._unsettled[server] = other
        return is_settled

    async def _runs_at(self, address: str) -> bool:
        try:
            settings = await ask(self._caller, address, GetSettings(), self._timeout)
        except FAULTS:
            return False
        # Under an address that it had before, this broker may answer itself.
        host, port = split_address(address)
        told = settings.get("brokerIP1"), settings.get("listenPort")
        return settings.get("brokerName") == self._identity.broker and told == (host, str(port))
