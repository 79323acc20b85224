"""Bounded concurrency, and blocking functions in threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, cast

Item = TypeVar("Item")
Result = TypeVar("Result")


async def together(work: Callable[[Item], Awaitable[Result]], items: Iterable[Item], most: int) -> list[Result]:
    """`work(item)` for all items, at most `most` of them under way at a time; the results in the items' order.

    Raises what one of them raises; the others are cancelled, and have ended.
    """
    places = asyncio.Semaphore(most)

    async def one(item: Item) -> Result:
        async with places:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except BaseExceptionGroup as errors:
        # The first only: callers expect the error of one call, not a group.
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """`function(*arguments)` in a thread. Cancelled, it ends when the function has: who holds a lock holds it so long.

    What is no `Exception` (SystemExit) is raised as a RuntimeError: it would end the loop's thread, and all clients with
    it. The thread is a daemon, so that a function that never returns keeps no process from its end.
    """
    loop = asyncio.get_running_loop()
    work: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: Exception | None) -> None:
        if error is not None:
            work.set_exception(error)
        else:
            work.set_result(cast("Result", result))

    def call() -> None:
        result: Result | None = None
        error: Exception | None = None
        try:
            result = function(*arguments)
        except BaseException as raised:  # noqa: BLE001  whatever the user's own code raises
            if isinstance(raised, Exception) and not isinstance(raised, StopIteration):  # Which no future takes.
                error = raised
            else:
                error = RuntimeError(f"{type(raised).__name__} was raised")
                error.__cause__ = raised
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
            loop.call_soon_threadsafe(settle, result, error)

    # A thread of its own: the executor's are joined at exit, and user code may never return.
    threading.Thread(target=call, name="metaq-call", daemon=True).start()
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if not work.done():
            await asyncio.wait([work])
        raise
