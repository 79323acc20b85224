"""A thread in which an event loop has blocking work done, one job after the other.

A daemon, unlike the threads of an executor: it works on while the interpreter exits, when offsets are still to be saved, and holds up
no exit.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from metaq.errors import ClientClosed
from metaq.log import AGAIN_SECONDS, AGAIN_SECONDS_MAX, FIRST_SECONDS

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Worker:
    """One such thread, which begins at once. Used in one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ended = False
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def end(self) -> None:
        """End behind the jobs that are there."""
        self._ended = True
        self._jobs.put(None)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return the outcome of `work`, or raise its error. Raises ClientClosed: the thread has ended."""
        if self._ended:
            raise ClientClosed(f"the thread {self._name!r} takes no more work")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Result] = loop.create_future()

        def give(result: Result) -> None:
            if not outcome.done():  # cancelled
                outcome.set_result(result)

        def fail(error: Exception) -> None:
            if not outcome.done():
                outcome.set_exception(error)

        def job() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001  whatever it is, it is the caller's
                loop.call_soon_threadsafe(fail, error)
            else:
                loop.call_soon_threadsafe(give, result)

        self._jobs.put(job)
        return await outcome

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except RuntimeError as error:  # the loop is closed
                log.debug("nobody waits for what %s has done: %s", self._name, error)


class Waiting:
    """`with` it, in an event loop, around what waits for somebody else: logs `text % args` as a warning after `FIRST_SECONDS`, and again in
    growing intervals, until the block ends."""

    def __init__(self, logger: logging.Logger, text: str, *args: object) -> None:
        self._logger, self._text, self._args = logger, text, args
        self._pause = AGAIN_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(FIRST_SECONDS, self._say)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _say(self) -> None:
        self._logger.warning(self._text, *self._args)
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._say)
        self._pause = min(self._pause * 2, AGAIN_SECONDS_MAX)
