"""The start of a broker: its store is opened in a thread, and the event loop says meanwhile how far it is, and may stop it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from metaq.app.supervision.service_manager import Told, nobody
from metaq.clock import Clock
from metaq.errors import MetaqError
from metaq.log import RateLimitedLog, when_dead
from metaq.store.message_store import MessageStore
from metaq.store.start_progress import StartProgress
from metaq.worker import Worker

log = logging.getLogger(__name__)

TOLD_SECONDS: Final = 1.0
"""Interval in which a start says how far it is."""
QUIET_SECONDS: Final = 2.0
"""So long the log says nothing of it: most starts are over then."""
TICK_SECONDS: Final = 0.1


class Opening:
    """How far the start of a broker is, for whoever asks.

    Args:
        told: is told.
        tick: called ten times a second from `begin` to `end`.
    """

    def __init__(self, clock: Clock, told: Told = nobody, tick: Callable[[], None] = lambda: None) -> None:
        self._clock, self._told, self._tick = clock, told, tick
        self.progress = StartProgress(clock)
        self._stage = ""
        """What is done behind the store; "": the store is being opened."""
        self._lines = RateLimitedLog(log, clock)
        self._watching: asyncio.Task[None] | None = None

    @property
    def status(self) -> str:
        """How far it is, in words."""
        return self._stage or self.progress.now().text()

    def begin(self) -> None:
        """Say how far it is from now on."""
        self._watching = asyncio.ensure_future(self._watch())
        self._watching.add_done_callback(when_dead(log, "nobody is told how far the start is"))

    def end(self) -> None:
        """The start is over, however it has ended."""
        if self._watching is not None:
            self._watching.cancel()

    def stage(self, text: str) -> None:
        """The store is open; what is done now."""
        self._stage = text
        self._told(text)

    async def open(self, make: Callable[[StartProgress], MessageStore]) -> MessageStore:
        """Return the store that `make` opens, in a thread. Raises what it raises.

        If this is cancelled, the opening is stopped, and the folder let go before it returns.
        """
        worker = Worker("metaq-open-store")
        making = asyncio.ensure_future(worker.run(lambda: make(self.progress)))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self.progress.stop()
            log.info("the start is stopped: %s", self.status)
            try:
                store = await making
            except MetaqError as error:
                log.info("%s", error)
            else:
                await worker.run(store.close)
            raise
        finally:
            worker.end()

    async def _watch(self) -> None:
        begun = told = self._clock.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._tick()
            now = self._clock.monotonic()
            if now - told >= TOLD_SECONDS:
                told = now
                self._told(self.status)
                if now - begun >= QUIET_SECONDS:
                    self._lines.write(logging.INFO, "status", "starting: %s", self.status)
