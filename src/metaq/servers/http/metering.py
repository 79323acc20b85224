"""Quotas of HTTP: a request waits before it is served, and what owes too much is told when to come again (429, `Retry-After`)."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final, Protocol

from metaq.broker.quota.service import Quotas
from metaq.servers.metering import Charges, Connected

UNCHARGED: Final = "/health"
"""Beginning of the paths that nobody is refused: a broker must not look dead because somebody on its host asks too much."""


class Pausable(Connected, Protocol):
    """A connection whose requests may wait."""

    async def unless_gone(self, future: asyncio.Future[Any]) -> Any:
        """Wait for a future. Raises ClientGone: the connection has ended before."""
        ...


class HttpMetering(Charges):
    """The quotas of one connection."""

    def __init__(self, connection: Pausable, quotas: Quotas) -> None:
        self._http = connection
        self._seconds = 0.0
        super().__init__(connection, quotas)

    async def take(self, size: int) -> None:
        """Charge a request of so many bytes, and wait until its quotas have paid for what came before. Raises Refused
        THROTTLED; ClientGone: the connection has ended meanwhile."""
        if not self.limited:
            return
        self._seconds = 0.0
        if not self.judge(1, size, lambda _row: size):
            raise self.refusal
        await self._pause(self._seconds)

    def came(self, size: int) -> None:
        """Charge more bytes of a request that is taken."""
        for meter in self.meters:
            meter.take(0, size)

    async def paid(self) -> None:
        """Wait until nothing is owed: between the parts of an answer without end. Raises ClientGone."""
        if self.meters:
            await self._pause(min(self.owed, self._quotas.wait_max))

    @property
    def owed(self) -> float:
        """Seconds until the quotas have paid for what was taken."""
        now = self._quotas.clock.monotonic()
        return max((meter.wait(now) for meter in self.meters), default=0.0)

    @property
    def retry_seconds(self) -> int:
        """What a client that is refused is told to wait, in whole seconds."""
        return max(1, math.ceil(self.owed))

    async def _pause(self, seconds: float) -> None:
        if seconds <= 0:
            return
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        (self._quotas.later or loop.call_later)(seconds, end)
        self._count_waiting(waits=True)
        try:
            await self._http.unless_gone(over)
        finally:
            self._count_waiting(waits=False)

    def _wait(self, seconds: float) -> None:
        self._seconds = seconds

    def _end_wait(self) -> None:
        self._count_waiting(waits=False)
