"""The future of a send is one of `concurrent.futures`, whoever waits for it and however."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest

from metaq.client.shared.callbacks import CallbackThreads
from metaq.errors import RequestTimeout
from metaq.metaq1 import Partition, SendFuture
from metaq.metaq1.model.message import SendResult
from metaq.metaq1.shared.wakes import Wakes
from tests.support import PATIENCE

RESULT = SendResult(1, Partition(0, 0), 5)


@pytest.fixture
def future() -> SendFuture:
    return SendFuture(CallbackThreads(0), Wakes())


def later(future: SendFuture, error: Exception | None = None) -> threading.Thread:
    """Settle it in another thread."""
    thread = threading.Thread(
        target=lambda: future.set_result(RESULT) if error is None else future.set_exception(error)
    )
    thread.start()
    return thread


def test_result(future: SendFuture) -> None:
    assert not future.done()
    assert not future.cancel()
    thread = later(future)
    assert future.result(PATIENCE) == RESULT
    assert future.exception() is None
    assert future.done()
    assert not future.running()
    assert not future.cancelled()
    thread.join()


def test_error(future: SendFuture) -> None:
    thread = later(future, RequestTimeout("late"))
    with pytest.raises(RequestTimeout, match="late"):
        future.result(PATIENCE)
    assert isinstance(future.exception(), RequestTimeout)
    thread.join()


def test_time_is_up(future: SendFuture) -> None:
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(0.001)


@pytest.mark.parametrize("error", [None, RequestTimeout("late")])
def test_wait_and_as_completed(error: Exception | None) -> None:
    futures = [SendFuture(CallbackThreads(0), Wakes()) for _ in range(3)]
    futures[0].set_result(RESULT)
    threads = [later(one, error) for one in futures[1:]]
    assert set(concurrent.futures.as_completed(futures, PATIENCE)) == set(futures)
    assert concurrent.futures.wait(futures, PATIENCE).done == set(futures)
    for thread in threads:
        thread.join()


def test_asyncio(future: SendFuture) -> None:
    """Awaited by two tasks, and by what asyncio makes of it."""

    async def awaited() -> SendResult:
        return await future

    async def run() -> None:
        tasks = [asyncio.create_task(awaited()) for _ in range(2)]
        wrapped = asyncio.wrap_future(future)
        await asyncio.sleep(0)
        thread = later(future)
        assert await asyncio.gather(*tasks, wrapped) == [RESULT] * 3
        assert await future == RESULT
        thread.join()

    asyncio.run(run())


def test_closed_loop(future: SendFuture) -> None:
    """A loop that was closed with a send awaited in it harms nobody."""

    async def begun() -> None:
        async def awaited() -> None:
            await future

        task = asyncio.create_task(awaited())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(begun())
    future.set_result(RESULT)
    assert future.result() == RESULT


def test_callbacks_once_each(future: SendFuture) -> None:
    """Before and after the outcome; one that raises spoils nothing."""
    called: list[object] = []

    def broken(_: object) -> None:
        called.append("broken")
        raise ValueError

    future.add_done_callback(broken)
    future.add_done_callback(called.append)
    future.set_result(RESULT)
    future.add_done_callback(called.append)
    assert called == ["broken", future, future]


def test_nobody_waits_in_vain() -> None:
    """Waiting and settling at the same moment, again and again: each waiter wakes, each callback is called once."""
    threads, wakes = CallbackThreads(0), Wakes()
    for _ in range(2000):
        future, start, calls = SendFuture(threads, wakes), threading.Barrier(3), list[object]()

        def wait(future: SendFuture = future, start: threading.Barrier = start) -> None:
            start.wait()
            future.result(PATIENCE)

        def add(future: SendFuture = future, start: threading.Barrier = start, calls: list[object] = calls) -> None:
            start.wait()
            future.add_done_callback(calls.append)

        others = [threading.Thread(target=wait), threading.Thread(target=add)]
        for other in others:
            other.start()
        start.wait()
        future.set_result(RESULT)
        for other in others:
            other.join(PATIENCE)
            assert not other.is_alive()
        assert calls == [future]
