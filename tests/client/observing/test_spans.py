"""`opentelemetry=`: spans of sends and deliveries, and how they are joined."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import metaq
from metaq import aio
from metaq.errors import ConfigError
from metaq.model.trace_context import trace_parent_of
from tests.support import PATIENCE, environment, eventually

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
SPAN_ID = 0xB7AD6B7169203331


class Spans:
    """A provider, and the spans that have ended, by name."""

    def __init__(self, **given):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**given)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("program")

    def named(self, name, count=1):
        """The spans of a name, once there are so many."""

        def probe():
            found = [span for span in self.exporter.get_finished_spans() if span.name == name]
            return found if len(found) >= count else None

        found = eventually(probe, what=f"{count} spans {name}")
        assert len(found) == count
        return found

    def one(self, name):
        return self.named(name)[0]


@pytest.fixture
def spans():
    return Spans()


def ids(span):
    return span.context.trace_id, span.context.span_id


def links(span):
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def consume(namesrv, topic, spans, handler, count=1, **more):
    """Have a group of its own handle so many deliveries."""
    done, lock = threading.Semaphore(0), threading.Lock()

    def handle(message):
        with lock:
            try:
                return handler(message)
            finally:
                done.release()

    with metaq.Consumer(
        namesrv, group=f"g-{topic}", topics=topic, start="earliest", opentelemetry=spans.provider, **more
    ) as consumer:
        thread = threading.Thread(target=consumer.run, args=(handle,))
        thread.start()
        for _ in range(count):
            assert done.acquire(timeout=PATIENCE)
        consumer.stop()
        thread.join(PATIENCE)


def test_a_send_and_its_delivery_are_one_trace(metaq_broker, spans):
    """With what the conventions ask for, and with the program's own spans around and within them."""
    topic, namesrv = "spans-joined", metaq_broker.namesrv
    with (
        metaq.Producer(namesrv, group="p", opentelemetry=spans.provider) as producer,
        spans.tracer.start_as_current_span("program") as program,
    ):
        receipt = producer.send(topic, b"12345", tag="paid", keys=["4711"])

    def handler(message):
        with spans.tracer.start_as_current_span("database"):
            pass

    consume(namesrv, topic, spans, handler)
    sent, processed, inner = spans.one(f"send {topic}"), spans.one(f"process {topic}"), spans.one("database")
    assert sent.parent.span_id == program.get_span_context().span_id
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert (processed.context.trace_id, processed.parent.span_id) == ids(sent)
    assert links(processed) == [ids(sent)]
    assert (inner.context.trace_id, inner.parent.span_id) == ids(processed)
    common = {
        "messaging.system": "rocketmq", "messaging.destination.name": topic, "messaging.message.id": receipt.message_id,
        "messaging.message.body.size": 5, "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("4711",),
        "messaging.destination.partition.id": f"{receipt.queue.broker}:{receipt.queue.queue_id}",
    }  # fmt: skip
    host, _, port = metaq_broker.broker.rpartition(":")
    assert dict(sent.attributes) == common | {
        "messaging.operation.name": "send", "messaging.operation.type": "send",
        "messaging.client.id": sent.attributes["messaging.client.id"], "server.address": host, "server.port": int(port),
    }  # fmt: skip
    assert dict(processed.attributes) == common | {
        "messaging.operation.name": "process", "messaging.operation.type": "process",
        "messaging.client.id": processed.attributes["messaging.client.id"],
        "messaging.consumer.group.name": f"g-{topic}", "messaging.rocketmq.consumption_model": "clustering",
    }  # fmt: skip
    assert sent.end_time <= processed.end_time and sent.status.status_code is StatusCode.UNSET


