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
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from metaq.client.consumer.consumer import CLOSE_SECONDS, ConsumerBase, settle_by_result
from metaq.client.consumer.outcome import Later, Reject
from metaq.client.consumer.received import ReceivedMessage
from metaq.client.core import ClientCore
from metaq.client.producer import NO_KEYS, Body, ProducerBase, Selector, as_message
from metaq.client.reader import CALL_SECONDS, ReaderBase
from metaq.errors import BufferFull, ConfigError, RequestTimeout
from metaq.model import Message, MessageQueue, SendReceipt, StoredMessage

__all__ = ["Consumer", "Later", "Producer", "Reader", "Reject"]

log = logging.getLogger("metaq.client")

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
        message = as_message(topic, body, tag, keys, flag, delay_level, wait_store_ok, properties)
        routes = self._core.routes
        if (ordering_key is not None or selector is not None) and routes.publish_queues_now(message.topic) is None:
            self._core.check_process()
            await _run(self._core, routes.publish_queues(message.topic))
        while True:
            lane = self._lane(message.topic, ordering_key, selector, queue)
            try:
                future = self._hand_in(message, lane, message_id, urgent=True, timeout=timeout)
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
        message = as_message(topic, body, tag)
        await _run(self._core, self._oneway(message, None), self._accumulator.limits.timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything submitted so far has its outcome. Raises RequestTimeout."""
        self._core.check_process()
        await _run(self._core, self._accumulator.flush(), timeout)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's writable queues. Raises NoRoute."""
        self._core.check_process()
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
    """`metaq.Consumer` for asyncio."""

    def __aiter__(self) -> Self:
        """Messages as they come, until `stop` or `close`. Each must be finished: use `async with message:`."""
        return self

    async def __anext__(self) -> ReceivedMessage:
        if (message := next(self._current, None)) is None and (message := await self.receive()) is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: float | None = None) -> ReceivedMessage | None:
        """The next message; None after `timeout` seconds, or once stopped. Safe from many tasks of one loop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while (message := next(self._current, None)) is None:
                    chunk = await self._handover.take_async()
                    if chunk is None:
                        return None
                    # Another task may have begun a chunk while this one waited: none of either may be lost.
                    self._current = _chain(self._current, self._of(chunk))
                return message
        return None

    async def run(self, handler: Callable[[ReceivedMessage], Awaitable[object]], tasks: int = 1) -> None:
        """Await `handler(message)` for each message in `tasks` tasks, until `stop` or SIGTERM.

        The handler's result decides as in `metaq.Consumer.run`. Cancelling this cancels the handlers, whose messages
        then stay unfinished.
        """
        if tasks < 1:
            raise ConfigError(f"tasks={tasks}: need at least 1")
        with self._drain_on_sigterm():
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(tasks):
                        group.create_task(self._work(handler))
            finally:
                await self.commit()

    async def _work(self, handler: Callable[[ReceivedMessage], Awaitable[object]]) -> None:
        while (message := await self.receive()) is not None:
            try:
                result = await handler(message)
            except BaseException as error:
                if not message.settle(error):
                    raise
            else:
                settle_by_result(message, result)

    @contextlib.contextmanager
    def _drain_on_sigterm(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handled = threading.current_thread() is threading.main_thread()
        if handled:
            try:
                loop.add_signal_handler(signal.SIGTERM, self.stop)
            except NotImplementedError:  # Windows
                handled = False
        try:
            yield
        finally:
            if handled:
                loop.remove_signal_handler(signal.SIGTERM)

    async def commit(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Keep the progress now. Raises RequestTimeout."""
        self._core.check_process()
        await _run(self._core, self._member.persist(), timeout)

    async def wait_assigned(self, timeout: float | None = None) -> None:
        """Wait until the group has given this member its queues for the first time. Raises RequestTimeout."""
        self._core.check_process()
        await _run(self._core, self._assigned(), timeout)

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Stop, commit what is finished, leave the group, disconnect. Raises RequestTimeout."""
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        self._open = False
        self.stop()
        await _run(self._core, self._close(), timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Reader(ReaderBase):
    """`metaq.Reader` for asyncio."""

    def __aiter__(self) -> Self:
        """Messages as they come; with `stop_at_end` until there are no more. Raises as `metaq.Reader`'s iteration."""
        return self

    async def __anext__(self) -> StoredMessage:
        if (message := next(self._current, None)) is None and (message := await self.receive()) is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: float | None = None) -> StoredMessage | None:
        """The next message; None after `timeout` seconds or at the end. Raises as iteration does."""
        if self._start is not None:
            self._core.check_process()
            await _run(self._core, self._begin(), CALL_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while (message := next(self._current, None)) is None:
                    chunk = await self._handover.take_async()
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
        self._core.check_process()
        await _run(self._core, self._seek(queue, offset, time), CALL_SECONDS)

    async def queues(self) -> list[MessageQueue]:
        """The queues that are read. Raises NoRoute."""
        self._core.check_process()
        return await _run(self._core, self._reading.queues(), CALL_SECONDS)

    async def ranges(self) -> Mapping[MessageQueue, range]:
        """What every queue holds now: [min, max) offsets. Raises NoRoute, BrokerError."""
        self._core.check_process()
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
            self._core.check_process()
            await _run(self._core, self._begin(), CALL_SECONDS)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _chain(*parts: Iterator[ReceivedMessage]) -> Iterator[ReceivedMessage]:
    for part in parts:
        yield from part
