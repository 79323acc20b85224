"""The background task that looks at a cluster, once for all viewers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Struct, structs

from metaq.admin.figures.activity import Activity, activity
from metaq.client.shared.core import ClientCore
from metaq.clock import Clock
from metaq.dashboard.sampling.concerns import Concerns, look_at_concerns
from metaq.dashboard.sampling.series import Histories
from metaq.errors import ClientClosed, MetaqError
from metaq.log import RateLimitedLog

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
"""From the end of a look to the next one."""
SHARE_MAX: Final = 0.1
"""Most of the time that looks may take: those at a large cluster are further apart."""
LOOK_TIMEOUT: Final = 60.0
CONCERNS_EACH: Final = 6
"""Looks after which dead letters and transactions are looked at again."""
FRESH_SECONDS: Final = 1.0
"""How long a page waits for the first look."""

Ask = Callable[..., Awaitable[Any]]


class ClusterState(Struct, frozen=True):
    """How fresh what is shown is.

    `seen_ms`: time of the last look that somebody answered; None: nobody has yet. `error`: why nobody answers now; "": somebody does.
    `waiting`: the first look is under way.
    """

    seen_ms: int | None
    error: str
    waiting: bool


class Sampler:
    """Looks at a cluster until it is closed.

    `look`: the last one that somebody answered; `concerns`: dead letters and transactions; both None: not yet.
    `stored`, `delivered`, `disk`: histories of brokers by (name, number); `topics`: what each stores, `groups`: the lag of each; `totals`:
    of the whole cluster, by `stored`, `delivered` and `lag`.

    Args: ask: runs a coroutine on the connections, for at most so many seconds.
    """

    def __init__(self, core: ClientCore, ask: Ask, clock: Clock) -> None:
        self._core, self._ask, self._clock = core, ask, clock
        self.look: Activity | None = None
        self.concerns: Concerns | None = None
        self.error = ""
        self.seen_ms: int | None = None
        self.stored, self.delivered, self.disk = Histories(), Histories(), Histories()
        self.topics, self.groups, self.totals = Histories(), Histories(), Histories()
        self._looks = 0
        self._looked = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._faults = RateLimitedLog(log, clock, 60.0)
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> ClusterState:
        return ClusterState(self.seen_ms, self.error, self.look is None and not self.error)

    def when_looked(self, call: Callable[[], None]) -> None:
        """Have something called after each look."""
        self._listeners.append(call)

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def looked(self, seconds: float = FRESH_SECONDS) -> None:
        """Wait for the first look, but not for long."""
        try:
            async with asyncio.timeout(seconds):
                await self._looked.wait()
        except TimeoutError:
            return

    async def _run(self) -> None:
        while True:
            began = self._clock.monotonic()
            try:
                await self._once()
            except Exception as error:  # noqa: BLE001  the next look may succeed, and pages show that this one has not
                self.error = f"the dashboard failed to look at it: {type(error).__name__}"
                self._faults.error("look", "a look at the cluster failed", error=error)
            self._looked.set()
            for call in self._listeners:
                call()
            took = self._clock.monotonic() - began
            await asyncio.sleep(max(LOOK_SECONDS, took / SHARE_MAX))

    async def _once(self) -> None:
        try:
            look = await self._ask(activity(self._core, self.look), LOOK_TIMEOUT)
        except ClientClosed:
            raise
        except MetaqError as error:
            self.error = str(error)
            self._faults.warning("away", "the cluster is not seen: %s", error)
            return
        answering = [one for one in look.brokers if not one.error]
        self.error = "" if answering or not look.brokers else f"no broker answers: {look.brokers[0].error}"
        if not look.brokers and look.notes:
            self.error = look.notes[0]
        if answering or not look.brokers:
            self.seen_ms = look.now_ms
        elif self.look is not None:
            # Brokers that stop take their topics out of the name servers: what was known last goes on to be shown.
            look = structs.replace(look, topics=self.look.topics, groups=self.look.groups)
        self.look = look
        self._remember(look)
        if self._looks % CONCERNS_EACH == 0:
            self._looked.set()  # who waits for the first look need not wait for this
            self.concerns = await self._ask(look_at_concerns(self._core, look, self.concerns), LOOK_TIMEOUT)
        self._looks += 1

    def _remember(self, look: Activity) -> None:
        up = [one for one in look.brokers if not one.error]
        self.stored.add(((one.broker, one.broker_id), one.put_rate) for one in up)
        self.delivered.add(((one.broker, one.broker_id), one.get_rate) for one in up)
        self.disk.add(((one.broker, one.broker_id), one.disk_used) for one in up)
        self.topics.add((one.topic, one.stored) for one in look.topics)
        self.groups.add((one.group, float(one.lag)) for one in look.groups)
        masters = [one for one in up if one.broker_id == 0]
        known = bool(masters)
        self.totals.add(
            (
                ("stored", sum(one.put_rate for one in masters) if known else None),
                ("delivered", sum(one.get_rate for one in up) if known else None),
                ("lag", float(sum(one.lag for one in look.groups)) if known else None),
            )
        )
