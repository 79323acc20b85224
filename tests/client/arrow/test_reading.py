"""Tables out: `arrow_batches` of readers, against our broker and a scripted one."""

from __future__ import annotations

import asyncio
import itertools
import os

import pytest

from metaq import Consumer, Later, Message, Producer, Reader, aio
from metaq.errors import ClientClosed, ConfigError, OffsetOutOfRange
from metaq.model import MessageQueue
from tests.client.cluster import FakeCluster
from tests.support import PATIENCE, eventually

pa = pytest.importorskip("pyarrow")
from metaq.client.arrow.records import LEAN, TYPES, schema_of  # noqa: E402  needs pyarrow

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
        "attribute": None, "metaq1_id": None, "position": None,
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


# ------------------------------------------------------------------ consumers
def consume(broker, topic, **more) -> Consumer:
    return Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", **more)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "in order"])
def test_batches_of_a_consumer_are_acknowledged_as_they_are_left(metaq_broker, topic, orderly):
    """By `with`, or by going on; the progress is kept, and the next member begins behind it."""
    fill(metaq_broker.namesrv, topic, 1200)
    seen = []
    with consume(metaq_broker, topic, orderly=orderly) as consumer:
        for number, batch in enumerate(consumer.arrow_batches(columns=["body", "queue_offset"], rows=100)):
            assert batch.num_rows == batch.data.num_rows <= 100
            seen += numbers(batch.data)
            if number % 2:
                with batch:
                    pass
                assert batch.settled
            if len(seen) >= 1200:
                batch.ack()
                break
    assert seen == list(range(1200))
    fill(metaq_broker.namesrv, topic, 2)
    with consume(metaq_broker, topic, orderly=orderly) as consumer:
        left = 2
        for batch in consumer.arrow_batches():
            with batch:
                left -= batch.num_rows
            if not left:
                break
    assert left == 0


def test_a_batch_of_a_consumer_has_the_columns_of_its_messages(metaq_broker, topic):
    """Of the records, and of those made anew: compressed bodies, tags that are filtered."""
    fill(metaq_broker.namesrv, topic, 400)
    with Producer(metaq_broker.namesrv, compress_over=100) as producer:
        producer.send(topic, b"z" * 5000, tag="a")
    checked = 0
    with Consumer(metaq_broker.namesrv, group=topic, topics={topic: "a"}, start="earliest") as consumer:
        for batch in consumer.arrow_batches(columns=list(TYPES), rows=64):
            with batch:
                assert rows_of([batch.data]) == [row_of(message) for message in batch.messages]
                checked += batch.num_rows
            if checked == 201:
                break


def test_raising_in_a_batch_delivers_its_messages_again_under_their_topic(metaq_broker, topic, caplog):
    """And not those of other batches; `Later` says when, and is not logged."""
    fill(metaq_broker.namesrv, topic, 4)
    with consume(metaq_broker, topic, pull_count=2, queue_messages_max=2) as consumer:
        batches, failed, seen = consumer.arrow_batches(rows=2), 0, []
        for batch in batches:
            with batch:
                if not failed:
                    failed = batch.num_rows
                    lost = numbers(batch.data)
                    raise Later(1)
                seen += numbers(batch.data)
                assert set(batch.data.column("topic").to_pylist()) == {topic}
            if len(seen) == 4:
                break
    assert sorted(seen) == [0, 1, 2, 3]
    assert lost
    assert not [record for record in caplog.records if "handling" in record.message]


def test_an_error_in_a_batch_is_logged_once_and_ends_there(metaq_broker, topic, caplog):
    """As of a message; whatever the number of rows."""
    fill(metaq_broker.namesrv, topic, 3)
    with consume(metaq_broker, topic) as consumer:
        batch = next(consumer.arrow_batches())
        with batch:
            raise ValueError("no")
        assert batch.settled
    assert len([record for record in caplog.records if "handling 3 messages" in record.message]) == 1


def test_a_batch_in_hand_when_the_loop_is_left_comes_again(metaq_broker, topic):
    """Nobody said that it was done."""
    fill(metaq_broker.namesrv, topic, 10)
    with consume(metaq_broker, topic) as consumer:
        for batch in consumer.arrow_batches():
            assert not batch.settled
            break
    with consume(metaq_broker, topic) as consumer, next(consumer.arrow_batches()) as batch:
        assert numbers(batch.data) == list(range(10))


def test_nothing_more_is_pulled_while_batches_are_unfinished(metaq_broker, topic):
    """Back-pressure is that of messages: `queue_messages_max`."""
    fill(metaq_broker.namesrv, topic, 1000)
    with consume(metaq_broker, topic, pull_count=50, queue_messages_max=100) as consumer:
        batches = consumer.arrow_batches()
        hold = next(batches)
        eventually(lambda: any(window.paused for window in consumer._member.windows.values()))
        assert sum(window.unfinished for window in consumer._member.windows.values()) <= 100
        hold.ack()
        total = hold.num_rows
        for batch in batches:
            total += batch.num_rows
            if total == 1000:
                break
    assert total == 1000


def test_frames_of_others_take_a_batch_as_it_is(metaq_broker, topic):
    """By Arrow's own protocol."""
    fill(metaq_broker.namesrv, topic, 3)
    with consume(metaq_broker, topic) as consumer, next(consumer.arrow_batches()) as batch:
        assert numbers(pa.record_batch(batch)) == [0, 1, 2]
        assert pa.RecordBatchReader.from_stream(batch).read_all().num_rows == 3


def test_asyncio_consumers_do_the_same(metaq_broker, topic):
    """`async for` and `async with`; who breaks off has not finished."""
    fill(metaq_broker.namesrv, topic, 300)

    async def main():
        seen = []
        async with aio.Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
            async for batch in consumer.arrow_batches(rows=100):
                async with batch:
                    seen += numbers(batch.data)
                if len(seen) == 300:
                    break
        return seen

    assert sorted(asyncio.run(main())) == list(range(300))