def test_every_way_of_sending(metaq_broker, spans):
    """Waiting and not, in order, delayed, alone because of its size, forgotten, and in one request with others."""
    topic = "spans-ways"
    with metaq.Producer(metaq_broker.namesrv, group="p", opentelemetry=spans.provider) as producer:
        for _ in range(3):  # the first by the loop, later ones by a direct link
            producer.send(topic, b"x")
        futures = [producer.submit(topic, b"x") for _ in range(50)]
        producer.send(topic, b"x", ordering_key="k")
        producer.send(topic, b"x" * 100_000)
        late = producer.send(topic, b"x", delay_level=1)
        producer.send_oneway(topic, b"x")
        batch = producer.send_batch([metaq.Message(topic, b"a", properties={"p": "1"}), metaq.Message(topic, b"b")])
        producer.flush()
        sent = spans.named(f"send {topic}", 3 + 50 + 3 + 1 + 1)
    assert {future.message_id for future in futures} <= {span.attributes.get("messaging.message.id") for span in sent}
    [delayed] = [span for span in sent if span.attributes.get("messaging.message.id") == late.message_id]
    assert delayed.attributes["messaging.rocketmq.message.delay_time_level"] == 1
    created = spans.named(f"create {topic}", 2)
    [whole] = [span for span in sent if "messaging.batch.message_count" in span.attributes]
    assert whole.kind is SpanKind.CLIENT and whole.attributes["messaging.batch.message_count"] == 2
    assert links(whole) == [ids(span) for span in created]
    assert whole.attributes["messaging.destination.partition.id"].endswith(f":{batch[0].queue.queue_id}")
    with metaq.Reader(metaq_broker.namesrv, topic, start="earliest", stop_at_end=True) as reader:
        carried = {trace_parent_of(message.properties).span_id for message in reader}
    # The one that is delayed has not come yet, and what was forgotten may not.
    assert {span.context.span_id for span in created} <= carried
    assert len(carried) >= 3 + 50 + 2 + 2


def test_a_failed_send(metaq_broker, spans):
    """Refused before it goes out, and by the broker."""
    big = random.Random(0).randbytes(5 << 20)  # zeros would be compressed
    with metaq.Producer(
        metaq_broker.namesrv, group="p", opentelemetry=spans.provider, timeout=PATIENCE, max_message_bytes=8 << 20
    ) as producer:
        with pytest.raises(metaq.InvalidMessage):
            producer.send("spans-fails", b"")
        with pytest.raises(metaq.BrokerError):
            producer.send("spans-refused", big)
        failed, refused = spans.one("send spans-fails"), spans.one("send spans-refused")
        assert producer._spans._open == {} == producer._spans._batches
    assert (failed.attributes["error.type"], refused.attributes["error.type"]) == ("InvalidMessage", "BrokerError")
    assert failed.status.status_code is refused.status.status_code is StatusCode.ERROR
    assert "the limit is" in refused.status.description


def test_each_delivery_of_a_retry_is_a_span_of_its_own(metaq_broker, spans):
    topic = "spans-retry"
    with metaq.Producer(metaq_broker.namesrv, group="p", opentelemetry=spans.provider) as producer:
        producer.send(topic, b"x")

    def handler(message):
        return metaq.Later(1) if not message.reconsume_times else None

    consume(metaq_broker.namesrv, topic, spans, handler, count=2)
    first, second = sorted(spans.named(f"process {topic}", 2), key=lambda span: span.start_time)
    sent = spans.one(f"send {topic}")
    assert links(first) == links(second) == [ids(sent)]
    assert first.attributes["error.type"] == "failed" and first.status.status_code is StatusCode.ERROR
    assert second.status.status_code is StatusCode.UNSET
    assert second.attributes["metaq.message.reconsume_times"] == 1


def test_a_program_that_takes_messages_within_a_span_of_its_own(metaq_broker, spans):
    """Then that is the parent, and the link leads to the send. Who has several in hand has none of them as current."""
    topic = "spans-taken"
    with metaq.Producer(metaq_broker.namesrv, group="p", opentelemetry=spans.provider) as producer:
        for number in range(3):
            producer.send(topic, b"%d" % number)
    with (
        metaq.Consumer(
            metaq_broker.namesrv, group="g-taken", topics=topic, start="earliest", opentelemetry=spans.provider
        ) as consumer,
        spans.tracer.start_as_current_span("job") as job,
    ):
        taken = []
        for message in consumer:
            taken.append(message)
            assert (trace.get_current_span() is job) == (len(taken) == 2)
            if len(taken) == 3:
                break
        for message in taken:
            message.ack()
        assert trace.get_current_span() is job
    processed = spans.named(f"process {topic}", 3)
    assert {span.parent.span_id for span in processed} == {job.get_span_context().span_id}
    assert sorted(links(span)[0] for span in processed) == sorted(ids(span) for span in spans.named(f"send {topic}", 3))
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_messages_that_are_settled_in_another_thread(metaq_broker, spans):
    topic = "spans-thread"
    with (
        metaq.Producer(metaq_broker.namesrv, group="p", opentelemetry=spans.provider) as producer,
        metaq.Consumer(
            metaq_broker.namesrv, group="g-thread", topics=topic, start="earliest", opentelemetry=spans.provider
        ) as consumer,
    ):
        producer.send(topic, b"x")
        message = next(iter(consumer))
        thread = threading.Thread(target=message.ack)
        thread.start()
        thread.join(PATIENCE)
        first = spans.one(f"process {topic}")
        producer.send(topic, b"y")
        with next(iter(consumer)), spans.tracer.start_as_current_span("inner"):
            pass
    second = next(span for span in spans.named(f"process {topic}", 2) if span is not first)
    inner = spans.one("inner")
    assert (inner.context.trace_id, inner.parent.span_id) == ids(second) != ids(first)


