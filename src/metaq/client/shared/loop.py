"""The background thread with the event loop of all clients of this process.

The client core is asyncio. It runs in a loop of its own and not in the caller's, for `metaq.aio` too, because
 - heartbeats, offset commits and re-sends must go on while the caller computes, or blocks its own loop;
 - all clients of a process share their connections, whichever thread or loop each was made in;
 - `submit` must cost a microsecond, so it only appends to a batch; another thread does the rest.
The road not taken, the core in the caller's loop, saves `aio` two thread hops per request (about 60 us together) and
loses all three.

The thread starts with the first client and is ended when the interpreter exits, after clients that were forgotten have
sent and committed: one that still runs while Python takes itself down may crash the process. After a `fork` the child
has no such thread, and nothing of the parent's loop may be touched there: it shares the parent's epoll set. So the
child forgets the loop without closing it and starts another when it makes clients of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from metaq.clock import SYSTEM
from metaq.errors import ClientClosed, RequestTimeout

log = logging.getLogger("metaq.client")

Result = TypeVar("Result")

LOOK_SECONDS = 1.0
"""Longest wait of a thread in one go. A signal that arrives just before the wait does not end it, and its handler runs
only when the main thread wakes."""

END_SECONDS = 5.0
"""Time for which the process's exit waits for callbacks, such as those of a user's future, s."""


class LoopThread:
    """An event loop in a daemon thread. Made by `background`, never directly."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = _new_loop()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="metaq-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
                break
            except BaseException:  # SystemExit, in some function of the user's: it must not end all clients.
                log.exception("the client's thread goes on although something in it wanted to end it")
        # Cancelled in their own loop, so that their `finally` blocks still run.
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            # Half of the time that `end` waits for this thread.
            self.loop.run_until_complete(asyncio.wait(left, timeout=END_SECONDS / 2))

    def end(self) -> None:
        """Stop the loop for good and wait, for a while, until the thread has ended. Not from the loop's own thread."""
        self._ending = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(END_SECONDS)

    @property
    def current(self) -> bool:
        """Return whether the caller runs on the loop's thread, where it must not block."""
        return threading.get_ident() == self._thread.ident

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function` in the loop soon. Costs a system call when the loop sleeps."""
        self.loop.call_soon_threadsafe(function, *args)

    def start(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        """Run a coroutine in the loop; its outcome arrives in the future returned. Raises ClientClosed at the very end."""
        if self._ending:
            # Or it would warn that it was never awaited.
            work.close()
            raise ClientClosed("the interpreter is exiting, and metaq's background thread has ended")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, Result], timeout: float | None = None) -> Result:
        """Run a coroutine in the loop and wait for it. Raises RequestTimeout, and cancels it, after `timeout` seconds.

        An interrupt (Ctrl-C) cancels it too.
        """
        assert not self.current, "waiting in the loop's own thread would never end"
        future = self.start(work)
        if timeout is None:
            return self.outcome(future, future)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            # The work itself has raised a TimeoutError.
            if future.done():
                raise
            future.cancel()
            raise RequestTimeout(f"no outcome within {timeout} s") from None
        except BaseException:
            future.cancel()
            raise

    async def awaited(self, work: Coroutine[Any, Any, Result], timeout: float | None = None) -> Result:
        """Run a coroutine in the loop and await it in the caller's. Cancelling one cancels the other.

        Raises RequestTimeout, and cancels it, after `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(self.start(work))
        except TimeoutError:
            raise RequestTimeout(f"no outcome within {timeout} s") from None

    def outcome(self, future: concurrent.futures.Future[Result], work: concurrent.futures.Future[Any]) -> Result:
        """Wait for a future that `work`, which runs in the loop, sees settled. An interrupt (Ctrl-C) cancels the work."""
        assert not self.current, "waiting in the loop's own thread would never end"
        try:
            self.settled(future, None)
            return future.result()
        except BaseException:
            work.cancel()
            raise

    def settled(self, future: concurrent.futures.Future[Any], deadline: float | None) -> bool:
        """Wait for a future that the loop settles; until a time of `SYSTEM.monotonic`, if given. Returns whether it is."""
        # The future's own condition would wake us while its lock is still held, and have us wait for that as well.
        done = threading.Lock()
        done.acquire()
        future.add_done_callback(lambda _: done.release())
        while not future.done():
            left = LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, deadline - SYSTEM.monotonic())
            if left <= 0:
                return False
            done.acquire(timeout=left)
        return True


def preload() -> None:
    """Import what the first client would import: a fork in the middle of an import would leave a partial module in the child."""
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: F401


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_lock = threading.Lock()
_thread: LoopThread | None = None
_inherited: list[LoopThread] = []
"""Loops of parent processes, kept so that nothing of them is ever finalized here."""


def background() -> LoopThread:
    """The loop thread of this process; the first call starts it."""
    global _thread  # noqa: PLW0603  one per process is the point
    with _lock:
        if _thread is None:
            _thread = LoopThread()
        return _thread


def background_ident() -> int | None:
    """Return the ident of this process's loop thread; None: there is none. Starts nothing."""
    thread = _thread
    return thread.ident if thread is not None else None


def _forget_in_child() -> None:
    global _lock, _thread  # noqa: PLW0603  one per process is the point
    _lock = threading.Lock()
    if _thread is not None:
        _inherited.append(_thread)
        _thread = None


@atexit.register
def _end() -> None:
    """Registered before the hooks of the modules that use this one, so it runs after them."""
    if _thread is not None and _thread.alive:
        _thread.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
