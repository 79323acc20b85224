"""A cluster as one account sees it: its connections, and what was seen last."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from metaq.client.identity.options import ClientOptions
from metaq.client.shared import cores
from metaq.client.shared.core import ClientCore
from metaq.client.shared.pending import PendingCalls
from metaq.clock import SYSTEM, Clock
from metaq.dashboard.jobs import Jobs
from metaq.dashboard.noticing import EventLog
from metaq.dashboard.pages.attention import attention
from metaq.dashboard.sampling.sampler import Sampler
from metaq.errors import RequestTimeout

T = TypeVar("T")

PAGE_SECONDS: Final = 2.0
"""What a page may ask the cluster for. A cluster that is away is told of, not waited for."""


class Cluster:
    """The connections of one account, or of nobody, and the looks at the cluster that they see.

    Made and used in the dashboard's loop; the client's own loop does the work. Raises ConfigError: no or wrong name servers.
    """

    def __init__(self, namesrv: str | None, options: ClientOptions, clock: Clock = SYSTEM) -> None:
        self._options = options
        self._core: ClientCore | None = cores.acquire(namesrv, options)
        self._calls = PendingCalls(self._core)
        self.clock = clock
        self.sampler = Sampler(self._core, self.ask, clock)
        self.events = EventLog()
        self.sampler.when_looked(self._note)
        self.jobs = Jobs(clock)

    @property
    def core(self) -> ClientCore:
        """What functions of `metaq.admin` take."""
        assert self._core is not None, "it is open"
        return self._core

    @property
    def name_servers(self) -> tuple[str, ...]:
        return self.core.name_servers.addresses

    def _note(self) -> None:
        look = self.sampler.look
        self.events.note(attention(self.sampler), look.brokers if look is not None else (), self.clock.now_ms())

    async def ask(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Run work in the client's loop. Raises what it raises; RequestTimeout: it took more than so many seconds."""
        limit = PAGE_SECONDS if seconds is None else seconds
        try:
            return await self._calls.awaited(work, limit)
        except RequestTimeout as error:
            raise RequestTimeout(f"the cluster did not answer within {limit:g} s: {error}") from None

    async def close(self) -> None:
        """End the looks, what is being asked, and the connections."""
        await self.jobs.close()
        await self.sampler.close()
        core, self._core = self._core, None
        if core is not None:
            self._calls.end("the dashboard has left this cluster")
            await core.thread.awaited(cores.release(core, self._options))