def test_readers_and_pull_consumers_receive(metaq_broker, spans):
    """A span for what was asked for, linked to each message."""
    topic = "spans-receive"
    with metaq.Producer(metaq_broker.namesrv, group="p", opentelemetry=spans.provider) as producer:
        producer.send(topic, b"x")
    with metaq.Reader(
        metaq_broker.namesrv, topic, start="earliest", stop_at_end=True, opentelemetry=spans.provider
    ) as reader:
        assert len(list(reader)) == 1
    received = spans.one(f"receive {topic}")
    assert received.kind is SpanKind.CLIENT and links(received) == [ids(spans.one(f"send {topic}"))]
    assert received.attributes["messaging.batch.message_count"] == 1


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction(metaq_broker, spans, commits):
    """Half message, end, and delivery are one trace."""
    topic = f"spans-transaction-{commits}"
    with (
        metaq.TransactionProducer(
            metaq_broker.namesrv, group="spans-tx", check=lambda _message: None, opentelemetry=spans.provider
        ) as producer,
        producer.transaction(topic, b"x") as tx,
    ):
        if not commits:
            tx.rollback()
    half = spans.one(f"send {topic}")
    end = spans.one(f"{'commit' if commits else 'rollback'} {topic}")
    assert (end.context.trace_id, end.parent.span_id) == ids(half) and links(end) == [ids(half)]
    assert end.attributes["messaging.operation.type"] == "settle"
    assert end.attributes["messaging.message.id"] == half.attributes["messaging.message.id"]
    if commits:
        consume(metaq_broker.namesrv, topic, spans, lambda _message: None)
        assert links(spans.one(f"process {topic}")) == [ids(half)]


def test_a_request_and_its_reply_are_one_trace(metaq_broker, spans):
    """Who replies continues the trace of the request."""
    topic = "spans-request"
    with metaq.Consumer(
        metaq_broker.namesrv, group="g-request", topics=topic, start="earliest", opentelemetry=spans.provider
    ) as consumer:

        def handler(message):
            with spans.tracer.start_as_current_span("answering"):
                message.reply(b"pong")

        replies = []
        thread = threading.Thread(target=consumer.run, args=(handler,))
        thread.start()
        with metaq.Producer(metaq_broker.namesrv, group="p", opentelemetry=spans.provider) as producer:
            for _ in range(2):  # by the loop, then in the caller's thread
                reply = producer.request(topic, b"ping", timeout=PATIENCE)
                assert reply.body == b"pong"
                replies.append(trace_parent_of(reply.properties))
        consumer.stop()
        thread.join(PATIENCE)
    sent, processed, inner = (spans.named(f"{name}", 2) for name in (f"send {topic}", f"process {topic}", "answering"))
    assert {ids(span) for span in sent} == {(span.context.trace_id, span.parent.span_id) for span in processed}
    assert {ids(span) for span in processed} == {(span.context.trace_id, span.parent.span_id) for span in inner}
    assert {ids(span) for span in processed} == {(reply.trace_id, reply.span_id) for reply in replies}


def test_asyncio(metaq_broker, spans):
    """The context of the task that sends, and of the task that handles."""
    topic = "spans-aio"

    async def run():
        async with aio.Producer(metaq_broker.namesrv, group="p", opentelemetry=spans.provider) as producer:
            with spans.tracer.start_as_current_span("task"):
                await asyncio.gather(*(producer.send(topic, b"x") for _ in range(3)))
                await producer.send_batch([metaq.Message(topic, b"y"), metaq.Message(topic, b"z")])
                with pytest.raises(metaq.InvalidMessage):
                    await producer.send(topic, b"")
        handled = asyncio.Semaphore(0)

        async def handler(message):
            with spans.tracer.start_as_current_span("inner"):
                await asyncio.sleep(0)
            handled.release()

        async with aio.Consumer(
            metaq_broker.namesrv, group="g-aio", topics=topic, start="earliest", opentelemetry=spans.provider
        ) as consumer:
            running = asyncio.create_task(consumer.run(handler, tasks=2))
            for _ in range(5):
                await handled.acquire()
            consumer.stop()
            await running

    asyncio.run(run())
    sent, processed = spans.named(f"send {topic}", 5), spans.named(f"process {topic}", 5)
    task = spans.one("task")
    assert {span.parent.span_id for span in sent} == {task.context.span_id}
    assert {span.context.trace_id for span in processed} == {task.context.trace_id}
    created = [*spans.named(f"create {topic}", 2), *(span for span in sent if span.kind is SpanKind.PRODUCER)]
    made = {ids(span) for span in created}
    assert {(span.context.trace_id, span.parent.span_id) for span in processed} <= made
    inner = spans.named("inner", 5)
    assert {ids(span) for span in processed} == {(span.context.trace_id, span.parent.span_id) for span in inner}


