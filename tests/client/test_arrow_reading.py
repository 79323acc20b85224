"""Tables out: `arrow_batches` of readers, against our broker and a scripted one."""

from __future__ import annotations

import asyncio
import itertools
import os

import pytest

from metaq import Message, Producer, Reader, aio
from metaq.errors import ClientClosed, ConfigError, OffsetOutOfRange
from metaq.model import MessageQueue
from tests.client.cluster import FakeCluster
from tests.support import PATIENCE

pa = pytest.importorskip("pyarrow")
from metaq.client.arrow import LEAN, TYPES, schema_of  # noqa: E402  needs pyarrow

_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"arrow_read_{os.getpid()}_{next(_names)}"


def fill(namesrv, topic, count, **more):
    with Producer(namesrv, **more) as producer:
        producer.send_batch([Message(topic, b"%d" % number, tag="ab"[number % 2]) for number in range(count)])


def numbers(batch) -> list[int]:
    return [int(body) for body in batch.column("body").to_pylist()]


def row_of(message) -> dict[str, object]:
    """What the columns say of a message."""
    return {
        "topic": message.topic, "broker": message.broker, "queue_id": message.queue_id,
        "queue_offset": message.queue_offset, "message_id": message.message_id, "tag": message.tag,
        "keys": list(message.keys), "body": message.body, "properties": sorted(message.properties.items()),
        "flag": message.flag, "sys_flag": message.sys_flag, "reconsume_times": message.reconsume_times,
        "born_host": "{}:{}".format(*message.born_host), "store_host": "{}:{}".format(*message.store_host),
        "offset_id": message.offset_id, "log_offset": message.log_offset,
    }  # fmt: skip


def rows_of(batches) -> list[dict[str, object]]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    for row in rows:
        row["properties"] = sorted(row["properties"])
        for name in ("born_time", "store_time", "max_offset"):
            row.pop(name)
    return sorted(rows, key=lambda row: (row["queue_id"], row["queue_offset"]))


@pytest.mark.parametrize("before", [False, True], ids=["at once", "after messages"])
def test_every_column_says_what_the_messages_say(metaq_broker, topic, before):
    """Also of what was pulled before somebody asked for batches, with compressed bodies among them."""
    fill(metaq_broker.namesrv, topic, 500)
    with Producer(metaq_broker.namesrv, compress_over=100) as producer:
        producer.send(topic, b"z" * 5000, keys=["k", "l"], properties={"n": "1"}, flag=7)
    with Reader(metaq_broker.namesrv, topic, stop_at_end=True) as reader:
        messages = sorted(reader, key=lambda message: (message.queue_id, message.queue_offset))
    expected = [row_of(message) for message in messages]
    with Reader(metaq_broker.namesrv, topic, stop_at_end=True) as reader:
        if before:
            first = reader.receive(PATIENCE)
            expected.remove(row_of(first))
        batches = list(reader.arrow_batches(columns=list(TYPES)))
        places = reader.positions()
    assert all(batch.schema == schema_of(list(TYPES)) for batch in batches)
    assert rows_of(batches) == expected
    assert sum(places.values()) == 501


def test_the_usual_columns_and_sizes(metaq_broker, topic):
    """Ten columns, at most so many rows; nothing is lost where a pull is cut."""
    fill(metaq_broker.namesrv, topic, 1000)
    with Reader(metaq_broker.namesrv, topic, stop_at_end=True) as reader:
        batches = list(reader.arrow_batches(rows=64))
    assert batches[0].schema.names == list(LEAN)
    assert max(batch.num_rows for batch in batches) <= 64
    assert sorted(itertools.chain(*map(numbers, batches))) == list(range(1000))


def test_what_is_filtered_is_not_in_the_batches(metaq_broker, topic):
    """By the tags themselves, as for messages."""
    fill(metaq_broker.namesrv, topic, 100)
    with Reader(metaq_broker.namesrv, topic, tags="a", stop_at_end=True) as reader:
        found = pa.Table.from_batches(reader.arrow_batches(columns=["body", "tag"]))
    assert sorted(map(int, found.column("body").to_pylist())) == list(range(0, 100, 2))
    assert set(found.column("tag").to_pylist()) == {"a"}


