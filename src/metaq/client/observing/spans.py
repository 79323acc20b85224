"""OpenTelemetry spans of sends and deliveries (docs/opentelemetry.md), by its semantic conventions for messaging and RocketMQ.

A send is a span of kind PRODUCER, whose context the message carries; a batch has one for each message (`create`) and one for the
request. A delivery is a span of kind CONSUMER: a child of the message's creation context, unless the program that takes the message has
a span of its own, and linked to it in any case. Loaded only by clients that were made with `opentelemetry=`.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from opentelemetry import context, trace
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

import metaq
from metaq.client.conversation.sending.sending import Outgoing
from metaq.client.observing.observing import Sends, SentMessage
from metaq.client.shared.core import ClientCore
from metaq.client.shared.futures import SendBatch, SendFuture
from metaq.errors import MetaqError
from metaq.model import Message, MessageQueue, SendReceipt, StoredMessage, TransactionOutcome
from metaq.model import properties as props
from metaq.model.clients import MessageModel
from metaq.model.properties import PROPERTIES_BYTES_MAX
from metaq.model.trace import Result
from metaq.model.trace_context import STATE_CHARS_MAX, TRACEPARENT, TRACESTATE, SpanProvider, trace_parent_of

SYSTEM: Final = "rocketmq"
LINKS_MAX: Final = 128
"""Links of a span, as many as the SDK keeps by default."""
HALVES_MAX: Final = 10_000
"""Transactions whose end is awaited, at most: of older ones the end has no link."""
_RESERVE: Final = 1024
"""Bytes that a context may take of a message's properties, and others that brokers add."""
_NOTHING: Final = ""
_OTHER: Final = "_OTHER"
_OUTCOMES: Final = {
    TransactionOutcome.COMMIT: "commit",
    TransactionOutcome.ROLLBACK: "rollback",
    TransactionOutcome.UNKNOWN: "unknown",
}

R = TypeVar("R")
Attributes = dict[str, Any]


class _Spans:
    """What spans of producers and consumers have in common."""

    def __init__(self, core: ClientCore, group: str, provider: SpanProvider | None) -> None:
        self._core, self._group = core, group
        made = provider or trace.get_tracer_provider()
        self._tracer: trace.Tracer = made.get_tracer("metaq", metaq.__version__)
        self._common: Attributes = {"messaging.system": SYSTEM, "messaging.client.id": core.client_id}
        if core.namespace.name:
            self._common["messaging.rocketmq.namespace"] = core.namespace.name

    def _attributes(self, operation: str, kind: str, topic: str) -> Attributes:
        return {
            **self._common,
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
            "messaging.destination.name": topic,
        }


