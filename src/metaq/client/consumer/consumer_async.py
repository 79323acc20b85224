"""`metaq.aio.Consumer`: the consumer of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from metaq.client.arrow.columns import ARROW_ROWS
from metaq.client.consumer.base import CALL_SECONDS, CLOSE_SECONDS, ConsumerBase, warn_of_busy
from metaq.client.consumer.closing import EXIT_SECONDS
from metaq.client.consumer.delivery.orderly import Turn
from metaq.client.consumer.handling.handlers import (
    Handles,
    HandlesAsync,
    handle_async,
    handle_batch_async,
    settle_all,
)
from metaq.client.consumer.handling.running import Job
from metaq.client.consumer.handling.watch import Slot
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received_batch import ReceivedBatch, records_of
from metaq.client.shared.values import Received_co
from metaq.model import MessageQueue

if TYPE_CHECKING:
    from metaq.client.arrow.reading import BatchLayout


class Consumer(ConsumerBase[Received_co]):
    """`metaq.Consumer` for asyncio. Iterate with `async for`, and finish each message by `async with message:`.

    It takes no signals: they belong to the program, whose handler calls `stop`.
    """

    _workers: frozenset[asyncio.Task[None]] = frozenset()
    """The tasks of `run`, for `close`."""

    def __aiter__(self) -> Self:
        """Messages as they come, until `stop` or `close`. Each must be finished: use `async with message:`.

        Raises ClientClosed if it is closed already.
        """
        self._check_open()
        return self

    async def __anext__(self) -> ReceivedMessage[Received_co]:
        # The chunk in hand first: that saves a coroutine and a time-out for most messages.
        if (message := next(self._current, None)) is None and (message := await self._next(None)) is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: float | None = None) -> ReceivedMessage[Received_co] | None:
        """The next message; None after `timeout` seconds, or once `stopped`. `timeout=None` waits for one. Safe from many tasks of
        one loop.

        Raises ClientClosed if it is closed already.
        """
        self._check_open()
        return await self._next(timeout)

    async def _next(self, timeout: float | None) -> ReceivedMessage | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while (message := next(self._current, None)) is None:
                    try:
                        chunk = self._handover.take_now()
                    except LookupError:
                        await self._handover.changed()  # Then look at both: another task may have begun a chunk.
                        continue
                    if chunk is None:
                        return None
                    self._current = self._of(chunk)
                return message
        return None

    async def run(
        self, handler: HandlesAsync[Received_co] | Handles[Received_co], tasks: int = 1, *,
        batch: int | None = None, processes: int = 0,
    ) -> None:  # fmt: skip
        """Await `handler(message)` for each message in `tasks` tasks, until `stop` or `close`.

        The handler's result decides as in `metaq.Consumer.run`, where `batch` and `processes` are explained too; with
        `processes` the handler is a plain function, because nothing is awaited there. Cancelling this cancels the
        handlers, whose messages then stay unfinished; `stop` lets them finish.

        Raises: TypeError: the handler cannot be called with one message, or returns nothing that can be awaited, or
        cannot go to another process. ConfigError. ClientClosed.
        """
        job = Job.of(handler, tasks, batch, processes, awaited=True)
        self._check_open()
        workers: frozenset[asyncio.Task[None]] = frozenset()
        direct = self._member.direct
        way = direct.enter(job, None if processes else asyncio.get_running_loop())
        try:
            async with asyncio.TaskGroup() as group:
                workers = frozenset(group.create_task(self._work(job)) for _ in range(job.workers))
                self._workers |= workers
        # As `metaq.Consumer.run`: what a handler raises comes out as it is, not in a group.
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            direct.leave(way)
            self._workers -= workers
            if self._open:  # `close` commits by itself.
                await self._core.thread.awaited(self._member.persist(), CLOSE_SECONDS)

    async def _work(self, job: Job) -> None:
        slot, monotonic = self._watch.enter(job.name), self._core.clock.monotonic
        try:
            if job.pickled is not None:
                await self._work_in_process(job, slot)
            elif job.batch is not None:
                async for hand in self._hands(lambda: job.batch or 1):
                    slot.hand = hand
                    began = slot.timing and monotonic()
                    await handle_batch_async(hand, job.handler)
                    if began:
                        self._timed(slot, hand[0].topic, began)
                    slot.hand = None
            else:
                async for message in self._each():
                    slot.hand = message
                    began = slot.timing and monotonic()
                    await handle_async(message, job.handler)
                    if began:
                        self._timed(slot, message.topic, began)
                    slot.hand = None
        finally:
            self._watch.leave(slot)

    async def _work_in_process(self, job: Job, slot: Slot) -> None:
        """Handle messages in a process of this worker; a thread beside this task talks to it."""
        loop, worker = asyncio.get_running_loop(), job.worker()
        # One thread per worker: the loop's executor has a few for all, and each of these waits for a process.
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"metaq-{self.group}")
        try:
            await loop.run_in_executor(thread, worker.__enter__)
            async for hand in self._hands(lambda: job.hand_size(worker, orderly=self._orderly)):
                slot.hand = hand
                began = slot.timing and self._core.clock.monotonic()
                await loop.run_in_executor(
                    thread, functools.partial(worker.handle, hand, batched=job.batch is not None)
                )
                if began:
                    self._timed(slot, hand[0].topic, began)
                slot.hand = None
        finally:  # Cancelled or not, at its start too: the process ends behind what the thread does now.
            ended = loop.run_in_executor(thread, worker.__exit__)
            thread.shutdown(wait=False)  # Waiting would be done in the loop.
            await asyncio.shield(ended)

    async def _each(self) -> AsyncIterator[ReceivedMessage]:
        """For one worker: messages that it shares with the others, or those of queues that are its own meanwhile."""
        if self._orderly:
            while (chunk := await self._handover.take_async()) is not None:
                for one in self._of(chunk):
                    yield one
        else:
            while (message := await self._next(None)) is not None:
                yield message

    async def _hands(self, size: Callable[[], int]) -> AsyncGenerator[list[ReceivedMessage]]:
        """For one worker: as `_each`, so many at a time, each time of one queue."""
        if self._orderly:
            while (chunk := await self._handover.take_async()) is not None:
                assert isinstance(chunk, Turn)
                for hand in self._batches_of(chunk, size()):
                    yield hand
        else:
            while (message := await self._next(None)) is not None:
                yield [message, *itertools.islice(self._current, size() - 1)]

    def arrow_batches(
        self, columns: Sequence[str] | None = None, rows: int = ARROW_ROWS
    ) -> AsyncIterator[ReceivedBatch]:
        """What comes, as record batches that are acknowledged as a whole: use `async with batch:`.

        As `metaq.Consumer.arrow_batches`; the columns are made in another thread.
        """
        return self._arrow_batches(self._batch_layout(columns, rows))

    async def _arrow_batches(self, wanted: BatchLayout) -> AsyncIterator[ReceivedBatch]:
        # An asynchronous generator that is left early is closed here, not whenever the loop finalizes it.
        async with contextlib.aclosing(self._hands(lambda: wanted.rows)) as hands:
            async for hand in hands:
                try:
                    batch = ReceivedBatch(await asyncio.to_thread(wanted.batch, [(hand, records_of(hand))]), hand)
                    yield batch
                except BaseException as error:  # No columns can be made of them, or the loop was left.
                    if not settle_all(hand, error):
                        raise
                else:
                    batch.ack()

    async def seek(
        self, queue: MessageQueue | None = None, *, offset: int | None = None, time: float | dt.datetime | None = None
    ) -> None:
        """Go on at an offset, or at the first message stored at a moment or later: in one queue or (None) in all of ours.

        `time`: a datetime, without a zone local time; or seconds since the epoch.

        The progress is kept there at once. Messages in hand can be finished, which counts no more for the progress.
        Raises ConfigError: the queue is not this member's now. NoRoute, ConnectionFailed, BrokerError, RequestTimeout,
        ClientClosed; also those of `commit`, if it goes on there but the progress could not be kept.
        """
        self._check_open()
        await self._calls.awaited(self._seek(queue, offset, time), CALL_SECONDS)

    async def commit(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Keep the progress now.

        Raises RequestTimeout: it was not kept within `timeout` (30) seconds, for which brokers that are away or
        do not answer are asked again. BrokerError: refused. ClientError: the file, or the offset store of yours, failed with
        its `__cause__`. ClientClosed.
        """
        self._check_open()
        await self._calls.awaited(self._member.commit(timeout))

    async def wait_assigned(self, timeout: float | None = None) -> None:
        """Wait until the group has given this member its queues for the first time.

        Raises RequestTimeout: not within `timeout` seconds; None waits for ever. ClientClosed: it was closed or stopped.
        """
        self._check_open()
        await self._until_stopped.awaited(self._assigned(), timeout)

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Stop, let the handlers of `run` finish, commit, leave the group, disconnect. As `metaq.Consumer.close`."""
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        self._open = False
        self.stop()
        deadline = self._core.clock.monotonic() + timeout
        loop, current = asyncio.get_running_loop(), asyncio.current_task()
        # Tasks of another loop cannot be awaited here.
        workers = {task for task in self._workers if task.get_loop() is loop}
        try:
            if workers and current not in workers:  # A handler that closes cannot wait for itself.
                _, busy = await asyncio.wait(workers, timeout=timeout)
                warn_of_busy(self.group, len(busy))
        finally:
            # Even if handlers have used up the time-out: the progress still has to be kept.
            await self._core.thread.awaited(self._close(), max(EXIT_SECONDS, deadline - self._core.clock.monotonic()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
