"""The search for brokers' new leaders, shared by all producers and consumers of a core. Runs on the background loop.

Whoever has a request to a broker fail says so by `doubt`, and waits in `pause`, which ends early when the route of that broker
changes. One search for each broker asks the name servers, however many requests have failed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.leaders import LeaderSearch
from metaq.model import BrokerData

log = logging.getLogger("metaq.client")

UNANSWERED_SECONDS = 1.0
"""Time without an answer to a send after which its broker is in doubt, s."""
LAST_WORDS_SECONDS = 0.5
"""Time for which requests to a former leader that is no replica any more may still be answered, s."""


class Leaders:
    """The searches of one core.

    Args:
        monotonic: the clock, s.
        spawn: runs a search; it is cancelled when the core closes.
        broker: what is known of a broker, by its name.
        look: asks the name servers for a route with that broker. What it raises of FAULTS is for the next question to mend.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        spawn: Callable[[Awaitable[None]], object],
        broker: Callable[[str], BrokerData | None],
        look: Callable[[str], Awaitable[None]],
    ) -> None:
        self._monotonic, self._spawn, self._broker, self._look = monotonic, spawn, broker, look
        self._searches: dict[str, LeaderSearch] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._changed_at: dict[str, float] = {}
        self._last: dict[str, str] = {}
        """Broker → address of its last leader; "": it has had none since it is known."""

    def doubt(self, broker: str) -> None:
        """Note that a request to the broker of that name failed, or is not answered: another one may lead in its place."""
        if (search := self._searches.get(broker)) is not None:
            search.doubt(self._monotonic())
            return
        self._searches[broker] = LeaderSearch(self._monotonic())
        self._spawn(self._search(broker))

    async def _search(self, broker: str) -> None:
        search = self._searches[broker]
        try:
            while True:
                # A broker that no route has any more is looked for only as long as requests to it fail.
                data = self._broker(broker)
                pause = search.pause(self._monotonic(), is_led=data is None or data.master is not None)
                if pause is None:
                    return
                if pause:
                    await asyncio.sleep(pause)
                try:
                    await self._look(broker)
                except FAULTS as error:
                    log.debug("who leads %s is not known: %s", broker, error)
        finally:
            del self._searches[broker]

    async def pause(self, broker: str, seconds: float, since: float = math.inf) -> None:
        """Wait so long, or until the route of the broker changes; not at all if it has changed since that time of the clock."""
        if self._changed_at.get(broker, -math.inf) > since:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(broker, set())
        waiting.add(future)
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(broker) is waiting:
                del self._waiting[broker]

    def changed(self, data: BrokerData) -> str | None:
        """Note a broker's addresses, and wake those that wait for others. Returns the address of the leader before if there is
        a new one, or "" if there was none; None: there is no new one."""
        self._changed_at[data.broker] = self._monotonic()
        for future in self._waiting.pop(data.broker, ()):
            if not future.done():
                future.set_result(None)
        last = self._last.get(data.broker)
        if data.master is None:
            self._last.setdefault(data.broker, "")
            return None
        self._last[data.broker] = data.master
        return last if last != data.master else None
