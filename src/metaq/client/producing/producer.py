"""Producers: what users send with.

`Producer` and `metaq.aio.Producer` are the same object around the same core; they differ in how one waits. Both hand
messages to the accumulator (see there for batches, order and back-pressure).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from metaq.client.producing.arrow_sent import ArrowSent
from metaq.client.producing.atomic import EXPIRE_AFTER, TIMEOUT, Atomic, outcome, settle
from metaq.client.producing.base import CLOSE_SECONDS, REQUEST_SECONDS, ProducerBase
from metaq.client.shared.messages import NO_KEYS, Selector, as_message, as_request, is_plain
from metaq.client.shared.requests import AwaitedReply, fails_with
from metaq.client.shared.values import Sent_contra
from metaq.model import Message, MessageQueue, SendReceipt, StoredMessage, TransactionOutcome
from metaq.model.transactions.staging import Phase

if TYPE_CHECKING:
    from metaq.client.observing.spans import SendSpans


class Producer(ProducerBase[Sent_contra]):
    """Sends messages from any number of threads. Use it with `with`: leaving sends what is still waiting.

    RocketMQ's DefaultMQProducer; docs/client.md has the options by RocketMQ's names.
    """

    def send(
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
        """Send and wait for the acknowledgement. Arguments as in `submit`; `timeout` in seconds beats the producer's.

        Raises: what `submit` raises, and SendFailed, NoRoute, BrokerError: not stored, or unknown.
        """
        plain = (
            type(body) is bytes and 0 < len(body) < self._plain and timeout is None
            and is_plain(keys, ordering_key, selector, queue, flag, delay_level, wait_store_ok, properties, message_id, strict)
        )  # fmt: skip
        if plain:
            try:
                if (receipt := self._direct.plain(topic, body, tag)) is not None:  # type: ignore[arg-type]
                    return receipt
            except TypeError:  # The careful path says what is wrong.
                plain = False
        message = as_message(
            topic, body, tag, keys,
            flag=flag, delay_level=delay_level, wait_store_ok=wait_store_ok, properties=properties, serialize=self._serialize,
        )  # fmt: skip
        if self._spans is not None:
            return self._send_traced(
                self._spans, message, ordering_key, selector, queue, message_id, timeout, strict=strict
            )
        stream = self._stream(message.topic, ordering_key, selector, queue, strict=strict)
        if not plain and (receipt := self._direct.send(message, stream, message_id, timeout)) is not None:
            return receipt
        return self._hand_in(message, stream, message_id, urgent=True, timeout=timeout).result()

    def _send_traced(
        self,
        spans: SendSpans,
        message: Message,
        ordering_key: str | None,
        selector: Selector | None,
        queue: MessageQueue | None,
        message_id: str | None,
        timeout: float | None,
        *,
        strict: bool,
    ) -> SendReceipt:
        def send(message: Message) -> SendReceipt:
            stream = self._stream(message.topic, ordering_key, selector, queue, strict=strict)
            if (receipt := self._direct.send(message, stream, message_id, timeout)) is not None:
                return receipt
            return self._hand_in(message, stream, message_id, urgent=True, timeout=timeout).result()

        return spans.around_wait(message, send)

    def request(
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
        """Send a request and wait for the reply of whoever consumes it (`ReceivedMessage.reply`). Returns the reply.

        Arguments as in `submit`; `timeout`: seconds for all, the reply included, 3 by default. A request is an ordinary message: one
        that nobody replies to in time stays in its topic, and is consumed later.

        Raises: what `send` raises: the request is not stored, or unknown. RequestTimeout: no reply came. ClientClosed.
        """
        self._check_open()
        message = as_message(topic, body, tag, keys, flag=flag, properties=properties, serialize=self._serialize)
        seconds = as_request(message, timeout)
        if self._spans is None:
            return self._ask(message, ordering_key, queue, seconds)
        return self._spans.around(message, lambda stamped: self._ask(stamped, ordering_key, queue, seconds))

    def _ask(
        self, message: Message, ordering_key: str | None, queue: MessageQueue | None, seconds: float
    ) -> StoredMessage:
        if (
            self._requesting.is_known
            and not self._core.thread.current
            and (ordering_key is None or self._queues_now(message.topic, strict=False) is not None)
        ):
            stream = self._stream(message.topic, ordering_key, None, queue).apart()
            if (found := self._requesting.ask(message, stream, seconds)) is not None:
                return found
        reply = AwaitedReply()
        work = self._calls.start(self._request(message, ordering_key, queue, seconds, reply))
        fails_with(reply, work)
        return self._core.thread.outcome(reply, work)

    def send_batch(self, messages: Iterable[Message], *, queue: MessageQueue | None = None) -> list[SendReceipt]:
        """Send messages of one topic in one request, contiguous in one queue, and wait for it. Returns a receipt for each, in order.

        Raises: ConfigError: they cannot go in one request; and what `send` raises. All are stored or none is known to be.
        """
        batch = self._hand_in_batch(messages, queue)
        batch.wait(None)
        return [batch.receipt(index) for index in range(batch.count)]

    def send_arrow(self, table: Any, topic: str | None = None, *, timeout: float | None = None) -> ArrowSent:
        """Send the rows of a table as messages, and wait until all are acknowledged (docs/arrow.md).

        A row's columns are `body binary or string`, and as wanted `topic string, tag string, keys string or list<string>,
        properties map<string,string>, flag int, ordering_key string`, or `broker string` and `queue_id int`. Rows of one
        ordering key, and those that name one queue, keep their order. Bodies are not compressed.

        Returns: the number of `rows` and of `requests`, and `statuses`: `SendStatus` → rows.

        Args:
            table: a pyarrow Table, RecordBatch or RecordBatchReader, or a frame of Polars, DuckDB or pandas.
            topic: of rows that name none.
            timeout: seconds for one request, all its tries together; None: the producer's.

        Raises: ConfigError: the columns are not those of messages, or pyarrow is missing. TypeError: no table. InvalidMessage: a
                row. RowsNotSent: any fault after the first request; it says how many rows are acknowledged, and its cause.
        """
        return self._arrow_send(table, topic, timeout).run()

    def send_oneway(self, topic: str | Message, body: Sent_contra | None = None, *, tag: str | None = None) -> None:
        """Send and forget: no answer, no retry. Raises what `submit` raises; NoRoute, ConnectionFailed: it was not even sent."""
        self._check_open()
        message = as_message(topic, body, tag, serialize=self._serialize)

        def send(message: Message) -> None:
            self._core.thread.run(self._oneway(message, None), self._accumulator.limits.timeout)

        if self._spans is None:
            send(message)
        else:
            self._spans.around(message, send, ends=True)

    def atomic(self, *, timeout: float = TIMEOUT, expire_after: float = EXPIRE_AFTER) -> Atomic[Sent_contra]:
        """Several messages, for any topics and brokers, all of which are delivered, or none:

            with producer.atomic() as tx:
                tx.send("orders", b"...")
                tx.send("stock", b"...")

        Leaving the block commits, raising in it rolls back (docs/atomic.md). MetaQ's brokers have this, a RocketMQ has not.

        Args:
            timeout: seconds for a send that must wait, and for the end, all their tries together; 30 by default.
            expire_after: seconds (3600 by default) after which brokers drop what nobody has decided, at most their `stagedSecondsMax`.

        Raises: ConfigError, TypeError; ClientClosed, ClientForked. What happens under way: see `Atomic`.
        """
        self._check_open()
        return Atomic(self._outlet(), timeout, expire_after)

    def outcome(self, transaction_id: str, *, timeout: float = TIMEOUT) -> Phase:
        """Where a transaction of several messages stands, which anybody has begun: its `Atomic.id`.

        Raises: ConfigError: that is no such id. NoRoute, ConnectionFailed, RequestTimeout: the broker that the id names cannot be
        asked within `timeout` seconds. NotSupported, BrokerError, ClientClosed.
        """
        self._check_open()
        return self._calls.run(outcome(self._courier, transaction_id, timeout))

    def settle(self, transaction_id: str, *, commit: bool, timeout: float = TIMEOUT) -> TransactionOutcome:
        """Decide a transaction of several messages by its id. Returns COMMIT or ROLLBACK: the first decision, which stands.

        To commit it, it must be prepared (`Atomic.prepare`). Raises as `outcome`; BrokerError: it is not prepared.
        """
        self._check_open()
        return self._calls.run(settle(self._courier, transaction_id, timeout, commit=commit))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything submitted so far has its outcome. Raises RequestTimeout after `timeout` seconds; None: it waits
        as long as that takes."""
        self._core.check_process()
        deadline = None if timeout is None else self._core.clock.monotonic() + timeout
        self._core.thread.run(self._accumulator.flush(), timeout)
        self._wait_for_callbacks(None if deadline is None else deadline - self._core.clock.monotonic())

    def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's writable queues. Raises NoRoute, ClientClosed; ConnectionFailed: no name server, for the producer's `timeout`."""
        self._check_open()
        return self._calls.run(self._queues(topic))

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Refuse further sends, flush, and disconnect. Raises RequestTimeout: not all was sent in `timeout` (30) seconds."""
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        self._open = False
        deadline = self._core.clock.monotonic() + timeout
        try:
            self._core.thread.run(self._close(), timeout)
            self._wait_for_callbacks(deadline - self._core.clock.monotonic())
        finally:
            self._callbacks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
