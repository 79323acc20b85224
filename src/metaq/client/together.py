"""Several things at a time, but not all of a thousand; and what blocks, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

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
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """`function(*arguments)` in a thread. Cancelled, it ends when the function has: who holds a lock holds it so long."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if not work.done():
            await asyncio.wait([work])
        raise
