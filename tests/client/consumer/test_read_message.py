"""What readers and pull consumers hand out: values of bodies, traces and log lines, topics by pattern."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import pickle
import re

import msgspec
import pytest

import metaq
from metaq import aio
from metaq.admin import Admin, TraceNotFound
from metaq.errors import ConfigError
from tests.support import PATIENCE, eventually

_names = itertools.count()


class Order(msgspec.Struct, frozen=True):
    id: int


@pytest.fixture
def topic() -> str:
    return f"readings_{os.getpid()}_{next(_names)}"


@pytest.fixture
def producer(metaq_broker):
    with metaq.Producer(metaq_broker.namesrv) as made:
        yield made


def polled(consumer, count):
    found = []
    while len(found) < count:
        found += consumer.poll(PATIENCE)
    return found


def test_a_reader_s_messages_have_values(metaq_broker, producer, topic):
    """Made when they are asked for: a body of which none can be made raises then, and holds up nothing."""
    queue = producer.send(topic, b'{"id": 1}').queue
    for body in (b"no order", b'{"id": 3}'):
        producer.send(topic, body, queue=queue)
    with metaq.Reader(metaq_broker.namesrv, topic, stop_at_end=True, deserialize=metaq.Json(Order)) as reader:
        first, wrong, last = reader
    assert (first.value, last.value) == (Order(1), Order(3))
    assert pickle.loads(pickle.dumps(first)).value == Order(1)
    assert (wrong.body, pickle.loads(pickle.dumps(wrong)).value) == (b"no order", b"no order")
    for _ in range(2):
        with pytest.raises(ValueError, match="malformed"):
            wrong.value  # noqa: B018  it raises
    with metaq.Reader(metaq_broker.namesrv, topic, stop_at_end=True) as reader:
        assert next(iter(reader)).value == b'{"id": 1}'


def test_a_pull_consumer_s_messages_have_values(metaq_broker, producer, topic):
    """Polled, and pulled by hand."""
    queue = producer.send(topic, b'{"id": 1}').queue
    with metaq.PullConsumer(
        metaq_broker.namesrv, group=f"{topic}_g", topics=topic, start="earliest", deserialize=metaq.Json(Order),
        instance_name="values",
    ) as consumer:  # fmt: skip
        assert [message.value for message in polled(consumer, 1)] == [Order(1)]
        assert [message.value for message in consumer.pull(queue, 0).messages] == [Order(1)]


def test_pickle_is_refused_here_too(metaq_broker, topic):
    with pytest.raises(ConfigError, match="pickle"):
        metaq.Reader(metaq_broker.namesrv, topic, deserialize="pickle")
    with pytest.raises(ConfigError, match="pickle"):
        metaq.PullConsumer(metaq_broker.namesrv, group=topic, deserialize="pickle")


def told(namesrv, message_id, groups):
    """Once the deliveries to these groups, and no more, are told."""
    with Admin(namesrv) as admin:

        def probe():
            try:
                found = admin.message_trace(message_id)
            except TraceNotFound:
                return False
            deliveries = [(event.group, event.result) for event in found.events if event.what == "delivered"]
            return sorted(deliveries) == sorted((group, "ok") for group in groups)

        eventually(probe, what=f"deliveries to {groups}")


def test_readings_are_traced(metaq_broker, producer, topic, caplog):
    """Of a reader, of poll and pull, in asyncio too: delivered, and no more is known. The message log has a line for each."""
    caplog.set_level(logging.INFO, "metaq.messages")
    receipt = producer.send(topic, b"x")
    namesrv, queue = metaq_broker.namesrv, receipt.queue
    watched = {"trace": True, "message_log": True}
    with metaq.Reader(namesrv, topic, stop_at_end=True, **watched) as reader:
        assert len(list(reader)) == 1
    with metaq.PullConsumer(
        namesrv, group=f"{topic}_p", topics=topic, start="earliest", instance_name="one", **watched
    ) as consumer:
        assert len(polled(consumer, 1)) == len(consumer.pull(queue, receipt.offset).messages) == 1

    async def work():
        async with aio.Reader(namesrv, topic, stop_at_end=True, **watched) as reader:
            assert [message.body async for message in reader] == [b"x"]
        async with aio.PullConsumer(
            namesrv, group=f"{topic}_a", topics=topic, start="earliest", instance_name="two", **watched
        ) as consumer:
            while not await consumer.poll(1.0):
                pass

    asyncio.run(work())
    told(namesrv, receipt.message_id, ["TOOLS_CONSUMER"] * 2 + [f"{topic}_p"] * 2 + [f"{topic}_a"])
    assert caplog.text.count("delivered: group") == 5


@pytest.mark.parametrize("registered", [False, True])
def test_a_pull_consumer_takes_part_in_topics_by_pattern(metaq_broker, producer, topic, registered):
    """As with Kafka's subscribe(pattern): those that match, new ones soon; the listener hears of each. When it is made, or
    registered later."""
    for name in (f"{topic}-a", f"{topic}-b", f"{topic}x"):
        producer.send(name, name.encode())
    heard, pattern = set(), re.compile(f"{topic}-.*")

    def listen(name, queues, mine):
        if mine:
            heard.add(name)

    options = {"start": "earliest", "poll_name_server_interval": 0.1, "instance_name": f"patterns{registered}"}
    if not registered:
        options |= {"topics": pattern, "on_share": listen}
    with metaq.PullConsumer(metaq_broker.namesrv, group=f"{topic}_g", **options) as consumer:
        if registered:
            consumer.register_topics({pattern: "*"}, listen)
        assert sorted(message.topic for message in polled(consumer, 2)) == [f"{topic}-a", f"{topic}-b"]
        producer.send(f"{topic}-new", b"new")
        assert [message.topic for message in polled(consumer, 1)] == [f"{topic}-new"]
        eventually(lambda: heard == {f"{topic}-a", f"{topic}-b", f"{topic}-new"})
        with pytest.raises(ConfigError, match="assigns registers none"):
            consumer.assign([])
