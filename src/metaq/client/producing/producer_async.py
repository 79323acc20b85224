"""`metaq.aio.Producer`: the producer of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Self

from metaq.client.producing.accumulator import BatchStream
from metaq.client.producing.arrow_sent import ArrowSent
from metaq.client.producing.atomic import EXPIRE_AFTER, TIMEOUT, outcome, settle
from metaq.client.producing.atomic_async import Atomic
from metaq.client.producing.base import CLOSE_SECONDS, REQUEST_SECONDS, ProducerBase
from metaq.client.shared.futures import SendFuture
from metaq.client.shared.messages import NO_KEYS, Selector, as_message, as_request, is_plain
from metaq.client.shared.requests import AwaitedReply, fails_with
from metaq.client.shared.values import Sent_contra
from metaq.errors import BufferFull
from metaq.model import Message, MessageQueue, SendReceipt, StoredMessage, TransactionOutcome
from metaq.model.transactions.staging import Phase


class Producer(ProducerBase[Sent_contra]):
    """`metaq.Producer` for asyncio. `submit` does not wait: its future can be awaited, and it raises BufferFull when
    `max_pending_bytes` is reached, while `await send` then waits for room (unless `when_full="raise"`)."""

    _may_block = False

    async def send(
        self,
        topic: str | Message,
        body: Sent_contra | None = None,
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
            body is not None and timeout is None
            and is_plain(keys, ordering_key, selector, queue, flag, delay_level, wait_store_ok, properties, message_id, strict)
        ):  # fmt: skip
            try:
                if len(body) < self._short:  # type: ignore[arg-type]  # no length: TypeError
                    # The fast path, as that of `submit`: the message joins the open batch. The careful path begins batches.
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

        spans = self._spans
        stamped, span = (message, None) if spans is None else spans.begin(message)

        def hand_in(stream: BatchStream) -> SendFuture:
            return self._hand_in(stamped, stream, message_id, urgent=True, timeout=timeout)

        try:
            return await (await self._handed_in(message.topic, ordering_key, selector, queue, hand_in, strict=strict))
        except BaseException as error:
            if spans is not None and span is not None:
                spans.failed(stamped, span, error)
            raise

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
            await self._calls.awaited(self._find_queues_within(self._accumulator.limits.timeout, topic, strict=strict))
        while True:
            stream = self._stream(topic, ordering_key, selector, queue, strict=strict)
            try:
                return hand_in(stream)
            except BufferFull:
                if not self._waits_when_full:
                    raise
                await self._calls.awaited(self._accumulator.room())

    async def request(
        self,
        topic: str | Message,
        body: Sent_contra | None = None,
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

        async def ask(message: Message) -> StoredMessage:
            return await self._ask(message, ordering_key, queue, seconds)

        return await (ask(message) if self._spans is None else self._spans.awaited(message, ask))

    async def _ask(
        self, message: Message, ordering_key: str | None, queue: MessageQueue | None, seconds: float
    ) -> StoredMessage:
        reply = AwaitedReply()
        work = self._calls.start(self._request(message, ordering_key, queue, seconds, reply))
        fails_with(reply, work)
        try:
            return await asyncio.wrap_future(reply)
        except BaseException:
            # The request runs in the client's own loop, where it would go on.
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

    async def send_oneway(
        self, topic: str | Message, body: Sent_contra | None = None, *, tag: str | None = None
    ) -> None:
        """Send and forget. As `metaq.Producer.send_oneway`."""
        self._check_open()
        message = as_message(topic, body, tag, serialize=self._serialize)

        async def send(message: Message) -> None:
            await self._core.thread.awaited(self._oneway(message, None), self._accumulator.limits.timeout)

        await (send(message) if self._spans is None else self._spans.awaited(message, send, ends=True))

    def atomic(self, *, timeout: float = TIMEOUT, expire_after: float = EXPIRE_AFTER) -> Atomic[Sent_contra]:
        """Several messages, all or none: `async with producer.atomic() as tx`, and `await tx.send(...)` in it.

        As `metaq.Producer.atomic`.
        """
        self._check_open()
        return Atomic(self._outlet(), timeout, expire_after)

    async def outcome(self, transaction_id: str, *, timeout: float = TIMEOUT) -> Phase:
        """Where a transaction of several messages stands. As `metaq.Producer.outcome`."""
        self._check_open()
        return await self._calls.awaited(outcome(self._courier, transaction_id, timeout))

    async def settle(self, transaction_id: str, *, commit: bool, timeout: float = TIMEOUT) -> TransactionOutcome:
        """Decide a transaction of several messages by its id. As `metaq.Producer.settle`."""
        self._check_open()
        return await self._calls.awaited(settle(self._courier, transaction_id, timeout, commit=commit))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything submitted so far has its outcome. As `metaq.Producer.flush`."""
        self._core.check_process()
        await self._core.thread.awaited(self._accumulator.flush(), timeout)
        await asyncio.to_thread(self._wait_for_callbacks, timeout)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's writable queues. As `metaq.Producer.queues`."""
        self._check_open()
        return await self._calls.awaited(self._queues(topic))

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Refuse further sends, flush, and disconnect. As `metaq.Producer.close`."""
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        self._open = False
        try:
            await self._core.thread.awaited(self._close(), timeout)
            await asyncio.to_thread(self._wait_for_callbacks, timeout)
        finally:
            self._callbacks.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
