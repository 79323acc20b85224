"""Spans of a broker: in one trace with those of producer and consumer, and to a collector."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import metaq
from metaq import aio
from metaq.app.broker import start_broker
from metaq.app.tracing import broker_spans
from metaq.app.up import start_up
from metaq.errors import ConfigError
from metaq.options import BrokerOptions, NamesrvOptions, StoreOptions
from tests.servers.http.support import in_loop
from tests.support import PATIENCE

pytestmark = pytest.mark.slow

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
SPAN_ID = 0xB7AD6B7169203331


class Traced:
    """A cluster in the test's loop, and the spans of all in it."""

    def __init__(self):
        self.exporter, self.provider = InMemorySpanExporter(), TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @contextlib.asynccontextmanager
    async def run(self, folder, **options):
        up = await start_up(
            BrokerOptions(listen_port=0, ha_listen_port=0, broker_name="b", http_port=0, **options),
            StoreOptions(
                store_path_root_dir=str(folder / "store"),
                mapped_file_size_commit_log=1 << 20,
                disk_max_used_space_ratio=95,
            ),
            NamesrvOptions(listen_port=0, kv_config_path=str(folder / "kv.json")),
            tracer_provider=self.provider if not options else None,
        )
        self.namesrv, self.broker = up.namesrv.address, up.broker
        try:
            yield self
        finally:
            await up.close()

    def spans(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    async def named(self, name, count=1):
        async with asyncio.timeout(PATIENCE):
            while len(found := self.spans(name)) < count:
                await asyncio.sleep(0.01)
        assert len(found) == count
        return found


async def consume(cluster, topic, count, provider):
    async with aio.Consumer(
        cluster.namesrv, group=f"g-{topic}", topics=topic, start="earliest", opentelemetry=provider or False
    ) as consumer:
        for _ in range(count):
            message = await consumer.receive(PATIENCE)
            message.ack()


@in_loop
async def test_producer_broker_and_consumer_are_in_one_trace(tmp_path):
    """Also what comes through the fast path of sends, and in batches."""
    async with Traced().run(tmp_path) as cluster:
        async with aio.Producer(cluster.namesrv, group="p", opentelemetry=cluster.provider) as producer:
            sent = await asyncio.gather(*(producer.send("orders", b"x%d" % number, tag="t") for number in range(40)))
            await producer.send_batch([metaq.Message("orders", b"a"), metaq.Message("orders", b"b")])
        await consume(cluster, "orders", 42, cluster.provider)
        created = {
            (span.context.trace_id, span.context.span_id): span.attributes.get("messaging.message.id")
            for name in ("send orders", "create orders")
            for span in cluster.spans(name)
            if "messaging.batch.message_count" not in span.attributes
        }
        assert len(created) == 42
        for operation in ("store", "deliver", "process"):
            found = await cluster.named(f"{operation} orders", 42)
            assert {(span.context.trace_id, span.parent.span_id) for span in found} == set(created)
        by_id = {span.attributes["messaging.message.id"]: span for span in cluster.spans("store orders")}
        one = by_id[sent[7].message_id]
        host, _, port = cluster.broker.address.rpartition(":")
        assert dict(one.attributes) == {
            "messaging.system": "rocketmq", "server.address": host, "server.port": int(port), "metaq.broker.name": "b",
            "messaging.operation.name": "store", "messaging.destination.name": "orders",
            "messaging.destination.partition.id": f"b:{sent[7].queue.queue_id}", "messaging.message.body.size": 2,
            "messaging.message.id": sent[7].message_id, "metaq.message.offset": sent[7].offset,
        }  # fmt: skip
        handed = cluster.spans("deliver orders")[0].attributes
        assert handed["messaging.consumer.group.name"] == "g-orders" and handed["client.address"].startswith(
            "127.0.0.1"
        )


@in_loop
async def test_transactions_delays_and_retries(tmp_path):
    """Each record that the broker keeps of a message is a span, under the topic that its sender knows."""
    async with Traced().run(tmp_path) as cluster:
        async with aio.TransactionProducer(
            cluster.namesrv, group="tx", check=_undecided, opentelemetry=cluster.provider
        ) as producer:
            async with producer.transaction("paid", b"x"):
                pass
            await producer.send("late", b"x", delay_level=1)
        half, whole = await cluster.named("store paid", 2)
        assert half.attributes["metaq.record.topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"
        assert "metaq.record.topic" not in whole.attributes
        delayed, delivered = await cluster.named("store late", 2)
        assert delayed.attributes["metaq.record.topic"] == "SCHEDULE_TOPIC_XXXX"
        assert "metaq.record.topic" not in delivered.attributes


async def _undecided(_message):
    return None


@in_loop
async def test_only_what_its_creator_samples(tmp_path):
    """A trace of others is continued: by HTTP, as a user property of any client. Garbage in it costs nothing."""
    silent = TracerProvider(sampler=ALWAYS_OFF)
    async with Traced().run(tmp_path) as cluster:
        async with aio.Producer(cluster.namesrv, group="p") as plain:
            await plain.send("orders", b"x")
            for text in ("garbage", "0" * 20_000, PARENT[:-1] + "0", PARENT.upper()):
                await plain.send("orders", b"x", properties={"traceparent": text})
            await plain.send("orders", b"traceparent\x01" + PARENT.encode())
            async with aio.Producer(cluster.namesrv, group="q", opentelemetry=silent) as unsampled:
                await unsampled.send("orders", b"x")
            last = await plain.send("orders", b"x", properties={"traceparent": PARENT, "tracestate": "a=1"})
        [stored] = await cluster.named("store orders")
        assert stored.attributes["messaging.message.id"] == last.message_id
        assert (stored.context.trace_id, stored.parent.span_id) == (TRACE_ID, SPAN_ID)
        assert stored.context.trace_state.get("a") == "1"
        await consume(cluster, "orders", 8, None)
        [delivered] = await cluster.named("deliver orders")
        assert delivered.attributes["messaging.message.id"] == last.message_id


@in_loop
async def test_spans_are_bounded(tmp_path, monkeypatch, caplog):
    """Whoever samples everything fills no collector, and the log says what is missing."""
    monkeypatch.setattr(broker_spans, "SPANS_MAX", 10)
    async with Traced().run(tmp_path) as cluster:
        async with aio.Producer(cluster.namesrv, group="p") as producer:
            await producer.send_batch(
                [metaq.Message("orders", b"%d" % number, properties={"traceparent": PARENT}) for number in range(500)]
            )
        async with asyncio.timeout(PATIENCE):
            while "spans were left out: more than 10 a second" not in caplog.text:
                await asyncio.sleep(0.01)
        assert 10 <= len(cluster.spans("store orders")) <= 30


@in_loop
async def test_records_at_the_ends_of_files_and_long_ones(tmp_path):
    """What does not fit into a file is in the next, and a record may be longer than what is looked at at once."""
    async with Traced().run(tmp_path) as cluster:
        properties = {"traceparent": PARENT}
        async with aio.Producer(cluster.namesrv, group="p", compress_over=1 << 30) as producer:
            for number in range(30):
                await producer.send("orders", bytes(300_000 if number % 3 else 10), properties=properties)
            await producer.send("orders", bytes(1_000_000), properties=properties)
        assert len(cluster.broker._broker.store.log.run.files) > 5
        await cluster.named("store orders", 31)


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes OTLP by HTTP."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.server.received.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_collector_gets_them(tmp_path, monkeypatch):
    """By `otelEndpoint`; what else the SDK wants to know is in its own variables. A stop sends what waits."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.received = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    @in_loop
    async def run():
        endpoint = f"http://127.0.0.1:{server.server_port}"
        async with (
            Traced().run(tmp_path, otel_endpoint=endpoint) as cluster,
            aio.Producer(cluster.namesrv, group="p") as producer,
        ):
            await producer.send("orders", b"x", properties={"traceparent": PARENT})

    try:
        run()
    finally:
        server.shutdown()
        server.server_close()
    [(path, request)] = server.received
    assert path == "/v1/traces"
    [of_resource] = request.resource_spans
    resource = {pair.key: pair.value.string_value for pair in of_resource.resource.attributes}
    assert resource["service.name"] == "metaq-broker" and resource["service.instance.id"] == "b"
    assert resource["deployment.environment"] == "test"
    [span] = of_resource.scope_spans[0].spans
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == ("store orders", PARENT[3:35], PARENT[36:52])


@in_loop
async def test_a_collector_that_is_not_there_and_what_is_no_url(tmp_path):
    """The broker serves all the same. What cannot be a URL is told at the start."""
    async with (
        Traced().run(tmp_path, otel_endpoint="http://127.0.0.1:9") as cluster,
        aio.Producer(cluster.namesrv, group="p") as producer,
    ):
        await producer.send("orders", b"x", properties={"traceparent": PARENT})
    with pytest.raises(ConfigError, match=r"otelEndpoint=127\.0\.0\.1:4318: need the URL"):
        await start_broker(
            BrokerOptions(listen_port=0, ha_listen_port=0, otel_endpoint="127.0.0.1:4318"),
            StoreOptions(store_path_root_dir=str(tmp_path / "store"), mapped_file_size_commit_log=1 << 20),
        )
