"""Spans of what a broker does with messages that carry a sampled trace: it stores them, and hands them out.

Sends are not touched: records that name a trace are found in the log, behind the sends, by a search for its bytes. Pulls that are watched
take the slow path. Loaded only where there are spans.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider as SdkProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, TraceState

import metaq
from metaq.broker.broker import Broker
from metaq.errors import ConfigError, RemoteProtocolError
from metaq.log import RateLimitedLog
from metaq.model import StoredMessage
from metaq.model import properties as props
from metaq.model.access import Caller
from metaq.model.trace_context import TRACEPARENT, SpanProvider, TraceParent, trace_parent_of
from metaq.store.reads.pull import ReadResult
from metaq.wire.record import decode_record
from metaq.worker import Worker

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.2
"""Pause between two looks at what the log has grown by."""
SPANS_MAX: Final = 1000
"""Spans of a second, at most: what a trace costs is bounded, whoever asks for it."""
WORD: Final = TRACEPARENT.encode() + b"\x01"
CLOSE_SECONDS: Final = 2.0
"""Longest wait for a collector at a stop, s."""
SERVICE: Final = "metaq-broker"


class BrokerSpans:
    """Of one broker. In its event loop.

    Args:
        provider: makes the spans.
        address: of the broker, as clients know it.
        owned: the provider is shut down when this is closed.
    """

    def __init__(self, broker: Broker, provider: SpanProvider, address: str, *, owned: bool) -> None:
        self._broker, self._provider, self._owned = broker, provider, owned
        self._tracer: trace.Tracer = provider.get_tracer("metaq.broker", metaq.__version__)
        host, _, port = address.rpartition(":")
        self._common: dict[str, Any] = {
            "messaging.system": "rocketmq",
            "server.address": host,
            "server.port": int(port),
            "metaq.broker.name": broker.environment.name,
        }
        self._place = broker.store.log.end
        """LogOffset of the first record that was not looked at."""
        self._left, self._left_out = float(SPANS_MAX), 0
        self._faults = RateLimitedLog(log, broker.clock)
        broker.pulls.watch(self._handed_out)

    async def follow(self) -> None:
        """Look at what the log grows by, until this is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()

    async def close(self) -> None:
        """Note the last records, and let the provider send what it has."""
        await self._look()
        if self._owned and isinstance(self._provider, SdkProvider):
            worker = Worker("metaq-spans")  # a daemon: it may wait for the collector longer than a stop should take
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await worker.run(self._provider.shutdown)
            except TimeoutError:
                log.warning("the collector takes no spans, and the last ones are lost")
            finally:
                worker.end()

    async def _look(self) -> None:
        store = self._broker.store
        self._left = min(float(SPANS_MAX), self._left + SPANS_MAX * LOOK_SECONDS)
        self._place = min(self._place, store.log.end)  # a slave's log may have been cut
        while self._place < store.log.end:
            records, following = await asyncio.to_thread(store.reader.records_with, WORD, self._place)
            if self._broker.leads:  # its slaves have the same records
                self._stored(records)
            if following <= self._place:
                break
            self._place = following
        if self._left_out:
            self._faults.warning("rate", "%d spans were left out: more than %d a second", self._left_out, SPANS_MAX)
            self._left_out = 0
        self._faults.tick()

    def _stored(self, records: Iterable[bytes]) -> None:
        for record in records:
            if (found := _traced(record)) is not None:
                message, parent = found
                topic = message.properties.get(props.REAL_TOPIC, message.topic)
                more = {"metaq.record.topic": message.topic} if topic != message.topic else {}
                self._span("store", topic, message, parent, message.store_ms, more)

    def _handed_out(self, caller: Caller, group: str, pulled: ReadResult) -> None:
        try:
            data = bytes(pulled.body) if pulled.long is None else b""
            if WORD not in data:
                return
            now, place = self._broker.clock.now_ms(), 0
            while place < len(data):
                size = int.from_bytes(data[place : place + 4], "big")
                record = data[place : place + size]
                if WORD in record and (found := _traced(record)) is not None:
                    message, parent = found
                    more = {"messaging.consumer.group.name": group, "client.address": caller.client}
                    self._span("deliver", message.topic, message, parent, now, more)
                place += size
        except Exception as error:  # noqa: BLE001  a pull never fails for its trace
            self._faults.error("pull", "the spans of a pull could not be made", error=error)

    def _span(
        self, operation: str, topic: str, message: StoredMessage, parent: TraceParent, at_ms: int, more: dict[str, Any]
    ) -> None:
        if self._left < 1:
            self._left_out += 1
            return
        self._left -= 1
        state = TraceState.from_header([parent.state]) if parent.state else None
        context = SpanContext(parent.trace_id, parent.span_id, True, TraceFlags(parent.flags), state)
        span = self._tracer.start_span(
            f"{operation} {topic}",
            context=trace.set_span_in_context(NonRecordingSpan(context)),
            kind=SpanKind.INTERNAL,
            attributes={
                **self._common,
                "messaging.operation.name": operation,
                "messaging.destination.name": topic,
                "messaging.destination.partition.id": f"{self._broker.environment.name}:{message.queue_id}",
                "messaging.message.id": message.message_id,
                "messaging.message.body.size": len(message.body),
                "metaq.message.offset": message.queue_offset,
                **more,
            },
            start_time=at_ms * 1_000_000,
        )
        span.end(at_ms * 1_000_000)


def _traced(record: bytes) -> tuple[StoredMessage, TraceParent] | None:
    """Return a record's message and trace, if its creator samples that."""
    try:
        message = decode_record(record)
    except RemoteProtocolError:
        return None
    parent = trace_parent_of(message.properties)
    return (message, parent) if parent is not None and parent.sampled else None


def provider_of(endpoint: str, broker: str) -> SdkProvider:
    """Return a provider that sends to a collector. What `endpoint` does not say is as the SDK has it, by the variables OTEL_….

    Raises ConfigError: it is no URL.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"otelEndpoint={endpoint}: need the URL of a collector, such as http://127.0.0.1:4318")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
        OTLPSpanExporter,  # an embedded broker has its own way
    )

    base = endpoint.rstrip("/")
    url = base if base.count("/") > 2 else f"{base}/v1/traces"
    named = Resource({"service.name": SERVICE, "service.instance.id": broker, "service.version": metaq.__version__})
    provider = SdkProvider(resource=named.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return provider
