"""What `metaq.Producer` and `metaq.aio.Producer` share: arguments, life, the way of a message into the accumulator."""

from __future__ import annotations

import atexit
import contextlib
import warnings
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, Unpack

from metaq.client.identity.names import checked
from metaq.client.identity.options import client_options
from metaq.client.observing.message_log import MessageLog
from metaq.client.observing.observing import ObservedArguments, Observing
from metaq.client.observing.tracing import Tracer
from metaq.client.observing.wanted import send_spans
from metaq.client.producing.accumulator import Accumulator, BatchStream, SendLimits, Stay, check_body
from metaq.client.producing.arguments import check_limits, send_rules, waits_when_full
from metaq.client.producing.atomic import Outlet
from metaq.client.producing.courier import Courier
from metaq.client.producing.direct import LARGE_BYTES, DirectSends
from metaq.client.producing.requesting import Requesting
from metaq.client.shared import cores
from metaq.client.shared.callbacks import CallbackThreads
from metaq.client.shared.futures import SendBatch, SendFuture
from metaq.client.shared.messages import (
    NO_KEYS,
    Selector,
    as_batch,
    as_message,
    chosen,
    queue_for_key,
)
from metaq.client.shared.pending import PendingCalls
from metaq.client.shared.requests import AwaitedReply
from metaq.client.shared.sending import Choose, Sender, found_within
from metaq.client.shared.serializers import Serialize, encoder_of
from metaq.client.shared.values import Sent_contra
from metaq.clock import SYSTEM, Clock
from metaq.errors import BufferFull, ClientClosed, ConfigError, MetaqError, RequestTimeout
from metaq.model import Message, MessageQueue
from metaq.model.message import BODY_BYTES_MAX, check_tag
from metaq.model.topics.system import AUTO_CREATE_TOPIC
from metaq.model.topics.topic import check_group, check_topic

if TYPE_CHECKING:
    from metaq.client.observing.spans import SendSpans
    from metaq.client.producing.arrow_sending import ArrowSend

DEFAULT_GROUP = "metaq_producer"
CLOSE_SECONDS = 30.0
REQUEST_SECONDS = 3.0
EXIT_SECONDS = 5.0
_TAGS_MAX = 1024
"""Checked and encoded tags that are remembered; a program whose tags never repeat must not fill the memory."""