def test_without_an_end_it_follows(metaq_broker, topic):
    """A batch does not wait to be full; `close` in another thread ends it, as it ends iteration."""
    fill(metaq_broker.namesrv, topic, 3)
    with Reader(metaq_broker.namesrv, topic) as reader:
        batches = reader.arrow_batches()
        assert numbers(next(batches)) == [0, 1, 2]
        fill(metaq_broker.namesrv, topic, 2)
        assert numbers(next(batches)) == [0, 1]


def test_messages_and_batches_may_take_turns(metaq_broker, topic):
    """Each message is in one of them."""
    fill(metaq_broker.namesrv, topic, 300)
    with Reader(metaq_broker.namesrv, topic, stop_at_end=True) as reader:
        seen = [int(reader.receive(PATIENCE).body) for _ in range(10)]
        seen += numbers(next(reader.arrow_batches(rows=50)))
        seen += [int(reader.receive(PATIENCE).body) for _ in range(10)]
        seen += itertools.chain(*map(numbers, reader.arrow_batches()))
    assert seen == list(range(300))


def test_seek_begins_again(metaq_broker, topic):
    """As for messages."""
    fill(metaq_broker.namesrv, topic, 100)
    with Reader(metaq_broker.namesrv, topic, stop_at_end=True) as reader:
        assert sum(batch.num_rows for batch in reader.arrow_batches()) == 100
        reader.seek(offset=0)
        assert sum(batch.num_rows for batch in reader.arrow_batches()) == 100


def test_namespaces_are_plain_in_the_column_topic(metaq_broker, topic):
    """As in messages."""
    fill(metaq_broker.namesrv, topic, 3, namespace="shop")
    with Reader(metaq_broker.namesrv, topic, namespace="shop", stop_at_end=True) as reader:
        found = pa.Table.from_batches(reader.arrow_batches(columns=["topic"]))
    assert found.column("topic").to_pylist() == [topic] * 3


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"columns": ["body", "price"]}, ConfigError, "no column 'price'"),
        ({"columns": ["body", "body"]}, ConfigError, "named twice"),
        ({"columns": "body"}, TypeError, "pass a list of names"),
        ({"rows": 0}, ConfigError, "need 1 or more"),
        ({"rows": 1.5}, TypeError, "whole number"),
    ],
)  # fmt: skip
def test_what_no_batch_can_be_is_said_at_once(metaq_broker, topic, arguments, error, words):
    """Before anything is read."""
    fill(metaq_broker.namesrv, topic, 1)
    with Reader(metaq_broker.namesrv, topic) as reader, pytest.raises(error, match=words):
        reader.arrow_batches(**arguments)
    with pytest.raises(ClientClosed):
        reader.arrow_batches()


def test_an_offset_that_left_the_log_is_raised_after_what_was_ready():
    """As by iteration."""
    with FakeCluster() as cluster:
        cluster.store(*(b"%d" % number for number in range(10)))
        with Reader(cluster.namesrv, "orders") as reader:
            batches = reader.arrow_batches()
            assert numbers(next(batches)) == list(range(10))
            queue = MessageQueue("orders", "broker-a", 0)
            cluster.min_offsets["orders", 0] = 20
            cluster.store(*(b"%d" % number for number in range(20)))
            reader.seek(queue, offset=3)
            with pytest.raises(OffsetOutOfRange):
                next(reader.arrow_batches())


def test_asyncio_reads_the_same(metaq_broker, topic):
    """`async for`, with an end."""
    fill(metaq_broker.namesrv, topic, 300)

    async def main():
        async with aio.Reader(metaq_broker.namesrv, topic, stop_at_end=True) as reader:
            return [batch async for batch in reader.arrow_batches(columns=["body"], rows=100)]

    batches = asyncio.run(main())
    assert sorted(itertools.chain(*map(numbers, batches))) == list(range(300))
