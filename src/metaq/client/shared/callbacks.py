"""Where users' functions run: plain ones in threads, where they may block without delaying heartbeats, coroutines in a loop of the user's.

Threads are made when there is something to call, up to a number, and are daemons: a function that never returns keeps no
process from its end. Who closes waits for what was to be called before.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from metaq.errors import ClientError

log = logging.getLogger("metaq.client")

Job = Callable[[], None]
Result = TypeVar("Result")


class CallbackThreads:
    """Runs callbacks in up to `count` threads; with 0, in the calling thread."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._jobs: queue.SimpleQueue[tuple[int, Job] | None] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._unfinished: set[int] = set()
        self._threads: set[int | None] = set()
        self._closed = False

    def do(self, job: Job) -> None:
        """Queue `job`, which raises nothing. Jobs begin in the order of the calls."""
        if not self._count:
            job()
            return
        with self._changed:
            number = next(self._numbers)
            self._unfinished.add(number)
            self._jobs.put((number, job))
            # As many threads as callbacks at the same time, at most: a client without callbacks has none.
            if len(self._threads) < min(self._count, len(self._unfinished)):
                thread = threading.Thread(target=self._work, name="metaq-callback", daemon=True)
                thread.start()
                self._threads.add(thread.ident)

    def _work(self) -> None:
        while (taken := self._jobs.get()) is not None:
            number, job = taken
            try:
                job()
            except BaseException:  # SystemExit: the next job needs the thread.
                log.exception("a function of the application's wanted to end the thread that called it")
            finally:
                with self._changed:
                    self._unfinished.discard(number)
                    self._changed.notify_all()

    def wait(self, timeout: float | None) -> bool:
        """Wait until all jobs that came before are done. Returns False after `timeout` seconds. Called by a job it
        returns at once: it would wait for itself."""
        with self._changed:
            if threading.get_ident() in self._threads:
                return True
            # Only what is here now: with steady sends it would otherwise never be empty.
            before = set(self._unfinished)
            return self._changed.wait_for(lambda: not before & self._unfinished, timeout)

    def close(self) -> None:
        """End the threads when the jobs are done. Later jobs run in the calling thread."""
        with self._changed:
            self._count = 0
            for _ in self._threads:
                self._jobs.put(None)


def in_loop(
    loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, Result]]
) -> concurrent.futures.Future[Result]:
    """Run `make()` in an event loop of the user's, from any thread, as asyncio.run_coroutine_threadsafe does.

    A loop may be closed with calls that it has not made yet. asyncio's function then leaves its future open for ever, and a coroutine
    that warns that it was never awaited. Here the future gets a ClientError, and no coroutine is made before it begins.

    Raises ClientError: the loop is closed already.
    """
    beginning = _Beginning(loop, make)
    outcome = beginning.outcome
    try:
        loop.call_soon_threadsafe(beginning)
    except RuntimeError:
        raise ClientError(_ENDED) from None
    return outcome


_ENDED = "the event loop has ended"


class _Beginning(Generic[Result]):
    """A call that a loop is to make, and that notices when the loop forgets it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, Result]]) -> None:
        self._loop, self._make = loop, make
        self.outcome: concurrent.futures.Future[Result] = concurrent.futures.Future()
        self._begun = False

    def __call__(self) -> None:
        self._begun = True
        loop, outcome = self._loop, self.outcome
        if outcome.cancelled():
            outcome.set_running_or_notify_cancel()
            return
        task = loop.create_task(self._make())

        def cancel(settled: concurrent.futures.Future[Result]) -> None:
            if settled.cancelled():
                with contextlib.suppress(RuntimeError):  # The loop is closed, and with it the task.
                    loop.call_soon_threadsafe(task.cancel)

        outcome.add_done_callback(cancel)
        task.add_done_callback(lambda ended: _settle(outcome, ended))

    def __del__(self) -> None:
        if not self._begun and self.outcome.set_running_or_notify_cancel():
            self.outcome.set_exception(ClientError(_ENDED))


def _settle(outcome: concurrent.futures.Future[Result], task: asyncio.Task[Result]) -> None:
    if task.cancelled():
        outcome.cancel()
        outcome.set_running_or_notify_cancel()
        return
    error = task.exception()  # Looked at in any case: asyncio would report it as lost.
    if outcome.set_running_or_notify_cancel():
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(task.result())
