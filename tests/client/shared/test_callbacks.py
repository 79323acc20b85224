"""Coroutines that run in an event loop of the user's."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import TypeVar

import pytest

from metaq.client.shared.callbacks import in_loop
from metaq.errors import ClientError
from tests.support import PATIENCE

Result = TypeVar("Result")


def closed_with(begun: Callable[[asyncio.AbstractEventLoop], Result]) -> Result:
    """What is begun in a loop that is closed before its next round."""
    loop = asyncio.new_event_loop()
    try:
        return begun(loop)
    finally:
        loop.close()


async def seven() -> int:
    return 7


def test_a_coroutine_runs_in_the_loop_of_a_user() -> None:
    """Its result and its error arrive in the future, whichever thread asks."""

    async def fails() -> int:
        raise LookupError("no seven")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert await asyncio.to_thread(lambda: in_loop(loop, seven).result(PATIENCE)) == 7
        with pytest.raises(LookupError, match="no seven"):
            await asyncio.to_thread(lambda: in_loop(loop, fails).result(PATIENCE))

    asyncio.run(main())


def test_what_is_cancelled_in_the_loop_of_a_user_ends_there() -> None:
    """Cancelling the future cancels the coroutine, and the other way round; what has not begun never begins."""

    async def main() -> None:
        loop, begun, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        async def waits() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        future = in_loop(loop, waits)
        await begun.wait()
        future.cancel()
        async with asyncio.timeout(PATIENCE):
            await ended.wait()

        begun.clear()
        assert in_loop(loop, waits).cancel()
        await asyncio.sleep(0.01)
        assert not begun.is_set()

        own = in_loop(loop, waits)
        await begun.wait()
        [task] = [task for task in asyncio.all_tasks() if task.get_coro().__name__ == "waits"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wrap_future(own)
        assert own.cancelled()

    asyncio.run(main())


@pytest.mark.filterwarnings("error")
def test_a_loop_that_is_closed_before_a_coroutine_begins_is_an_error_and_not_a_wait_for_ever() -> None:
    """No coroutine is made, so none warns that it was never awaited."""
    future = closed_with(lambda loop: in_loop(loop, seven))
    gc.collect()
    with pytest.raises(ClientError, match="the event loop has ended"):
        future.result(PATIENCE)


def test_a_loop_that_is_closed_already_is_refused() -> None:
    loop = closed_with(lambda loop: loop)
    with pytest.raises(ClientError, match="the event loop has ended"):
        in_loop(loop, seven)
