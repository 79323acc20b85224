"""Tables in: `send_arrow` against our broker, and against scripted ones that refuse or fail."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import defaultdict

import pytest

import metaq
from metaq import Producer, Reader, aio
from metaq.errors import ClientClosed, ConfigError, InvalidMessage, RowsNotSent
from metaq.model import SendStatus
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import reply
from tests.client.cluster import FakeCluster
from tests.support import PATIENCE

pa = pytest.importorskip("pyarrow")
from metaq.client.producing import arrow_sending  # noqa: E402  needs pyarrow

_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"arrow_sent_{os.getpid()}_{next(_names)}"


def read(namesrv, topic, **more):
    with Reader(namesrv, topic, stop_at_end=True, **more) as reader:
        return list(reader)


def bodies(count, size=1):
    return pa.table({"body": pa.array([b"%*d" % (size, number) for number in range(count)])})


def test_every_row_of_a_table_arrives_once_whatever_its_chunks(metaq_broker, topic, monkeypatch):
    """Over several slices, requests and chunks, with every kind of column."""
    monkeypatch.setattr(arrow_sending, "SLICE_ROWS", 300)
    monkeypatch.setattr(arrow_sending, "BATCH_BYTES", 4096)
    count = 2000
    one = pa.table(
        {
            "body": [b"%d" % number for number in range(count)],
            "tag": [None if number % 3 else "paid" for number in range(count)],
            "keys": [[f"k{number}"] for number in range(count)],
            "properties": pa.array(
                [[("n", str(number))] for number in range(count)], pa.map_(pa.string(), pa.string())
            ),
            "flag": list(range(count)),
        }
    )
    table = pa.concat_tables([one.slice(0, 7), one.slice(7)])
    with Producer(metaq_broker.namesrv) as producer:
        sent = producer.send_arrow(table, topic)
    assert sent.rows == count
    assert sent.requests > count // 300
    assert sent.statuses == {SendStatus.SEND_OK: count}
    found = {int(message.body): message for message in read(metaq_broker.namesrv, topic)}
    assert len(found) == count
    for number, message in found.items():
        assert message.tag == (None if number % 3 else "paid")
        assert message.keys == (f"k{number}",)
        assert message.properties["n"] == str(number)
        assert message.flag == number
    assert len({message.message_id for message in found.values()}) == count


@pytest.mark.parametrize("made", ["batch", "reader", "stream"])
def test_batches_readers_and_streams_of_others_are_tables_too(metaq_broker, topic, made):
    """`__arrow_c_stream__` is what frames of Polars, DuckDB and pandas have."""

    class Frame:
        def __arrow_c_stream__(self, requested_schema=None):
            return bodies(50).__arrow_c_stream__(requested_schema)

    data = {
        "batch": bodies(50).to_batches()[0],
        "reader": bodies(50).to_reader(max_chunksize=7),
        "stream": Frame(),
    }[made]
    with Producer(metaq_broker.namesrv) as producer:
        assert producer.send_arrow(data, topic).rows == 50
    assert sorted(int(message.body) for message in read(metaq_broker.namesrv, topic)) == list(range(50))


def test_views_and_large_text_are_taken(metaq_broker, topic):
    """As Polars and DuckDB export them."""
    table = pa.table(
        {
            "body": pa.array([b"a" * 20, b"b"], pa.binary_view()),
            "tag": pa.array(["x" * 20, None], pa.string_view()),
            "keys": pa.array(["k", "l"], pa.large_string()),
        }
    )
    with Producer(metaq_broker.namesrv) as producer:
        producer.send_arrow(table, topic)
    found = {message.body: message for message in read(metaq_broker.namesrv, topic)}
    assert found[b"a" * 20].tag == "x" * 20
    assert found[b"b"].keys == ("l",)


def test_rows_of_a_key_keep_their_order_in_the_queue_of_that_key(metaq_broker, topic, monkeypatch):
    """The queue is the one that `send(ordering_key=)` chooses; rows that name a queue get it; the others go round."""
    monkeypatch.setattr(arrow_sending, "BATCH_BYTES", 2048)
    with Producer(metaq_broker.namesrv) as producer:
        producer.send_arrow(bodies(1), topic)
        queues = {key: producer.send(topic, b"first", ordering_key=key).queue for key in "abcd"}
        count = 1200
        table = pa.table(
            {
                "body": [b"%d" % number for number in range(count)],
                "ordering_key": ["abcd"[number % 4] if number % 3 else None for number in range(count)],
                "queue_id": pa.array([2 if not number % 6 else None for number in range(count)], pa.int32()),
            }
        )
        assert producer.send_arrow(table, topic).rows == count
    by_key = defaultdict(list)
    for message in read(metaq_broker.namesrv, topic):
        if message.body in {b"first", b"0"}:
            continue
        number = int(message.body)
        if not number % 6:
            assert message.queue_id == 2
            by_key["queue 2"].append(number)
        elif number % 3:
            key = "abcd"[number % 4]
            assert message.queue == queues[key]
            by_key[key].append(number)
    assert sum(map(len, by_key.values())) == 999
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_rows_may_name_their_topics(metaq_broker, topic):
    """Those that name none go to the one named beside."""
    with Producer(metaq_broker.namesrv) as producer:
        producer.send_arrow(pa.table({"body": [b"1", b"2"], "topic": [f"{topic}_x", None]}), topic)
    assert [message.body for message in read(metaq_broker.namesrv, topic)] == [b"2"]
    assert [message.body for message in read(metaq_broker.namesrv, f"{topic}_x")] == [b"1"]


def test_namespaces_are_honoured(metaq_broker, topic):
    """Topic and property, as of a message that `send` sends."""
    with Producer(metaq_broker.namesrv, namespace="shop") as producer:
        producer.send_arrow(pa.table({"body": [b"1", b"2"], "tag": ["a", None]}), topic)
        producer.send_arrow(pa.table({"body": [b"3"]}), topic)
    found = read(metaq_broker.namesrv, f"shop%{topic}")
    assert {message.body: message.tag for message in found} == {b"1": "a", b"2": None, b"3": None}
    assert {message.properties["INSTANCE_ID"] for message in found} == {"shop"}


def test_a_body_larger_than_a_batch_goes_alone(metaq_broker, topic):
    """And the rows around it in batches."""
    big = b"x" * (arrow_sending.BATCH_BYTES + 1)
    with Producer(metaq_broker.namesrv) as producer:
        assert producer.send_arrow(pa.table({"body": [b"1", big, b"2"]}), topic).rows == 3
    assert sorted(len(message.body) for message in read(metaq_broker.namesrv, topic)) == [1, 1, len(big)]


@pytest.mark.parametrize(
    ("table", "error", "words"),
    [
        (pa.table({"body": [b"1"], "delay_level": [0]}), ConfigError, "delay_level.*cannot be delayed"),
        (pa.table({"body": [b"1"], "price": [0]}), ConfigError, "no column 'price'"),
        (pa.table({"body": [1]}), ConfigError, "body is binary or string, not int64"),
        (pa.table({"tag": ["a"]}), ConfigError, "no column body"),
        (pa.table({"body": [b"1", None]}), InvalidMessage, "row 1: body is null"),
        (pa.table({"body": [b"1", b"x" * 101]}), InvalidMessage, "row 1: the body has 101 bytes, the limit is 100"),
        (pa.table({"body": [b"1"], "tag": ["a|b"]}), InvalidMessage, "row 0"),
        (pa.table({"body": [b"1"], "keys": ["k" * 40000]}), InvalidMessage, "row 0: .*exceed"),
        (pa.table({"body": [b"1"], "queue_id": [99]}), InvalidMessage, "row 0: the queue .* cannot be sent to"),
        ([b"1"], TypeError, "cannot send a list as rows"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_said_before_anything_is(table, error, words):
    """No request reaches the broker."""
    with FakeCluster() as cluster, Producer(cluster.namesrv, max_message_bytes=100) as producer:
        with pytest.raises(error, match=words):
            producer.send_arrow(table, "orders")
        assert not cluster.count(RequestCode.SEND_BATCH_MESSAGE)
        assert not cluster.count(RequestCode.SEND_MESSAGE_V2)


@pytest.mark.parametrize(
    ("timeout", "error"), [(0, ConfigError), (-1, ConfigError), ("3", TypeError), (True, TypeError)]
)
def test_a_timeout_that_is_none_is_refused(timeout, error):
    """Before anything is sent."""
    with FakeCluster() as cluster, Producer(cluster.namesrv) as producer, pytest.raises(error, match="timeout"):
        producer.send_arrow(bodies(1), "orders", timeout=timeout)


def test_what_the_source_of_the_rows_raises_is_told_with_what_was_sent(metaq_broker, topic):
    """As any other fault."""

    def batches():
        yield bodies(10).to_batches()[0]
        raise OSError("the disk is gone")

    reader = pa.RecordBatchReader.from_batches(bodies(1).schema, batches())
    with Producer(metaq_broker.namesrv) as producer, pytest.raises(RowsNotSent, match="the disk is gone") as caught:
        producer.send_arrow(reader, topic)
    assert (caught.value.acknowledged, caught.value.resume_at) == (10, 10)
    assert isinstance(caught.value.cause, OSError)


def test_no_rows_are_sent_at_once(metaq_broker, topic):
    """Without a request, and so without a topic."""
    with Producer(metaq_broker.namesrv) as producer:
        sent = producer.send_arrow(pa.table({"body": pa.array([], pa.binary())}), topic)
    assert (sent.rows, sent.requests, sent.statuses) == (0, 0, {})


def test_a_producer_that_serializes_or_is_closed_refuses(metaq_broker, topic):
    """The column body is bytes already."""
    with (
        Producer(metaq_broker.namesrv, serialize="json") as producer,
        pytest.raises(ConfigError, match="serialize"),
    ):
        producer.send_arrow(bodies(1), topic)
    with pytest.raises(ClientClosed):
        producer.send_arrow(bodies(1), topic)


def test_a_bad_row_after_good_ones_says_what_is_acknowledged(metaq_broker, topic, monkeypatch):
    """Sending again from `resume_at` on gives every row, and none twice here."""
    monkeypatch.setattr(arrow_sending, "SLICE_ROWS", 10)
    rows = [b"%d" % number for number in range(100)]
    rows[57] = b""
    with Producer(metaq_broker.namesrv) as producer:
        with pytest.raises(
            RowsNotSent, match=r"50 rows are acknowledged.*row 7: body is empty \(counted from row 50"
        ) as caught:
            producer.send_arrow(pa.table({"body": rows}), topic)
        assert (caught.value.acknowledged, caught.value.resume_at) == (50, 50)
        assert isinstance(caught.value.__cause__, InvalidMessage)
        rows[57] = b"57"
        producer.send_arrow(pa.table({"body": rows}).slice(caught.value.resume_at), topic)
    assert sorted(int(message.body) for message in read(metaq_broker.namesrv, topic)) == list(range(100))


def test_what_a_broker_refuses_is_told_with_the_rows_that_are_acknowledged(monkeypatch):
    """The first requests are taken, one is refused: nothing new is sent behind it."""
    monkeypatch.setattr(arrow_sending, "BATCH_BYTES", 1000)
    monkeypatch.setattr(arrow_sending, "UNDER_WAY_BYTES_MAX", 1000)
    refused = []

    with FakeCluster() as cluster, Producer(cluster.namesrv) as producer:
        taken = itertools.count()

        def answer(session, command):
            if next(taken) < 5:
                return NotImplemented
            refused.append(command)
            return reply(command, ResponseCode.NO_PERMISSION, remark="not for you")

        cluster.script[RequestCode.SEND_BATCH_MESSAGE] = answer
        with pytest.raises(RowsNotSent, match="not for you") as caught:
            producer.send_arrow(bodies(2000, 100), "orders")
    assert 0 < caught.value.acknowledged < 100
    assert caught.value.resume_at == 0 or caught.value.resume_at <= caught.value.acknowledged
    assert 1 <= len(refused) <= 12  # Tries of the few requests under way, of some 300.


def test_rows_without_queue_or_key_go_elsewhere_when_a_broker_fails_those_that_name_a_queue_do_not():
    """As `send` has it."""
    with FakeCluster(brokers=2) as cluster, Producer(cluster.namesrv) as producer:

        def answer(session, command):
            return (
                NotImplemented if session.broker else reply(command, ResponseCode.SYSTEM_ERROR, remark="disk is broken")
            )

        cluster.script[RequestCode.SEND_BATCH_MESSAGE] = cluster.script[RequestCode.SEND_MESSAGE_V2] = answer
        for _ in range(4):
            assert producer.send_arrow(bodies(10), "orders").rows == 10
        named = (
            bodies(10)
            .append_column("queue_id", pa.array([1] * 10))
            .append_column("broker", pa.array(["broker-a"] * 10))
        )
        with pytest.raises(RowsNotSent, match="disk is broken") as caught:
            producer.send_arrow(named, "orders")
        assert (caught.value.acknowledged, caught.value.resume_at) == (0, 0)


def test_a_queue_id_at_two_brokers_needs_the_broker():
    """Before anything is sent."""
    with FakeCluster(brokers=2) as cluster, Producer(cluster.namesrv) as producer:
        with pytest.raises(InvalidMessage, match="row 0: queue_id 1 of topic orders is there at 2 brokers"):
            producer.send_arrow(bodies(1).append_column("queue_id", pa.array([1])), "orders")
        assert not cluster.stored


def test_bytes_under_way_are_bounded(metaq_broker, topic, monkeypatch):
    """Whatever the table's size: the producer's limit holds, with `when_full="raise"` too."""
    with Producer(metaq_broker.namesrv, max_pending_bytes=400_000, when_full="raise") as producer:
        most = []
        original = producer._accumulator.send_filled

        def watched(*arguments):
            original(*arguments)
            most.append(producer._accumulator._pending_bytes)

        monkeypatch.setattr(producer._accumulator, "send_filled", watched)
        assert producer.send_arrow(bodies(20_000, 100), topic).rows == 20_000
    assert max(most) <= 400_000 + 2 * arrow_sending.BATCH_BYTES


def test_asyncio_sends_rows_off_its_loop_and_stops_when_cancelled(metaq_broker, topic):
    """The loop goes on while the rows are read; a cancelled one sends no more."""
    import threading

    gate, reached = threading.Event(), threading.Event()

    def slow():
        yield bodies(10).to_batches()[0]
        reached.set()
        gate.wait(PATIENCE)
        yield bodies(10).to_batches()[0]

    async def main():
        async with aio.Producer(metaq_broker.namesrv) as producer:
            assert (await producer.send_arrow(bodies(1000), topic)).rows == 1000
            reader = pa.RecordBatchReader.from_batches(bodies(1).schema, slow())
            task = asyncio.create_task(producer.send_arrow(reader, topic))
            await asyncio.to_thread(reached.wait, PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.set()

    asyncio.run(main())
    assert len(read(metaq_broker.namesrv, topic)) == 1010


def test_rows_not_sent_is_public():
    """With what a program needs to go on."""
    error = metaq.RowsNotSent(ClientClosed("over"), 3, 2)
    assert (error.acknowledged, error.resume_at, error.retriable) == (3, 2, False)