class SendSpans(_Spans):
    """Of one producer. A `metaq.client.observing.observing.SendObserver`; `around` and `batch` in any thread."""

    def __init__(self, core: ClientCore, group: str, provider: SpanProvider | None) -> None:
        super().__init__(core, group, provider)
        self._open: dict[str, Span] = {}
        """`traceparent` of each message that has no outcome yet → its span, if that is recorded."""
        self._batches: dict[str, Span] = {}
        """The same of the first message of a batch → the span of its request."""
        self._halves: OrderedDict[str, SpanContext] = OrderedDict()
        """Id of a half message → its context."""
        self._lock = threading.Lock()

    def start(self) -> None:
        """Nothing has to be done."""

    async def close(self) -> None:
        """End the spans of what has no outcome: nobody will tell it any more."""
        for text in (*self._open, *self._batches):
            self._end(text, "metaq.errors.ClientClosed", "the producer was closed")

    # -------------------------------------------------------------- sends

    def around(self, message: Message, send: Callable[[Message], R], *, ends: bool = False) -> R:
        """Send a message within a span of its own, which ends with the message's outcome.

        Args:
            send: sends the message that carries the context.
            ends: it ends with `send`: there is no outcome.
        """
        stamped, span = self.begin(message)
        try:
            done = send(stamped)
        except BaseException as error:
            self.failed(stamped, span, error)
            raise
        if ends:
            self._forget(stamped)
            span.end()
        return done

    def around_wait(self, message: Message, send: Callable[[Message], SendReceipt]) -> SendReceipt:
        """As `around`, for a caller that waits for the outcome: it ends the span by itself."""
        stamped, span = self.begin(message)
        try:
            receipt = send(stamped)
        except BaseException as error:
            self.failed(stamped, span, error)
            raise
        if self._forget(stamped) is not None:  # else it was told already
            span.set_attribute("messaging.message.id", receipt.message_id)
            self._stored(span, receipt.queue)
            span.end()
        return receipt

    async def awaited(self, message: Message, send: Callable[[Message], Awaitable[R]], *, ends: bool = False) -> R:
        """As `around`, for a coroutine."""
        stamped, span = self.begin(message)
        try:
            done = await send(stamped)
        except BaseException as error:
            self.failed(stamped, span, error)
            raise
        if ends:
            self._forget(stamped)
            span.end()
        return done

    def begin(self, message: Message) -> tuple[Message, Span]:
        """Begin the span of a send. Returns the message that carries its context. `sent` ends it, or `failed`."""
        attributes = self._attributes("send", "send", message.topic) | _of_message(message)
        custom = creation_context(message.properties)
        if custom is not None:
            # The program has given the message a context: that stays, and this span is only of the request.
            span = self._tracer.start_span(
                f"send {message.topic}", kind=SpanKind.CLIENT, attributes=attributes, links=[Link(custom)]
            )
            return message, self._noted(message, span)
        span = self._tracer.start_span(f"send {message.topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        stamped = _carrying(message, span.get_span_context())
        return stamped, self._noted(stamped, span)

    def _noted(self, message: Message, span: Span) -> Span:
        text = message.properties.get(TRACEPARENT)
        if span.is_recording() and text is not None:
            with self._lock:
                replaced = self._open.pop(text, None)
                self._open[text] = span
            if replaced is not None:  # one context in several messages: which is which cannot be known
                replaced.end()
        elif span.is_recording():  # no room for a context: nothing of it comes back
            span.end()
        return span

    def failed(self, message: Message, span: Span, error: BaseException) -> None:
        """The message was not even handed in, or its caller was told of its failure."""
        self._forget(message)
        if span.is_recording():
            _fail(span, _kind_of(error), str(error))
            span.end()

    def _forget(self, message: Message) -> Span | None:
        return self._open.pop(message.properties.get(TRACEPARENT, _NOTHING), None)

    def batch(self, messages: Sequence[Message], send: Callable[[list[Message]], SendBatch]) -> SendBatch:
        """Send a batch: a span for each message, which its consumers find, and one for the request.

        `end_batch` ends that.
        """
        stamped = [self._created(message) for message in messages]
        attributes = self._attributes("send", "send", messages[0].topic)
        attributes["messaging.batch.message_count"] = len(messages)
        links = [Link(one) for message in stamped[:LINKS_MAX] if (one := creation_context(message.properties))]
        span = self._tracer.start_span(
            f"send {messages[0].topic}", kind=SpanKind.CLIENT, attributes=attributes, links=links
        )
        try:
            batch = send(stamped)
        except BaseException as error:
            _fail(span, _kind_of(error), str(error))
            span.end()
            raise
        if span.is_recording():
            first = stamped[0].properties.get(TRACEPARENT)
            if first is None:
                span.end()
            else:
                self._batches[first] = span
        return batch

    def _created(self, message: Message) -> Message:
        if creation_context(message.properties) is not None:
            return message
        attributes = self._attributes("create", "create", message.topic) | _of_message(message)
        span = self._tracer.start_span(f"create {message.topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        stamped = _carrying(message, span.get_span_context())
        span.end()
        return stamped

    # -------------------------------------------------------------- outcomes, in the loop

    def wants(self, outgoing: Outgoing, batch: SendBatch) -> bool:  # noqa: ARG002  a `SendObserver`
        return bool(self._open or self._batches)

    def sent(self, sends: Sends) -> None:
        """End the spans of the messages of a request."""
        for one in sends.each(max(1, sends.count)):
            text = one.properties.get(TRACEPARENT, _NOTHING)
            if (span := self._open.pop(text, None)) is not None:
                span.set_attribute("messaging.message.id", one.message_id)
                self._ended(span, sends, one)
            if (span := self._batches.pop(text, None)) is not None:
                self._ended(span, sends, one)

    def _ended(self, span: Span, sends: Sends, one: SentMessage) -> None:
        if one.error is not None:
            _fail(span, _kind_of(one.error), str(one.error))
        else:
            self._stored(span, sends.batch.receipt(one.place).queue)
        span.end()

    def _stored(self, span: Span, queue: MessageQueue) -> None:
        span.set_attribute("messaging.destination.partition.id", f"{queue.broker}:{queue.queue_id}")
        if (address := self._core.address_of(queue.broker)) is not None:
            host, _, port = address.rpartition(":")
            span.set_attributes({"server.address": host, "server.port": int(port)})

    def _end(self, text: str, kind: str, why: str) -> None:
        span = self._open.pop(text, None) or self._batches.pop(text, None)
        if span is not None:
            _fail(span, kind, why)
            span.end()

    # -------------------------------------------------------------- transactions

    def around_half(self, message: Message, send: Callable[[Message], SendFuture]) -> SendFuture:
        """As `around`, for a half message: the end of its transaction is to be linked to it."""

        def noting(stamped: Message) -> SendFuture:
            future = send(stamped)
            if (found := creation_context(stamped.properties)) is not None:
                with self._lock:
                    self._halves[future.message_id] = found
                    if len(self._halves) > HALVES_MAX:
                        self._halves.popitem(last=False)
            return future

        return self.around(message, noting)

    def ending(self, topic: str, message_id: str, outcome: TransactionOutcome) -> Span:
        """Begin the span of a transaction's end, which `told` ends."""
        operation = _OUTCOMES[outcome]
        with self._lock:
            half = self._halves.pop(message_id, None)
        return self._tracer.start_span(
            f"{operation} {topic}",
            context=trace.set_span_in_context(NonRecordingSpan(half)) if half is not None else None,
            kind=SpanKind.CLIENT,
            attributes=self._attributes(operation, "settle", topic) | {"messaging.message.id": message_id},
            links=[Link(half)] if half is not None else None,
        )

    def told(self, span: Span, why: str) -> None:
        """The broker was told of the end; or not, and `why`."""
        if why:
            _fail(span, _OTHER, why)
        span.end()


class DeliverySpans(_Spans):
    """Of one consumer. A `metaq.client.observing.observing.DeliveryObserver`."""

    def __init__(
        self, core: ClientCore, group: str, provider: SpanProvider | None, model: MessageModel | None = None
    ) -> None:
        super().__init__(core, group, provider)
        self._common["messaging.consumer.group.name"] = group
        if model is not None:
            self._common["messaging.rocketmq.consumption_model"] = model.name.lower()

    def start(self) -> None:
        """Nothing has to be done."""

    async def close(self) -> None:
        """Nothing has to be done: each delivery ends by itself."""

    def begun(self, message: StoredMessage) -> object:
        """Begin a span, and make it the current one of whoever takes the message, unless that has several in hand."""
        outer = _Current.outer()
        created = creation_context(message.properties)
        base = outer
        if created is not None and not trace.get_current_span(outer).get_span_context().is_valid:
            base = trace.set_span_in_context(NonRecordingSpan(created), outer)
        span = self._tracer.start_span(
            f"process {message.topic}",
            context=base,
            kind=SpanKind.CONSUMER,
            attributes=self._attributes("process", "process", message.topic) | _of_stored(message),
            links=[Link(created)] if created is not None else None,
        )
        return _Current(span, outer)

    def ended(self, message: StoredMessage, begun: object, result: Result, cost_ms: int) -> None:  # noqa: ARG002
        if isinstance(begun, _Current):
            if result is not Result.SUCCESS:
                _fail(begun.span, result.name.lower(), "it is delivered again, or becomes a dead letter")
            begun.end()

    def received(self, messages: Sequence[StoredMessage]) -> None:
        """Note what a program has asked for: nobody tells when it is done with it."""
        if not messages:
            return
        topic = messages[0].topic
        links = [Link(one) for message in messages[:LINKS_MAX] if (one := creation_context(message.properties))]
        attributes = self._attributes("receive", "receive", topic)
        attributes["messaging.batch.message_count"] = len(messages)
        if len(messages) == 1:
            attributes |= _of_stored(messages[0])
        self._tracer.start_span(f"receive {topic}", kind=SpanKind.CLIENT, attributes=attributes, links=links).end()


class _Current:
    """A span of a delivery that is under way, current in the thread or task that has taken the message.

    Who takes another message before it is done with this one has several in hand, and none of them is the current one then.
    """

    __slots__ = ("_is_over", "_outer", "_within", "span")

    _KEY: Final = context.create_key("metaq.delivery")

    def __init__(self, span: Span, outer: context.Context) -> None:
        self.span, self._outer = span, outer
        self._is_over = False
        before = context.get_value(self._KEY)
        alone = not isinstance(before, _Current) or before._is_over  # noqa: SLF001  one that another thread has settled
        self._within = context.set_value(self._KEY, self, trace.set_span_in_context(span, outer)) if alone else None
        if self._within is not None:
            context.attach(self._within)
        else:
            context.attach(outer)

    @classmethod
    def outer(cls) -> context.Context:
        """Return the present context without a delivery of ours."""
        current = context.get_value(cls._KEY)
        return current._outer if isinstance(current, cls) else context.get_current()  # noqa: SLF001  its own

    def carried_by(self, properties: dict[str, str] | None) -> dict[str, str] | None:
        """Return the properties of a reply: it was made in this delivery, unless its maker says otherwise."""
        own = properties or {}
        created = self.span.get_span_context()
        if not created.is_valid or creation_context(own) is not None:
            return properties
        carrying = dict(own)
        inject(carrying, created)
        return carrying

    def end(self) -> None:
        """End the span. By a token of `attach` another thread could not: a message may be settled anywhere."""
        self._is_over = True
        if self._within is not None and context.get_current() is self._within:
            context.attach(self._outer)
        self.span.end()


def creation_context(properties: dict[str, str]) -> SpanContext | None:
    """Return the context in which a message was created; None: it carries none."""
    found = trace_parent_of(properties)
    if found is None:
        return None
    state = TraceState.from_header([found.state]) if found.state else None
    return SpanContext(
        found.trace_id, found.span_id, is_remote=True, trace_flags=TraceFlags(found.flags), trace_state=state
    )


def inject(properties: dict[str, str], created: SpanContext) -> None:
    """Put a context into properties."""
    properties[TRACEPARENT] = f"00-{created.trace_id:032x}-{created.span_id:016x}-{int(created.trace_flags):02x}"
    properties.pop(TRACESTATE, None)
    state = created.trace_state.to_header()
    if state and len(state) <= STATE_CHARS_MAX:
        properties[TRACESTATE] = state


def _carrying(message: Message, created: SpanContext) -> Message:
    """Return the message with a context; itself if there is none, or no room for it."""
    if not created.is_valid:
        return message
    own = message.properties
    if own or message.keys:
        size = sum(len(name) + len(value) + 2 for name, value in own.items()) + sum(map(len, message.keys))
        # A character has at most 4 bytes.
        if size * 4 > PROPERTIES_BYTES_MAX - _RESERVE:
            return message
    properties = dict(own)
    inject(properties, created)
    return dataclasses.replace(message, properties=properties)


def _of_message(message: Message) -> Attributes:
    found: Attributes = {"messaging.message.body.size": len(message.body)}
    if message.tag is not None:
        found["messaging.rocketmq.message.tag"] = message.tag
    if message.keys:
        found["messaging.rocketmq.message.keys"] = message.keys
    if message.delay_level:
        found["messaging.rocketmq.message.type"] = "delay"
        found["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    return found


def _of_stored(message: StoredMessage) -> Attributes:
    properties = message.properties
    found: Attributes = {
        "messaging.message.id": message.message_id,
        "messaging.message.body.size": len(message.body),
        "messaging.destination.partition.id": f"{message.broker}:{message.queue_id}",
    }
    if tag := properties.get(props.TAGS):
        found["messaging.rocketmq.message.tag"] = tag
    if keys := properties.get(props.KEYS):
        found["messaging.rocketmq.message.keys"] = tuple(keys.split())
    if message.reconsume_times:
        found["metaq.message.reconsume_times"] = message.reconsume_times
    return found


def _kind_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__name__ if isinstance(error, MetaqError) else f"{kind.__module__}.{kind.__qualname__}"


def _fail(span: Span, kind: str, why: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, why))
