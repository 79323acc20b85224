"""MetaQ for asyncio: the classes of `metaq` with `await` where those wait.

    async with aio.Producer("localhost:9876") as producer:
        await producer.send("orders", b"...")

    async with aio.Consumer("localhost:9876", group="mailer", topics="orders") as consumer:
        async for message in consumer:
            async with message:
                await handle(message)

They work in any event loop, several at once too: the client itself lives in a thread of its own (metaq.client.shared.loop), so
heartbeats and offset commits go on while your loop is busy.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import datetime as dt
import functools
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from metaq.client.arrow.columns import ARROW_ROWS
from metaq.client.consumer.base import CLOSE_SECONDS, ConsumerBase, warn_of_busy
from metaq.client.consumer.closing import EXIT_SECONDS
from metaq.client.consumer.delivery.orderly import Turn
from metaq.client.consumer.handling.handlers import (
    AsyncBatchHandler,
    AsyncHandler,
    BatchHandler,
    Handler,
    handle_async,
    handle_batch_async,
    settle_all,
)
from metaq.client.consumer.handling.job import Job
from metaq.client.consumer.handling.watch import Slot
from metaq.client.consumer.pull_async import PullConsumer
from metaq.client.consumer.read_message import ReadMessage
from metaq.client.consumer.reader import CALL_SECONDS, ReaderBase
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received.outcome import Later, Pause, Reject
from metaq.client.consumer.received_batch import ReceivedBatch, records_of
from metaq.client.producing.accumulator import BatchStream
from metaq.client.producing.atomic import EXPIRE_AFTER, TIMEOUT, AtomicResult, outcome, settle
from metaq.client.producing.atomic_async import Atomic
from metaq.client.producing.producer import REQUEST_SECONDS, ProducerBase
from metaq.client.shared.awaited import run as _run
from metaq.client.shared.futures import SendFuture
from metaq.client.shared.messages import NO_KEYS, Body, Selector, as_message, as_request
from metaq.client.shared.requests import AwaitedReply, fails_with
from metaq.client.transactions.checks import Answer, AsyncCheck, AwaitedChecks, PoolLimits, check_function, outcome_of
from metaq.client.transactions.transaction import TransactionBase, TransactionProducerBase, TransactionResult, Wanted
from metaq.errors import BufferFull
from metaq.model import Message, MessageQueue, SendReceipt, StoredMessage, TransactionOutcome
from metaq.model.transactions.staging import Phase

if TYPE_CHECKING:
    from metaq.client.arrow.reading import RecordBatch
    from metaq.client.arrow.reading import Wanted as ArrowWanted
    from metaq.client.producing.arrow_sending import ArrowSent

__all__ = [
    "Atomic",
    "AtomicResult",
    "Consumer",
    "Later",
    "Pause",
    "Phase",
    "Producer",
    "PullConsumer",
    "Reader",
    "ReceivedBatch",
    "ReceivedMessage",
    "Reject",
    "Transaction",
    "TransactionOutcome",
    "TransactionProducer",
    "TransactionResult",
]  # fmt: skip

Result = TypeVar("Result")


class Producer(ProducerBase):
    """`metaq.Producer` for asyncio. `submit` does not wait: its future can be awaited, and it raises BufferFull when
    `max_pending_bytes` is reached, while `await send` then waits for room (unless `when_full="raise"`)."""

    _may_block = False

    async def send(
        self,
        topic: str | Message,
        body: Body | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = NO_KEYS,
        ordering_key: str | None = None,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        flag: int = 0,
        delay_level: int = 0,
        wait_store_ok: bool = True,
        properties: dict[str, str] | None = None,
        message_id: str | None = None,
        timeout: float | None = None,
        strict: bool = False,
    ) -> SendReceipt:
        """Send and wait for the acknowledgement. As `metaq.Producer.send`."""
        if (
            ordering_key is None and properties is None and selector is None and queue is None and timeout is None
            and message_id is None and keys is NO_KEYS and not (flag or delay_level or strict) and wait_store_ok is True
            and body is not None
        ):  # fmt: skip
            try:
                if len(body) < self._short:
                    # The hot path, as that of `submit`: the message joins the open batch. The careful way begins batches.
                    stream = self._streams[topic]  # type: ignore[index]
                    batch = stream.batch
                    index = batch.add_message(body, self._tags[tag], None)
                else:
                    index = -1
            except (KeyError, TypeError):
                index = -1
            if index >= 0:
                if stream.urgent is not batch:
                    self._accumulator.seal_soon(stream, batch)
                loop = asyncio.get_running_loop()
                if (others := batch.awaited.get(loop)) is not None:
                    others.append(future := loop.create_future())
                    await future
                elif (waiter := batch.waiter(loop)) is not None:
                    await waiter
                return batch.receipt(index)
        message = as_message(
            topic, body, tag, keys,
            flag=flag, delay_level=delay_level, wait_store_ok=wait_store_ok, properties=properties, serialize=self._serialize,
        )  # fmt: skip

        def hand_in(stream: BatchStream) -> SendFuture:
            return self._hand_in(message, stream, message_id, urgent=True, timeout=timeout)

        return await (await self._handed_in(message.topic, ordering_key, selector, queue, hand_in, strict=strict))

    async def _handed_in(
        self,
        topic: str,
        ordering_key: str | None,
        selector: Selector | None,
        queue: MessageQueue | None,
        hand_in: Callable[[BatchStream], SendFuture],
        *,
        strict: bool = False,
    ) -> SendFuture:
        """`hand_in` to the right stream, once its queue can be chosen and there is room."""
        if (ordering_key is not None or selector is not None) and self._queues_now(topic, strict=strict) is None:
            self._check_open()
            await _run(self._core, self._find_queues(topic, strict=strict))
        while True:
            stream = self._stream(topic, ordering_key, selector, queue, strict=strict)
            try:
                return hand_in(stream)
            except BufferFull:
                if not self._waits_when_full:
                    raise
                await _run(self._core, self._accumulator.room())

    async def request(
        self,
        topic: str | Message,
        body: Body | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = NO_KEYS,
        ordering_key: str | None = None,
        queue: MessageQueue | None = None,
        flag: int = 0,
        properties: dict[str, str] | None = None,
        timeout: float = REQUEST_SECONDS,
    ) -> StoredMessage:
        """Send a request and wait for the reply of whoever consumes it. As `metaq.Producer.request`."""
        self._check_open()
        message = as_message(topic, body, tag, keys, flag=flag, properties=properties, serialize=self._serialize)
        seconds = as_request(message, timeout)
        reply = AwaitedReply()
        work = self._core.thread.start(self._request(message, ordering_key, queue, seconds, reply))
        fails_with(reply, work)
        try:
            return await asyncio.wrap_future(reply)
        except BaseException:
            work.cancel()
            raise

    async def send_batch(self, messages: Iterable[Message], *, queue: MessageQueue | None = None) -> list[SendReceipt]:
        """Send messages of one topic in one request. As `metaq.Producer.send_batch`."""
        batch = self._hand_in_batch(messages, queue)
        if (waiter := batch.waiter(asyncio.get_running_loop())) is not None:
            await waiter
        return [batch.receipt(index) for index in range(batch.count)]

    async def send_arrow(self, table: Any, topic: str | None = None, *, timeout: float | None = None) -> ArrowSent:
        """Send the rows of a table as messages. As `metaq.Producer.send_arrow`; the rows are read and built in another thread.

        Cancelled, it sends no further request; those under way go on.
        """
        sending = self._arrow_send(table, topic, timeout)
        try:
            return await asyncio.to_thread(sending.run)
        finally:
            sending.stop()

    async def send_oneway(self, topic: str | Message, body: Body | None = None, *, tag: str | None = None) -> None:
        """Send and forget. As `metaq.Producer.send_oneway`."""
        self._check_open()
        message = as_message(topic, body, tag, serialize=self._serialize)
        await _run(self._core, self._oneway(message, None), self._accumulator.limits.timeout)

    def atomic(self, *, timeout: float = TIMEOUT, expire_after: float = EXPIRE_AFTER) -> Atomic:
        """Several messages, all or none: `async with producer.atomic() as tx`, and `await tx.send(...)` in it.

        As `metaq.Producer.atomic`.
        """
        self._check_open()
        return Atomic(self._outlet(), timeout, expire_after)

    async def outcome(self, transaction_id: str, *, timeout: float = TIMEOUT) -> Phase:
        """Where a transaction of several messages stands. As `metaq.Producer.outcome`."""
        self._check_open()
        return await _run(self._core, outcome(self._courier, transaction_id, timeout))

    async def settle(self, transaction_id: str, *, commit: bool, timeout: float = TIMEOUT) -> TransactionOutcome:
        """Decide a transaction of several messages by its id. As `metaq.Producer.settle`."""
        self._check_open()
        return await _run(self._core, settle(self._courier, transaction_id, timeout, commit=commit))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything submitted so far has its outcome. Raises RequestTimeout."""
        self._core.check_process()
        await _run(self._core, self._accumulator.flush(), timeout)
        await asyncio.to_thread(self._wait_for_callbacks, timeout)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's writable queues. Raises NoRoute, ClientClosed."""
        self._check_open()
        return list(await _run(self._core, self._find_queues(topic, fresh=True)))

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Refuse further sends, flush, and disconnect. Raises RequestTimeout."""
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        self._open = False
        try:
            await _run(self._core, self._close(), timeout)
            await asyncio.to_thread(self._wait_for_callbacks, timeout)
        finally:
            self._callbacks.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Transaction(TransactionBase):
    """One transaction of a `TransactionProducer`. Use it with `async with`.

    `commit`, `rollback` and `unknown` decide at once; await what they return to know that the broker was told.
    """

    _producer: TransactionProducer

    async def begin(self) -> Self:
        """Store the message unseen. As `metaq.client.transactions.transaction.Transaction.begin`."""
        self._producer._check_open()  # noqa: SLF001  a part of the producer
        self._producer._live_here()  # noqa: SLF001
        self._check_new()
        self._stored(await self._producer._send_half(self._wanted))  # noqa: SLF001
        if (error := self._not_safe()) is not None:
            await self.rollback()
            raise error
        return self

    def commit(self) -> Awaitable[TransactionResult]:
        """End it: consumers get the message. Raises TransactionEnded: it ended otherwise before."""
        return _shielded(self._decide(TransactionOutcome.COMMIT))

    def rollback(self) -> Awaitable[TransactionResult]:
        """End it: nobody gets the message. Raises TransactionEnded: it ended otherwise before."""
        return _shielded(self._decide(TransactionOutcome.ROLLBACK))

    def unknown(self) -> Awaitable[TransactionResult]:
        """End it here without an outcome: the broker will ask, and `check` settles it. Raises TransactionEnded."""
        return _shielded(self._decide(TransactionOutcome.UNKNOWN))

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _shielded(self._left(error))


AsyncExecute = Callable[[Transaction], Awaitable[Answer]]


class TransactionProducer(TransactionProducerBase[Transaction], Producer):
    """`metaq.TransactionProducer` for asyncio: `check` is awaited in the event loop in which the producer is made, entered
    or first used."""

    _pool: AwaitedChecks

    def _check_kind(self, check: Callable[..., Any]) -> None:
        check_function(check, "check", awaited=True)

    def _new_pool(self, check: AsyncCheck, limits: PoolLimits) -> AwaitedChecks:
        pool = AwaitedChecks(self._core, self.group, limits, check)
        with contextlib.suppress(RuntimeError):  # Made before the loop runs.
            pool.live_in(asyncio.get_running_loop())
        return pool

    def _new_transaction(self, wanted: Wanted) -> Transaction:
        return Transaction(self, wanted)

    def _live_here(self) -> None:
        self._pool.live_in(asyncio.get_running_loop())

    async def _send_half(self, wanted: Wanted) -> SendReceipt:
        def hand_in(stream: BatchStream) -> SendFuture:
            return self._hand_in_half(wanted, stream)

        topic = wanted.message.topic
        return await (await self._handed_in(topic, wanted.ordering_key, wanted.selector, wanted.queue, hand_in))

    async def send_in_transaction(
        self,
        message: Message,
        execute: AsyncExecute,
        *,
        ordering_key: str | None = None,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        check_after: float | None = None,
    ) -> TransactionResult:
        """Store `message` unseen, await `execute(tx)`, end as it says. As `metaq.TransactionProducer.send_in_transaction`."""
        check_function(execute, "execute", awaited=True)
        wanted = self._wanted(message, ordering_key, selector, queue, timeout=timeout, check_after=check_after)
        self._check_open()
        self._live_here()
        tx = self._new_transaction(wanted)
        tx._stored(await self._send_half(wanted))  # noqa: SLF001  a part of the producer
        if tx._not_safe() is not None:  # noqa: SLF001
            return await tx.rollback()
        try:
            return await _shielded(tx._executed(outcome_of(await execute(tx))))  # noqa: SLF001
        except Exception as error:  # noqa: BLE001  whatever the application's own code raises
            return await _shielded(tx._execute_failed(error))  # noqa: SLF001
        except BaseException as error:
            tx._left(error)  # noqa: SLF001
            raise

    async def __aenter__(self) -> Self:
        self._live_here()
        return self


def _shielded(ending: concurrent.futures.Future[Result]) -> Awaitable[Result]:
    """Awaits the end of a transaction; who gives up waiting does not end that."""
    return asyncio.shield(asyncio.wrap_future(ending))


class Consumer(ConsumerBase):
    """`metaq.Consumer` for asyncio. It takes no signals: they belong to the program, whose handler calls `stop`."""

    _workers: frozenset[asyncio.Task[None]] = frozenset()
    """The tasks of `run`, for `close`."""

    def __aiter__(self) -> Self:
        """Messages as they come, until `stop` or `close`. Each must be finished: use `async with message:`.

        Raises ClientClosed if it is closed already.
        """
        self._check_open()
        return self

    async def __anext__(self) -> ReceivedMessage:
        if (message := next(self._current, None)) is None and (message := await self._next(None)) is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: float | None = None) -> ReceivedMessage | None:
        """The next message; None after `timeout` seconds, or once `stopped`. Safe from many tasks of one loop.

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
        self, handler: AsyncHandler | AsyncBatchHandler | Handler | BatchHandler, tasks: int = 1, *,
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
        try:
            async with asyncio.TaskGroup() as group:
                workers = frozenset(group.create_task(self._work(job)) for _ in range(job.workers))
                self._workers |= workers
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self._workers -= workers
            if self._open:  # `close` commits by itself.
                await self.commit()

    async def _work(self, job: Job) -> None:
        slot = self._watch.enter(job.name)
        try:
            if job.pickled is not None:
                await self._work_in_process(job, slot)
            elif job.batch is not None:
                async for hand in self._hands(lambda: job.batch or 1):
                    slot.hand = hand
                    await handle_batch_async(hand, job.handler)
                    slot.hand = None
            else:
                async for message in self._each():
                    slot.hand = message
                    await handle_async(message, job.handler)
                    slot.hand = None
        finally:
            self._watch.leave(slot)

    async def _work_in_process(self, job: Job, slot: Slot) -> None:
        """The thread beside this task talks to the process."""
        loop, worker = asyncio.get_running_loop(), job.worker()
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"metaq-{self.group}")
        try:
            await loop.run_in_executor(thread, worker.__enter__)
            async for hand in self._hands(lambda: job.hand_size(worker, orderly=self._orderly)):
                slot.hand = hand
                await loop.run_in_executor(
                    thread, functools.partial(worker.handle, hand, batched=job.batch is not None)
                )
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
        return self._arrow_batches(self._arrow_wanted(columns, rows))

    async def _arrow_batches(self, wanted: ArrowWanted) -> AsyncIterator[ReceivedBatch]:
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

        The progress is kept there at once. Messages in hand can be finished, which counts no more for the progress.
        Raises ConfigError: the queue is not this member's now. NoRoute, BrokerError, RequestTimeout, ClientClosed.
        """
        self._check_open()
        await _run(self._core, self._seek(queue, offset, time), CALL_SECONDS)

    async def commit(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Keep the progress now. Raises RequestTimeout, ClientClosed."""
        self._check_open()
        await _run(self._core, self._member.persist(), timeout)

    async def wait_assigned(self, timeout: float | None = None) -> None:
        """Wait until the group has given this member its queues for the first time. Raises RequestTimeout, ClientClosed."""
        self._check_open()
        await _run(self._core, self._assigned(), timeout)

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Stop, let the handlers of `run` finish, commit, leave the group, disconnect. As `metaq.Consumer.close`."""
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        self._open = False
        self.stop()
        deadline = self._core.clock.monotonic() + timeout
        loop, current = asyncio.get_running_loop(), asyncio.current_task()
        workers = {task for task in self._workers if task.get_loop() is loop}
        try:
            if workers and current not in workers:  # A handler that closes cannot wait for itself.
                _, busy = await asyncio.wait(workers, timeout=timeout)
                warn_of_busy(self.group, len(busy))
        finally:
            await _run(self._core, self._close(), max(EXIT_SECONDS, deadline - self._core.clock.monotonic()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Reader(ReaderBase):
    """`metaq.Reader` for asyncio."""

    def __aiter__(self) -> Self:
        """Messages as they come; with `stop_at_end` until there are no more. Raises as `metaq.Reader`'s iteration."""
        self._check_open()
        return self

    async def __anext__(self) -> ReadMessage:
        if (message := next(self._current, None)) is None and (message := await self._next(None)) is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: float | None = None) -> ReadMessage | None:
        """The next message; None after `timeout` seconds or at the end. Raises as iteration does."""
        self._check_open()
        return await self._next(timeout)

    async def _next(self, timeout: float | None) -> ReadMessage | None:
        if self._start is not None:
            await _run(self._core, self._begin(), self._call_seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while (message := next(self._current, None)) is None:
                    try:
                        chunk = self._handover.take_now()
                    except LookupError:
                        await self._handover.changed()
                        continue
                    if chunk is None:
                        self._end()
                        return None
                    self._current = self._of(chunk)
                return message
        return None

    def arrow_batches(self, columns: Sequence[str] | None = None, rows: int = ARROW_ROWS) -> AsyncIterator[RecordBatch]:
        """What is read, as record batches. As `metaq.Reader.arrow_batches`; the columns are made in another thread."""
        return self._arrow_batches(self._arrow_wanted(columns, rows))

    async def _arrow_batches(self, wanted: ArrowWanted) -> AsyncIterator[RecordBatch]:
        if self._start is not None:
            await _run(self._core, self._begin(), self._call_seconds)
        self._give_back_current()
        while (chunk := await self._handover.take_async()) is not None:
            if parts := self._gather(chunk, wanted.rows):
                yield await asyncio.to_thread(wanted.batch, parts)
            self._give_back_current()
        self._end()

    async def seek(
        self, queue: MessageQueue | None = None, *, offset: int | None = None, time: float | dt.datetime | None = None
    ) -> None:
        """Go on at an offset or a moment, in one queue or (None) in all. Raises ConfigError, NoRoute, BrokerError."""
        self._check_open()
        await _run(self._core, self._seek(queue, offset, time), self._call_seconds)

    async def queues(self) -> list[MessageQueue]:
        """The queues that are read. Raises NoRoute."""
        self._check_open()
        return await _run(self._core, self._reading.queues(), self._call_seconds)

    async def ranges(self) -> Mapping[MessageQueue, range]:
        """What every queue holds now: [min, max) offsets. Raises NoRoute, BrokerError."""
        self._check_open()
        return await _run(self._core, self._reading.ranges(), self._call_seconds)

    async def close(self) -> None:
        """End all iterations and disconnect."""
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        self._open = False
        self._handover.close()
        await _run(self._core, self._close(), self._call_seconds)

    async def __aenter__(self) -> Self:
        """Finds the start: "latest" is the end as it is now."""
        try:
            self._check_open()
            await _run(self._core, self._begin(), self._call_seconds)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
