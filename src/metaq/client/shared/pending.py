"""Calls of one client that wait in the background loop, and end when the client is closed or stopped."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from metaq.client.shared.loop import LoopThread
from metaq.errors import ClientClosed

Result = TypeVar("Result")


class Looped(Protocol):
    """What lives in the background loop: a client's core."""

    @property
    def thread(self) -> LoopThread: ...

    @property
    def in_own_process(self) -> bool: ...


class PendingCalls:
    """Runs coroutines as `LoopThread` does, until `end`: then those that wait raise ClientClosed."""

    def __init__(self, core: Looped) -> None:
        self._core = core
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended: str | None = None

    def run(self, work: Coroutine[Any, Any, Result], timeout: float | None = None) -> Result:
        """As `LoopThread.run`; raises ClientClosed too."""
        return self._core.thread.run(self._until_end(work), timeout)

    async def awaited(self, work: Coroutine[Any, Any, Result], timeout: float | None = None) -> Result:
        """As `LoopThread.awaited`; raises ClientClosed too."""
        return await self._core.thread.awaited(self._until_end(work), timeout)

    def start(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        """As `LoopThread.start`; ClientClosed is an outcome too."""
        return self._core.thread.start(self._until_end(work))

    def end(self, why: str) -> None:
        """Any thread: end what waits, and what begins to wait from now on. The first reason is the error's text."""
        if self._core.in_own_process:  # a forked child must not write to its parent's loop
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._core.thread.post(self._end, why)

    def _end(self, why: str) -> None:
        if self._ended is None:
            self._ended = why
            for task in self._tasks:
                task.cancel()

    async def _until_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        task = asyncio.current_task()
        assert task is not None
        if self._ended is not None:
            # What need not wait still has its result.
            asyncio.get_running_loop().call_soon(task.cancel)
        self._tasks.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            if self._ended is None:
                raise
            # Whoever waited may have given up at the same moment: asyncio would report the error as lost.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise ClientClosed(self._ended) from None
        finally:
            self._tasks.discard(task)
