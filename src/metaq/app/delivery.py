"""When delayed messages are delivered: the timer of a broker's schedule, and a thread for its reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from metaq.store.reads.pull import ReadResult

log = logging.getLogger(__name__)

FAILED_PAUSE_SECONDS: Final = 0.1
"""Pause before delayed messages are tried again, after a failure and at the start."""


class Delivery:
    """The timer of `Broker.deliver`, and the thread that reads old delayed messages for it. Bound to the running event
    loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = ThreadPoolExecutor(1, "metaq-delay-read")
        self._deliver: Callable[[], float] | None = None
        self._next: asyncio.Handle | None = None

    def start(self, deliver: Callable[[], float]) -> None:
        """Call `deliver` from now on. It returns the seconds until the next call; 0: as soon as others had their
        turn."""
        self._deliver = deliver
        self._next = self._loop.call_later(FAILED_PAUSE_SECONDS, self._run)

    def read(self, job: Callable[[], ReadResult], done: Callable[[ReadResult | None], None]) -> None:
        """Run `job` in a thread, pass its result to `done`, and deliver (`metaq.broker.environment.ReadCold`)."""

        def finish(future: asyncio.Future[ReadResult]) -> None:
            if future.cancelled():
                return
            if error := future.exception():
                log.error("old delayed messages could not be read, they are tried again: %s", error)
                done(None)
                return
            done(future.result())
            if self._next is not None:
                self._next.cancel()
                self._next = self._loop.call_soon(self._run)

        self._loop.run_in_executor(self._reader, job).add_done_callback(finish)

    def _run(self) -> None:
        assert self._deliver is not None, "it is started"
        pause = FAILED_PAUSE_SECONDS
        try:
            pause = self._deliver()
        except Exception:
            log.exception("delivering delayed messages failed; it is tried again")
        # 0: its share of the turn ran out, not the work.
        self._next = self._loop.call_later(pause, self._run) if pause else self._loop.call_soon(self._run)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._reader.shutdown(wait=False, cancel_futures=True)
