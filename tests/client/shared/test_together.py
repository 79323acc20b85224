"""Several things at a time, but not all of them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from metaq.client.shared.together import in_thread, together
from tests.support import PATIENCE


def test_results_are_in_order_and_only_so_many_run_at_a_time():
    """Whoever ends first."""
    running, most = 0, 0

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10 - number % 10):
            await asyncio.sleep(0)
        running -= 1
        return number * 2

    assert asyncio.run(together(work, range(50), 7)) == [number * 2 for number in range(50)]
    assert most == 7


def test_an_error_ends_the_others_before_it_is_raised():
    """Nothing goes on behind the caller's back."""
    ended = []

    async def work(number: int) -> None:
        try:
            if number == 3:
                raise LookupError("three")
            await asyncio.sleep(PATIENCE)
        finally:
            ended.append(number)

    with pytest.raises(LookupError, match="three"):
        asyncio.run(together(work, range(5), 5))
    assert sorted(ended) == [0, 1, 2, 3, 4]


def test_nothing_to_do_is_done():
    """No items, no results."""

    async def work(_: int) -> None:
        raise AssertionError

    assert asyncio.run(together(work, [], 3)) == []


def test_a_cancelled_thread_is_waited_for():
    """So that a lock around it holds as long as it runs."""
    began, go_on, done = threading.Event(), threading.Event(), []

    def work() -> None:
        began.set()
        go_on.wait(PATIENCE)
        done.append(True)

    async def scenario() -> None:
        task = asyncio.ensure_future(in_thread(work))
        await asyncio.to_thread(began.wait, PATIENCE)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert done == [True]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration(), GeneratorExit()])
def test_what_would_end_the_loop_is_an_error_like_any_other(error):
    """An application that exits in a listener must not end the thread of all its clients."""

    def work() -> None:
        raise error

    async def scenario() -> None:
        with pytest.raises(RuntimeError, match=type(error).__name__) as raised:
            await in_thread(work)
        assert raised.value.__cause__ is error

    asyncio.run(scenario())


def test_a_function_that_never_returns_keeps_no_process_from_its_end():
    """Its thread is a daemon's."""

    async def scenario() -> bool:
        return await in_thread(lambda: threading.current_thread().daemon)

    assert asyncio.run(scenario())
