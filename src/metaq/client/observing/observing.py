"""Observers of sends and deliveries: tracers (`metaq.client.observing.tracing`) and the message log (`message_log`).

There are none unless a client was made with `trace=True`, `message_log=True` or `metrics=…`: then they get sends by the request, in the
background loop, when their outcome is known; deliveries one by one, in whichever thread they begin and end.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from msgspec import Struct

from metaq.client.conversation.sending.sending import Outgoing
from metaq.client.identity.names import checked
from metaq.client.identity.options import ClientArguments, check_flag, check_whole
from metaq.client.shared.futures import SendBatch
from metaq.errors import ConfigError
from metaq.model import StoredMessage
from metaq.model import properties as props
from metaq.model.topics.system import TRACE_TOPIC
from metaq.model.topics.topic import check_topic
from metaq.model.trace import Result
from metaq.model.trace_context import SpanProvider
from metaq.wire.record import decode_batch

RATE_MAX = 1_000_000


class ObservedArguments(ClientArguments, total=False):
    """Keyword arguments of producers, consumers and readers beside those of every client (docs/trace.md). None is needed."""

    trace: bool
    """Write a record of every send, or of every delivery, to the trace topic, as RocketMQ's clients do (`enableMsgTrace`), for
    `metaq message trace ID`; False by default."""
    trace_topic: str
    """Another trace topic than RMQ_SYS_TRACE_TOPIC."""
    trace_rate: int
    """Messages traced per second at most, 2000 by default; those above are sent and delivered untraced, and the log says how many."""
    message_log: bool
    """Write a line to the log (logger `metaq.messages`, INFO) for each send and each delivery; False by default."""
    message_log_rate: int
    """Lines per second at most, 100 by default; the log says how many were left out."""
    metrics: Metrics | None
    """A `metaq.ClientMetrics` that counts what this client does, for Prometheus (docs/monitoring.md); None, as by default: nothing does."""
    opentelemetry: bool | SpanProvider
    """True records spans of sends and deliveries with OpenTelemetry's global tracer provider, another provider with that one;
    messages carry the context of their trace (docs/opentelemetry.md). False by default."""


class Observing(Struct, frozen=True):
    """The checked `ObservedArguments`."""

    trace: bool = False
    trace_topic: str = TRACE_TOPIC
    trace_rate: int = 2000
    message_log: bool = False
    message_log_rate: int = 100
    metrics: Metrics | None = None
    opentelemetry: bool | SpanProvider = False

    @property
    def wanted(self) -> bool:
        """Whether sends or deliveries are watched at all."""
        return self.trace or self.message_log or self.metrics is not None or self.opentelemetry is not False

    def meter(self, group: str) -> Meter | None:
        """Return what counts for the metrics of a client of this group; None: they are not wanted."""
        return self.metrics._meter(group) if self.metrics is not None else None  # noqa: SLF001  a method for clients

    @classmethod
    def taken_from(cls, arguments: dict[str, Any]) -> Self:
        """Take the observing arguments out of a client's keyword arguments. Raises ConfigError, TypeError."""
        given = {name: arguments.pop(name) for name in cls.__struct_fields__ if name in arguments}
        for name in ("trace", "message_log"):
            check_flag(name, given.get(name, False))
        for name in ("trace_rate", "message_log_rate"):
            rate = given.get(name, 1)
            check_whole(name, rate)
            if not 1 <= rate <= RATE_MAX:
                raise ConfigError(f"{name}={rate}: need 1 to {RATE_MAX} a second")
        if given.get("metrics") is not None and not isinstance(given["metrics"], Metrics):
            raise TypeError(f"metrics is {given['metrics']!r}: pass a metaq.ClientMetrics")
        if "trace_topic" in given:
            checked(check_topic, given["trace_topic"])
        provider = given.get("opentelemetry", False)
        if provider.__class__ is not bool and not hasattr(provider, "get_tracer"):
            raise TypeError(f"opentelemetry={provider!r}: need True, False, or a TracerProvider of OpenTelemetry")
        return cls(**given)


class SentMessage(NamedTuple):
    """One message of a send that has its outcome, an error or none. `place` is its index in the batch."""

    place: int
    message_id: str
    properties: dict[str, str]
    body_bytes: int
    error: Exception | None


def count_of(batch: SendBatch) -> int:
    """Return the number of messages in a batch's request."""
    return max(1, batch.count)


class Sends(Struct, frozen=True):
    """The messages of one request, and its outcome. Times in ms."""

    outgoing: Outgoing
    """The request; of a single message without its body."""
    body_bytes: int
    batch: SendBatch
    began_ms: int
    cost_ms: int

    @classmethod
    def of(cls, outgoing: Outgoing, batch: SendBatch, began_ms: int, cost_ms: int) -> Self:
        # A single message's body is needed for its length only; kept, it would hold memory until the trace is sent.
        kept = outgoing if outgoing.batch else Outgoing(outgoing.topic, b"", properties=outgoing.properties)
        return cls(kept, len(outgoing.body), batch, began_ms, cost_ms)

    @property
    def count(self) -> int:
        return count_of(self.batch)

    def each(self, limit: int) -> Iterator[SentMessage]:
        """The first so many of the messages."""
        if not self.outgoing.batch:
            yield self._one(self.batch.first, self.outgoing.properties, self.body_bytes)
            return
        for number, (_, body, text) in enumerate(decode_batch(self.outgoing.body)[:limit]):
            yield self._one(number, text.decode("utf-8", "replace"), len(body))

    def _one(self, index: int, text: str, body_bytes: int) -> SentMessage:
        batch = self.batch
        return SentMessage(index, batch.message_id(index), props.parse(text), body_bytes, batch.error(index))


class Observer(Protocol):
    """Base of observers of one client."""

    def start(self) -> None:
        """Begin. In the loop."""
        ...

    async def close(self) -> None:
        """End. In the loop; nothing is reported after this."""
        ...


class SendObserver(Observer, Protocol):
    """Gets the outcomes of sends."""

    def wants(self, outgoing: Outgoing, batch: SendBatch) -> bool:
        """Return whether `sent` is to be called. In the loop.

        Most batches of a fast producer are above the rate of traces, so making a `Sends` of each would be wasted.
        """
        ...

    def sent(self, sends: Sends) -> None:
        """In the loop, once per request that is wanted. Must be quick, and raise nothing."""
        ...


@runtime_checkable
class Carrying(Protocol):
    """A token of a delivery, something of which goes with a reply."""

    def carried_by(self, properties: dict[str, str] | None) -> dict[str, str] | None:
        """Return the properties of a reply."""
        ...


class DeliveryObserver(Observer, Protocol):
    """Gets the deliveries, in any thread. Must be quick, and raise nothing."""

    def begun(self, message: StoredMessage) -> object:
        """Called when a message is handed out. Returns a token for `ended`."""
        ...

    def ended(self, message: StoredMessage, begun: object, result: Result, cost_ms: int) -> None:
        """Called when it is finished, or has failed."""
        ...


class Meter(SendObserver, DeliveryObserver, Protocol):
    """Counts for the metrics of one client, a producer or a consumer."""


class Metrics(abc.ABC):
    """What a client takes as its `metrics`: a `metaq.ClientMetrics`, which clients do not load unless they are given one."""

    @abc.abstractmethod
    def _meter(self, group: str) -> Meter:
        """Return the observer of a client of this group."""