def test_a_context_of_others_is_continued(metaq_broker, spans):
    """As a client in Java would have it: a user property. A program that gives its own context keeps that."""
    topic = "spans-others"
    with metaq.Producer(metaq_broker.namesrv, group="p") as producer:
        producer.send(topic, b"x", properties={"traceparent": PARENT, "tracestate": "vendor=1"})
    consume(metaq_broker.namesrv, topic, spans, lambda _message: None)
    processed = spans.one(f"process {topic}")
    assert (processed.context.trace_id, processed.parent.span_id) == (TRACE_ID, SPAN_ID)
    assert processed.context.trace_state.get("vendor") == "1"
    with metaq.Producer(metaq_broker.namesrv, group="p", opentelemetry=spans.provider) as producer:
        producer.send("spans-custom", b"x", properties={"traceparent": PARENT})
        sent = spans.one("send spans-custom")
    assert sent.kind is SpanKind.CLIENT and links(sent) == [(TRACE_ID, SPAN_ID)]
    with metaq.Reader(metaq_broker.namesrv, "spans-custom", start="earliest", stop_at_end=True) as reader:
        assert [message.properties["traceparent"] for message in reader] == [PARENT]


@pytest.mark.parametrize("text", ["garbage", "00-" + "0" * 52, "ff" + PARENT[2:], "0" * 20_000])
def test_hostile_contexts_are_passed_over(metaq_broker, spans, text):
    topic = f"spans-hostile-{len(text)}-{text[:2]}"
    with metaq.Producer(metaq_broker.namesrv, group="p") as producer:
        producer.send(topic, b"x", properties={"traceparent": text, "tracestate": "=,=,\x7f"})
    consume(metaq_broker.namesrv, topic, spans, lambda _message: None)
    processed = spans.one(f"process {topic}")
    assert processed.parent is None and links(processed) == []


def test_what_leaves_no_room_for_a_context_is_sent_without(metaq_broker, spans):
    topic = "spans-full"
    with metaq.Producer(metaq_broker.namesrv, group="p", opentelemetry=spans.provider) as producer:
        producer.send(topic, b"x", properties={"p": "x" * 32_000})
        spans.one(f"send {topic}")
        assert producer._spans._open == {}
    with metaq.Reader(metaq_broker.namesrv, topic, start="earliest", stop_at_end=True) as reader:
        assert ["traceparent" in message.properties for message in reader] == [False]


def test_traces_that_are_not_sampled_say_so_and_keep_nothing(metaq_broker):
    spans, topic = Spans(sampler=ALWAYS_OFF), "spans-unsampled"
    with metaq.Producer(metaq_broker.namesrv, group="p", opentelemetry=spans.provider) as producer:
        producer.send(topic, b"x")
        assert producer._spans._open == {}
    with metaq.Reader(metaq_broker.namesrv, topic, start="earliest", stop_at_end=True) as reader:
        [found] = [trace_parent_of(message.properties) for message in reader]
    assert not found.sampled and spans.exporter.get_finished_spans() == ()


def test_what_is_no_provider_is_refused(metaq_broker):
    for wrong in ("yes", 1, None, object()):
        with pytest.raises(TypeError, match="opentelemetry="):
            metaq.Producer(metaq_broker.namesrv, group="p", opentelemetry=wrong)


def test_without_opentelemetry_the_error_says_what_to_install(metaq_broker, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "metaq.client.observing.spans", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'pymetaq\[otel\]'"):
        metaq.Producer(metaq_broker.namesrv, group="p", opentelemetry=True)


def test_nobody_imports_it_who_does_not_ask_for_it(metaq_broker):
    program = f"""
import sys, metaq
with metaq.Producer({metaq_broker.namesrv!r}, group="p") as producer:
    producer.send("spans-none", b"x")
with metaq.Consumer({metaq_broker.namesrv!r}, group="g-none", topics="spans-none", start="earliest") as consumer:
    next(iter(consumer)).ack()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
