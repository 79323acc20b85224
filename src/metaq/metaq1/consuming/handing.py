"""Calls of listeners: a fetched block is handed over as a whole, to the consumer's threads, to an executor, or to an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from metaq.client.shared.callbacks import CallbackThreads, in_loop
from metaq.errors import ClientError
from metaq.metaq1.consuming.delivery import Batch, Delivery
from metaq.metaq1.consuming.subscriptions import Subscription
from metaq.metaq1.model.received import ReceivedMessage

log = logging.getLogger("metaq.client")

Reject = Callable[[ReceivedMessage], Any]
"""Takes a message that has failed too often. It may be a coroutine function of asyncio's consumers."""


class Single:
    """One message that is delivered for itself."""

    def __init__(self, message: ReceivedMessage) -> None:
        self._message, self._batch = message, Batch()
        message._batch = self._batch  # noqa: SLF001  not for users; to acknowledge it by itself changes nothing
        self.error: BaseException | None = None
        self.is_failed = False

    def __iter__(self) -> Iterator[ReceivedMessage]:
        yield self._message
        if self._message.rollback_only or self._batch.rolled_back:
            self.fail(None)

    def fail(self, error: BaseException | None) -> None:
        self.error, self.is_failed = error, True

    def first(self) -> ReceivedMessage | None:
        return self._message

    def skip(self, message: ReceivedMessage) -> None:
        """Nothing has a place here."""


def _ignore(message: ReceivedMessage) -> None:
    del message


class Work(Struct):
    """One block for a listener.

    Args: skip: the first message goes to `reject` in place of the listener, and no other is delivered.
    """

    delivery: Delivery | Single
    subscription: Subscription
    reject: Reject
    skip: bool


class HandedBack(Exception):
    """Nobody takes the block now."""


def deliver(work: Work) -> None:
    """Call the listener with each message, in this thread. Raises nothing: what fails is in the delivery."""
    delivery = work.delivery
    try:
        if work.skip:
            message = delivery.first()
            if message is not None:
                work.reject(message)
                delivery.skip(message)
            return
        call = work.subscription.call
        for message in delivery:
            call(message)
    except BaseException as error:  # noqa: BLE001  SystemExit of a listener ends no thread of others'
        delivery.fail(error)


async def deliver_async(work: Work) -> None:
    """The same in the user's event loop; plain functions are called there, too."""
    delivery = work.delivery
    try:
        if work.skip:
            message = delivery.first()
            if message is not None:
                await _done(work.reject(message))
                delivery.skip(message)
            return
        call = work.subscription.call
        for message in delivery:
            await call(message)
    except BaseException as error:
        delivery.fail(error)
        if isinstance(error, asyncio.CancelledError):
            raise


async def _done(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


class Handing:
    """Hands blocks over for one consumer.

    Args:
        count: threads, or tasks in the user's loop, that call listeners at the same time.
        loop: the user's, of a consumer for asyncio.
    """

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._threads = CallbackThreads(count)
        self._loop = loop
        self._slots = asyncio.Semaphore(count)
        self._here = asyncio.get_running_loop()

    async def hand(self, work: Work) -> None:
        """In the background loop: return when the listener is done with the block. Raises HandedBack."""
        done: asyncio.Future[BaseException | None] = self._here.create_future()

        def finish(error: BaseException | None = None) -> None:
            def settle() -> None:
                if not done.done():
                    done.set_result(error)

            with contextlib.suppress(RuntimeError):  # the interpreter exits
                self._here.call_soon_threadsafe(settle)

        if work.subscription.is_async:
            async with self._slots:
                self._in_loop(work, finish)
                error = await done
        else:
            self._in_thread(work, finish)
            error = await done
        if error is not None:
            raise HandedBack(str(error) or repr(error))

    async def call(self, subscription: Subscription, message: ReceivedMessage) -> bool:
        """Have the listener called with one message that belongs to no block. Return whether it has taken it."""
        single = Single(message)
        try:
            await self.hand(Work(single, subscription, _ignore, skip=False))
        except HandedBack as error:
            log.info("a rejected message of topic %s was not taken: %s", message.topic, error)
            return False
        if single.error is not None:
            log.warning("a rejected message of topic %s has failed again: %r", message.topic, single.error)
        return not single.is_failed

    def _in_loop(self, work: Work, finish: Callable[[BaseException | None], None]) -> None:
        assert self._loop is not None, "coroutine functions belong to consumers for asyncio"
        try:
            future = in_loop(self._loop, lambda: deliver_async(work))
        except ClientError as error:
            finish(error)
            return
        future.add_done_callback(lambda ended: finish(_ended(ended)))

    def _in_thread(self, work: Work, finish: Callable[[BaseException | None], None]) -> None:
        executor = work.subscription.executor
        if executor is None:

            def job() -> None:
                deliver(work)
                finish(None)

            self._threads.do(job)
            return
        try:
            future = executor.submit(deliver, work)
        except RuntimeError as error:  # it is shut down, or full
            finish(error)
            return
        future.add_done_callback(lambda ended: finish(_ended(ended)))

    def close(self) -> None:
        """End the threads when listeners have returned."""
        self._threads.close()


def _ended(future: concurrent.futures.Future[None]) -> BaseException | None:
    if future.cancelled():
        return concurrent.futures.CancelledError("it was cancelled before it began")
    return future.exception()
