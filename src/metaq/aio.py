"""MetaQ for asyncio: the classes of `metaq` with `await` where those wait.

    async with aio.Producer("localhost:9876") as producer:
        await producer.send("orders", b"...")

    async with aio.Consumer("localhost:9876", group="mailer", topics="orders") as consumer:
        async for message in consumer:
            async with message:
                await handle(message)

They work in any event loop, several at once too: the client itself lives in a thread of its own (metaq.client.loop), so
heartbeats and offset commits go on while your loop is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Self, TypeVar

from metaq.client.consumer.base import CLOSE_SECONDS, EXIT_SECONDS, ConsumerBase, warn_of_busy
from metaq.client.consumer.handlers import AsyncHandler, check_handler, handle_async
from metaq.client.consumer.outcome import Later, Reject
from metaq.client.consumer.received import ReceivedMessage
from metaq.client.core import ClientCore
from metaq.client.producer import NO_KEYS, Body, ProducerBase, Selector, as_message
from metaq.client.reader import CALL_SECONDS, ReaderBase
from metaq.errors import BufferFull, ConfigError, RequestTimeout
from metaq.model import Message, MessageQueue, SendReceipt, StoredMessage

__all__ = ["Consumer", "Later", "Producer", "Reader", "ReceivedMessage", "Reject"]

Result = TypeVar("Result")


async def _run(core: ClientCore, work: Coroutine[Any, Any, Result], timeout: float | None = None) -> Result:
    """Run `work` in the client's own loop and await it here. Cancelling one cancels the other."""
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.wrap_future(core.thread.start(work))
    except TimeoutError:
        raise RequestTimeout(f"no outcome within {timeout} s") from None


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
    ) -> SendReceipt:
        """Send and wait for the acknowledgement. As `metaq.Producer.send`."""
        message = as_message(
            topic, body, tag, keys,
            flag=flag, delay_level=delay_level, wait_store_ok=wait_store_ok, properties=properties,
        )  # fmt: skip
        routes = self._core.routes
        if (ordering_key is not None or selector is not None) and routes.publish_queues_now(message.topic) is None:
            self._check_open()
            await _run(self._core, routes.publish_queues(message.topic))
        while True:
            stream = self._stream(message.topic, ordering_key, selector, queue)
            try:
                future = self._hand_in(message, stream, message_id, urgent=True, timeout=timeout)
            except BufferFull:
                if not self._waits_when_full:
                    raise
                await _run(self._core, self._accumulator.room())
            else:
                return await future

    async def send_batch(self, messages: Iterable[Message], *, queue: MessageQueue | None = None) -> list[SendReceipt]:
        """Send messages of one topic in one request. As `metaq.Producer.send_batch`."""
        batch = self._hand_in_batch(messages, queue)
        if (waiter := batch.waiter(asyncio.get_running_loop())) is not None:
            await waiter
        return [batch.receipt(index) for index in range(batch.count)]

    async def send_oneway(self, topic: str | Message, body: Body | None = None, *, tag: str | None = None) -> None:
        """Send and forget. As `metaq.Producer.send_oneway`."""
        self._check_open()
        message = as_message(topic, body, tag)
        await _run(self._core, self._oneway(message, None), self._accumulator.limits.timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything submitted so far has its outcome. Raises RequestTimeout."""
        self._core.check_process()
        await _run(self._core, self._accumulator.flush(), timeout)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's writable queues. Raises NoRoute, ClientClosed."""
        self._check_open()
        return list(await _run(self._core, self._core.routes.publish_queues(topic, fresh=True)))

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Refuse further sends, flush, and disconnect. Raises RequestTimeout."""
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        self._open = False
        await _run(self._core, self._close(), timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


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

    async def run(self, handler: AsyncHandler, tasks: int = 1) -> None:
        """Await `handler(message)` for each message in `tasks` tasks, until `stop` or `close`.

        The handler's result decides as in `metaq.Consumer.run`. Cancelling this cancels the handlers, whose messages
        then stay unfinished; `stop` lets them finish.

        Raises: TypeError: the handler cannot be called with one message, or returns nothing that can be awaited.
        ClientClosed.
        """
        check_handler(handler, awaited=True)
        if tasks < 1:
            raise ConfigError(f"tasks={tasks}: need at least 1")
        self._check_open()
        workers: frozenset[asyncio.Task[None]] = frozenset()
        try:
            async with asyncio.TaskGroup() as group:
                workers = frozenset(group.create_task(self._work(handler)) for _ in range(tasks))
                self._workers |= workers
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self._workers -= workers
            if self._open:  # `close` commits by itself.
                await self.commit()

    async def _work(self, handler: AsyncHandler) -> None:
        while (message := await self._next(None)) is not None:
            await handle_async(message, handler)

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

    async def __anext__(self) -> StoredMessage:
        if (message := next(self._current, None)) is None and (message := await self._next(None)) is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: float | None = None) -> StoredMessage | None:
        """The next message; None after `timeout` seconds or at the end. Raises as iteration does."""
        self._check_open()
        return await self._next(timeout)

    async def _next(self, timeout: float | None) -> StoredMessage | None:
        if self._start is not None:
            await _run(self._core, self._begin(), CALL_SECONDS)
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

    async def seek(
        self, queue: MessageQueue | None = None, *, offset: int | None = None, time: float | dt.datetime | None = None
    ) -> None:
        """Go on at an offset or a moment, in one queue or (None) in all. Raises ConfigError, NoRoute, BrokerError."""
        self._check_open()
        await _run(self._core, self._seek(queue, offset, time), CALL_SECONDS)

    async def queues(self) -> list[MessageQueue]:
        """The queues that are read. Raises NoRoute."""
        self._check_open()
        return await _run(self._core, self._reading.queues(), CALL_SECONDS)

    async def ranges(self) -> Mapping[MessageQueue, range]:
        """What every queue holds now: [min, max) offsets. Raises NoRoute, BrokerError."""
        self._check_open()
        return await _run(self._core, self._reading.ranges(), CALL_SECONDS)

    async def close(self) -> None:
        """End all iterations and disconnect."""
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        self._open = False
        self._handover.close()
        await _run(self._core, self._close(), CALL_SECONDS)

    async def __aenter__(self) -> Self:
        """Finds the start: "latest" is the end as it is now."""
        try:
            self._check_open()
            await _run(self._core, self._begin(), CALL_SECONDS)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