class ProducerBase(Generic[Sent_contra]):
    """What the two kinds of producer share."""

    _may_block = True
    """Whether `submit` may wait for room; in an event loop it must not."""

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        group: str = DEFAULT_GROUP,
        timeout: float = 3.0,
        retries: int = 2,
        retry_another_broker_when_not_store_ok: bool = False,
        send_latency_fault_enable: bool = False,
        linger: float = 0.001,
        batch_bytes: int = 64 * 1024,
        max_pending_bytes: int = 64 * 1024 * 1024,
        when_full: str = "block",
        compress_over: int = 4096,
        max_message_bytes: int = BODY_BYTES_MAX,
        create_topic_key: str = AUTO_CREATE_TOPIC,
        default_topic_queue_nums: int = 4,
        serialize: Serialize[Sent_contra] | None = None,
        clock: Clock = SYSTEM,
        **common: Unpack[ObservedArguments],
    ) -> None:
        """
        Args:
            namesrv: name servers, `host:port`, `;`-separated; by default the environment's NAMESRV_ADDR.
            group: matters for transactions only.
            timeout: seconds for one send, all tries together.
            retries: tries after the first, each on another broker than one that failed.
            retry_another_broker_when_not_store_ok: try again also after a status other than SEND_OK, which is a result otherwise.
            send_latency_fault_enable: avoid brokers that were slow or failed, for up to ten minutes, as long as there are others.
            linger: seconds that `submit` waits for more messages to fill a batch.
            batch_bytes: bytes of bodies that make a batch full: it goes on its way at once.
            max_pending_bytes: unacknowledged bytes above which a send waits (`when_full="block"`) or raises BufferFull.
            when_full: "block" or "raise".
            compress_over: bodies of so many bytes or more are compressed and sent alone.
            max_message_bytes: largest body, 4 MiB by default; the broker has a limit of its own, `maxMessageSize`.
            create_topic_key: the topic whose settings a topic gets that is created because this producer sends to it.
            default_topic_queue_nums: queues of such a topic, at most.
            serialize: makes the bodies of what is sent: `metaq.Json(Order)`, "json", "text", a function of the value, see
                docs/serializers.md; a whole `Message` is sent as it is.
            common: what every client takes: `instance_name`, `client_ip`, `unit_name`, `unit_mode`, `namespace`,
                `poll_name_server_interval` and `heartbeat_broker_interval` (30 s each), `address_server`,
                `client_callback_executor_threads`; `access_key`, `secret_key`, `security_token`, `acl_file` (docs/client.md,
                "Access control"); `tls`, `ca`, `cert`, `key`, `key_password`, `tls_verify`, `crl` (docs/security.md); `trace`,
                `trace_topic`, `trace_rate`, `message_log`, `message_log_rate` (docs/trace.md); `metrics`
                (`metaq.ClientMetrics`), `opentelemetry` (docs/opentelemetry.md). `metaq.ClientArguments` and
                `metaq.ObservedArguments` describe each.
        Raises: ConfigError, TypeError. No connection is made until the first send.
        """
        self._open = False
        given: dict[str, Any] = dict(common)
        observing = Observing.taken_from(given)
        self._options = client_options(**given)
        self._serialize = encoder_of(serialize)
        self.group = checked(check_group, group)
        self._options.namespace.check_group(group)
        rules = send_rules(
            retries=retries,
            another_when_not_ok=retry_another_broker_when_not_store_ok,
            avoid_slow=send_latency_fault_enable,
            create_topic_key=create_topic_key,
            queues=default_topic_queue_nums,
            unit_mode=self._options.unit_mode,
        )
        self._waits_when_full = waits_when_full(when_full)
        limits = SendLimits(
            timeout=timeout,
            linger=linger,
            batch_bytes=batch_bytes,
            max_pending_bytes=max_pending_bytes,
            block_when_full=self._waits_when_full and self._may_block,
            compress_over=compress_over,
            message_bytes_max=max_message_bytes,
        )
        check_limits(limits)
        # All arguments are checked before this: nobody would release the core of a producer that was not made.
        self._core = cores.acquire(namesrv, self._options, clock)
        self._calls = PendingCalls(self._core)
        self._sender = Sender(self._core, self.group, rules)
        self._courier = Courier(self._core)
        self._callbacks = CallbackThreads(self._options.client_callback_executor_threads)
        self._accumulator = Accumulator(self._core, self._sender, limits, self._callbacks)
        self._observe(observing)
        self._requesting = Requesting(
            self._core, self._accumulator, self._sender, waits_when_full=self._waits_when_full
        )
        self._streams = self._accumulator.streams
        self._tags: dict[str | None, bytes | None] = {None: None}
        self._alone_over = min(compress_over, max_message_bytes + 1, batch_bytes // 2)
        """Size in bytes from which a message is sent in a request of its own."""
        careful = self._options.namespace or serialize is not None or self._spans is not None
        self._short = 0 if careful else self._alone_over
        """Size in bytes below which plain messages take the fast path of `submit`; 0: none does. A namespace is a property,
        so no message is plain with one, as none is that carries a trace, and what is to be serialized has no body yet."""
        self._direct = DirectSends(self._core, self._accumulator, self._sender, self.group)
        self._plain = 0 if self._accumulator.observers else min(self._short, compress_over, LARGE_BYTES)
        """Size in bytes below which plain messages take the fast path of `send`."""
        # On the loop, which owns the table of groups; the next heartbeat has the group.
        self._core.thread.post(self._core.add_producer, self.group)
        self._open = True
        _open_producers.add(self)

    def _observe(self, observing: Observing) -> None:
        """Start the tracer and the message log, if they are wanted."""
        self._tracer = Tracer.of(self._core, self.group, observing, role="PRODUCE")
        self._spans = send_spans(observing, self._core, self.group)
        direct = self._tracer, MessageLog.of(self._core, self.group, observing), observing.meter(self.group)
        watchers = *direct, self._spans
        self._accumulator.observers = tuple(one for one in watchers if one is not None)
        self._accumulator.direct_observers = tuple(one for one in direct if one is not None)
        for observer in self._accumulator.observers:
            self._core.thread.post(observer.start)

    def submit(
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
        strict: bool = False,
    ) -> SendFuture:
        """Send without waiting: the message joins a batch, the future gets its receipt.

        Args:
            topic: the topic's name with `body`, or a whole `Message`.
            ordering_key: messages with one key go to one queue, in order.
            selector: a function that picks the queue out of the list of writable ones.
            queue: that very queue.
            delay_level: 1..18, deliver after that one of the broker's delays.
            message_id: the id of an earlier, failed send of this message, so that consumers can tell the two are one.
            strict: of an ordering key, whose queue is one of the topic's fixed list (`metaq topic order`): while its
                broker is down the send fails and is never moved, and a status other than SEND_OK is a reason to try
                again. The rest as in `Message`.

        Raises: TypeError: a body that is not bytes, a bytearray or a contiguous memoryview, or another value of a wrong
                type. InvalidMessage: a value that cannot be sent. ConfigError: a name that no topic can have.
                BufferFull, ClientClosed, ClientForked. What happens under way is raised by the future.
        """
        try:
            if (
                ordering_key is None and properties is None and selector is None and queue is None
                and message_id is None and keys is NO_KEYS and not (flag or delay_level or strict) and wait_store_ok is True
                and body is not None and len(body) < self._short  # type: ignore[arg-type]  # no length: TypeError
            ):  # fmt: skip
                # The fast path, about a microsecond: `is_plain` written out, since calling it would cost 8 % of that. Whatever
                # is unusual falls through to the careful path, which knows what is wrong and what to do.
                batch = self._streams[topic].batch  # type: ignore[index]
                if (index := batch.add_message(body, self._tags[tag], None)) >= 0:
                    future = SendFuture()
                    future._batch, future._index = batch, index  # noqa: SLF001  `future_of`, without a call
                    return future
        except (KeyError, TypeError):
            pass
        message = as_message(
            topic, body, tag, keys,
            flag=flag, delay_level=delay_level, wait_store_ok=wait_store_ok, properties=properties, serialize=self._serialize,
        )  # fmt: skip
        if self._spans is not None:
            return self._submit_traced(self._spans, message, ordering_key, selector, queue, message_id, strict=strict)
        stream = self._stream(message.topic, ordering_key, selector, queue, strict=strict)
        return self._hand_in(message, stream, message_id)

    def _submit_traced(
        self,
        spans: SendSpans,
        message: Message,
        ordering_key: str | None,
        selector: Selector | None,
        queue: MessageQueue | None,
        message_id: str | None,
        *,
        strict: bool,
    ) -> SendFuture:
        # Not in `submit`: what a function within it takes is slower there, also on its fast path.
        def hand_in(message: Message) -> SendFuture:
            stream = self._stream(message.topic, ordering_key, selector, queue, strict=strict)
            return self._hand_in(message, stream, message_id)

        return spans.around(message, hand_in)

    def _hand_in(
        self,
        message: Message,
        stream: BatchStream,
        message_id: str | None,
        *,
        urgent: bool = False,
        timeout: float | None = None,
    ) -> SendFuture:
        """Give a message to the accumulator: into the stream's batch, or alone if no batch can carry it."""
        alone = (
            # RocketMQ allows no delay in a batch, and one WAIT for all of it; id and time-out are for this message alone.
            message.delay_level or not message.wait_store_ok or message_id is not None or timeout is not None
            or len(message.body) >= self._alone_over
        )  # fmt: skip
        if alone:
            return self._accumulator.send_alone(message, stream, message_id, timeout)
        check_body(message.body, self._accumulator.limits.message_bytes_max)
        namespace = self._core.namespace.name
        # With properties of its own, the text is built here; the common case below is built by the compiled extension.
        if message.flag or message.properties or namespace:
            text = message.property_text(None, namespace).encode()
            if len(text) >= self._alone_over:
                return self._accumulator.send_alone(message, stream, message_id, timeout)
            return self._accumulator.append(
                stream, lambda batch: batch.add(message.flag, message.body, text), urgent=urgent
            )
        tag_bytes = self._tag_bytes(message.tag)
        key_bytes = " ".join(message.keys).encode() if message.keys else None
        if len(key_bytes or b"") + len(tag_bytes or b"") >= self._alone_over:
            return self._accumulator.send_alone(message, stream, message_id, timeout)
        return self._accumulator.append(
            stream, lambda batch: batch.add_message(message.body, tag_bytes, key_bytes), urgent=urgent
        )

    def _hand_in_batch(self, messages: Iterable[Message], queue: MessageQueue | None) -> SendBatch:
        batch = as_batch(messages)
        if self._spans is not None:
            return self._spans.batch(batch, lambda stamped: self._send_whole(stamped, queue))
        return self._send_whole(batch, queue)

    def _send_whole(self, batch: list[Message], queue: MessageQueue | None) -> SendBatch:
        texts = [message.property_text(None, self._core.namespace.name).encode() for message in batch]
        stream = self._stream(batch[0].topic, None, None, queue)
        return self._accumulator.send_whole(
            stream, [(message.flag, message.body, text) for message, text in zip(batch, texts, strict=True)]
        )

    def _stream(
        self,
        topic: str,
        ordering_key: str | None,
        selector: Selector | None,
        queue: MessageQueue | None,
        *,
        strict: bool = False,
    ) -> BatchStream:
        if strict and (ordering_key is None or selector is not None or queue is not None):
            raise ConfigError("strict=True is for an ordering_key: a queue or selector is never exchanged anyway")
        if ordering_key is None and selector is None and queue is None:
            return self._streams.get(topic) or self._accumulator.stream(checked(check_topic, topic))
        if queue is not None:
            if not isinstance(queue, MessageQueue):
                raise TypeError(f"queue is {queue!r}: pass a MessageQueue, for example one of producer.queues(topic)")
            if queue.topic != topic:
                raise ConfigError(f"the queue {queue} is not one of topic {topic}")
            return self._accumulator.ordered_stream(queue, Stay.FIXED)
        if ordering_key is not None and not isinstance(ordering_key, str):
            raise TypeError(f"ordering_key is {ordering_key!r}: pass text, str({ordering_key!r})")
        queues = self._queues_now(checked(check_topic, topic), strict=strict)
        if queues is None:
            self._check_open()
            # A callback of the client: its thread has to find the route.
            if self._core.thread.current:
                raise BufferFull(f"the route of topic {topic} is not known yet, and this thread cannot wait for it")
            seconds = self._accumulator.limits.timeout
            queues = self._calls.run(self._find_queues_within(seconds, topic, strict=strict), seconds)
        if selector is not None:
            return self._stream(topic, None, None, chosen(selector, queues))
        assert ordering_key is not None
        stay = Stay.STRICT if strict else Stay.MAY_MOVE
        return self._accumulator.ordered_stream(queue_for_key(ordering_key, queues), stay)

    def _queues_now(self, topic: str, *, strict: bool) -> list[MessageQueue] | None:
        """The queues that a key is hashed over, if they are known: all of a strictly ordered topic, else those that are up."""
        routes = self._core.routes
        return routes.fixed_queues_now(topic) if strict else routes.publish_queues_now(topic)

    async def _queues(self, topic: str) -> list[MessageQueue]:
        return list(await self._find_queues_within(self._accumulator.limits.timeout, topic, fresh=True))

    async def _find_queues(self, topic: str, *, strict: bool = False, fresh: bool = False) -> list[MessageQueue]:
        """In the loop: the same, asked for. Raises NoRoute, ConfigError: the topic has no fixed list of queues."""
        if strict:
            return await self._core.routes.fixed_queues(topic)
        return await self._core.routes.publish_queues(topic, fresh=fresh, template=self._sender.rules.template)

    async def _find_queues_within(
        self, seconds: float, topic: str, *, strict: bool = False, fresh: bool = False
    ) -> list[MessageQueue]:
        """As `_find_queues`, again and again while no name server can be reached."""
        return await found_within(seconds, lambda: self._find_queues(topic, strict=strict, fresh=fresh))

    def _outlet(self) -> Outlet:
        async def find_queues(topic: str, strict: bool) -> list[MessageQueue]:
            # What is staged makes topics as the broker does, whatever this producer's own template is.
            routes = self._core.routes
            return await (routes.fixed_queues(topic) if strict else routes.publish_queues(topic))

        return Outlet(
            core=self._core,
            courier=self._courier,
            message_bytes_max=self._accumulator.limits.message_bytes_max,
            serialize=self._serialize,
            check_open=self._check_open,
            queues_now=lambda topic, strict: self._queues_now(topic, strict=strict),
            find_queues=find_queues,
            turn=self._sender.rotation.next,
        )

    def _arrow_send(self, table: Any, topic: str | None, timeout: float | None) -> ArrowSend:
        self._check_open()
        try:
            from metaq.client.producing import arrow_sending
        except ImportError as error:
            raise ConfigError(f"send_arrow needs pyarrow: pip install 'pymetaq[arrow]' ({error})") from None

        def queues(name: str) -> list[MessageQueue]:
            known = self._queues_now(name, strict=False)
            if known:
                return known
            seconds = timeout or self._accumulator.limits.timeout
            return self._calls.run(self._find_queues_within(seconds, name), seconds)

        def wait_for_room() -> None:
            self._calls.run(self._accumulator.room())

        if self._serialize is not None:
            raise ConfigError(
                "send_arrow sends the column body as it is, and this producer has serialize=: use another one"
            )
        outlet = arrow_sending.RowOutlet(
            self._accumulator, self._core.namespace.name, self._check_open, queues,
            wait_for_room if self._waits_when_full else None,
        )  # fmt: skip
        return arrow_sending.ArrowSend(outlet, table, topic, timeout)

    def _tag_bytes(self, tag: str | None) -> bytes | None:
        if tag not in self._tags:
            # A program whose tags never repeat must not fill the memory.
            if len(self._tags) > _TAGS_MAX:
                self._tags = {None: None}
            assert tag is not None
            self._tags[tag] = check_tag(tag).encode()
        return self._tags[tag]

    async def _request(
        self,
        message: Message,
        ordering_key: str | None,
        queue: MessageQueue | None,
        timeout: float,
        reply: AwaitedReply,
    ) -> None:
        """In the loop: send a request and wait for its reply."""

        async def find_stream() -> BatchStream:
            # `_stream` would wait for the route, which must not be done in the loop.
            if ordering_key is not None and self._queues_now(message.topic, strict=False) is None:
                await self._find_queues_within(timeout, message.topic)
            return self._stream(message.topic, ordering_key, None, queue).apart()

        await self._requesting.request(message, find_stream, timeout, reply)

    async def _oneway(self, message: Message, choose: Choose | None) -> None:
        prefix = self._core.id_prefixes.next().decode()
        outgoing = self._accumulator.outgoing(message, f"{prefix}0000")
        if self._queues_now(message.topic, strict=False) is None:
            await self._find_queues_within(self._accumulator.limits.timeout, message.topic)
        await self._sender.send_oneway(outgoing, self._accumulator.limits.timeout, choose)

    async def _close(self) -> None:
        """In the loop: flush, leave the group, release the core."""
        # First, so that the flush has an end.
        self._accumulator.close()
        self._calls.end("the producer was closed")
        self._core.remove_requester(self._sender)
        try:
            await self._accumulator.flush()
            # After the flush, whose sends they observe, too.
            for observer in self._accumulator.observers:
                await observer.close()
        finally:
            # Only with the group's last producer in this client: brokers know clients and groups, not producers.
            if self._core.remove_producer(self.group):
                await self._core.leave(producer_group=self.group)
            await cores.release(self._core, self._options)

    def _wait_for_callbacks(self, timeout: float | None) -> None:
        """Until the functions have returned that sends which are done have called. Raises RequestTimeout."""
        if not self._callbacks.wait(timeout):
            raise RequestTimeout("functions of add_done_callback are still running")

    def _check_open(self) -> None:
        """Raises ClientForked, ClientClosed."""
        self._core.check_process()
        if not self._open:
            raise ClientClosed("the producer was closed")

    def _forgotten(self) -> None:
        """Nobody closed us: warn, and send what is waiting."""
        self._open = False
        warnings.warn(
            f"{type(self).__name__} was not closed: use `with`, or call close(), to be sure that everything is sent",
            ResourceWarning,
            stacklevel=3,
            source=self,
        )

    def __del__(self) -> None:
        if getattr(self, "_open", False) and self._core.in_own_process:
            self._forgotten()
            callbacks = self._callbacks
            # Without waiting: the garbage collector runs this in any thread, the loop's own included.
            self._core.thread.start(self._close()).add_done_callback(lambda _: callbacks.close())

    def __repr__(self) -> str:
        if not hasattr(self, "_core"):
            return f"<{type(self).__name__}, not made>"
        return f"<{type(self).__name__} at {self._core.name_servers}: {'open' if self._open else 'closed'}>"


_open_producers: weakref.WeakSet[ProducerBase] = weakref.WeakSet()


@atexit.register
def _flush_forgotten() -> None:
    """The loop is a daemon thread: what it has not sent when the interpreter ends would be lost without a word."""
    for producer in list(_open_producers):
        if producer._open and producer._core.in_own_process:  # noqa: SLF001  the module's own class
            producer._forgotten()  # noqa: SLF001  the module's own class
            with contextlib.suppress(MetaqError):
                producer._core.thread.run(producer._close(), EXIT_SECONDS)  # noqa: SLF001  the module's own class
                producer._callbacks.wait(EXIT_SECONDS)  # noqa: SLF001  the module's own class
