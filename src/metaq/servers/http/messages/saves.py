"""Saves of groups' offsets that an acknowledgement by HTTP waits for: what is acknowledged is not delivered again, over kill -9.

All acknowledgements that come while a save is under way wait for the next one together. A save copies the table on the event loop, so
with a large table there are few saves.
"""

from __future__ import annotations

import asyncio
from typing import Final

from metaq.broker.broker import Broker
from metaq.errors import Reason, Refused
from metaq.servers.server import CallSoon

SHARE: Final = 20
"""The copy of the table has one part in so many of the loop's time, at most."""


class OffsetSaves:
    """Saves of one broker's offsets. Args: call_soon: brings a call from another thread to the event loop."""

    def __init__(self, broker: Broker, call_soon: CallSoon) -> None:
        self._offsets, self._clock, self._call_soon = broker.offsets, broker.clock, call_soon
        self._waiting = list[asyncio.Future[None]]()
        self._saving = False

    async def saved(self) -> None:
        """Wait until the offsets, as they are now, are on the disk. Raises Refused NOT_STORED: they could not be put there."""
        waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waits)
        if not self._saving:
            self._save()
        await waits

    def _save(self) -> None:
        batch, self._waiting, self._saving = self._waiting, [], True
        begun = self._clock.monotonic()
        self._offsets.save(lambda: self._call_soon(lambda: self._ended(batch, pause)), anyway=True)
        pause = (self._clock.monotonic() - begun) * SHARE

    def _ended(self, batch: list[asyncio.Future[None]], pause: float) -> None:
        failing = self._offsets.failing
        for waits in batch:
            if waits.done():  # its client has gone
                continue
            if failing:
                text = (
                    f"the group's offsets could not be saved: {failing}. They hold, and are lost if the broker dies now"
                )
                waits.set_exception(Refused(Reason.NOT_STORED, text))
            else:
                waits.set_result(None)
        asyncio.get_running_loop().call_later(pause, self._go_on)

    def _go_on(self) -> None:
        self._saving = False
        if self._waiting:
            self._save()
