"""Writing to topics from Spark, without faults."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

import metaq
from metaq.errors import ConfigError
from metaq.spark.sink.settings import SinkOptions
from metaq.spark.source.settings import markdown_table
from tests.support import PATIENCE, ROOT, eventually

pytestmark = pytest.mark.spark
_names = itertools.count()


@pytest.fixture
def topic():
    return f"spark_sink_{next(_names)}"


def read(broker, topic):
    with metaq.Reader(broker.namesrv, topic, stop_at_end=True) as reader:
        return list(reader)


def write(frame, broker, topic, **options):
    frame.write.format("metaq").options(nameServers=broker.namesrv, topic=topic, **options).mode("append").save()


@pytest.mark.parametrize("delivery", ["effectively-once", "at-least-once"])
def test_every_column_arrives(spark, metaq_broker, topic, delivery):
    """Rows become messages."""
    with metaq.Producer(
        metaq_broker.namesrv
    ) as producer:  # While a topic is made its tasks may see it before and after.
        producer.send(topic, b"there")
    frame = spark.createDataFrame(
        [
            ("one", "a", ["k1", "k2"], {"colour": "red"}, 7, "customer"),
            ("two", None, [], {}, None, "customer"),
            ("three", "b", None, None, 0, None),
        ],
        "body string, tag string, keys array<string>, properties map<string,string>, flag int, ordering_key string",
    )
    write(frame, metaq_broker, topic, delivery=delivery)
    found = {message.body: message for message in read(metaq_broker, topic)}
    one, two = found[b"one"], found[b"two"]
    assert (one.tag, one.keys, one.properties["colour"], one.flag) == ("a", ("k1", "k2"), "red", 7)
    assert (two.tag, two.keys, two.flag) == (None, (), 0)
    assert one.queue == two.queue
    assert len({message.message_id for message in found.values()}) == 4


def test_rows_name_their_topics_and_queues(spark, metaq_broker, topic):
    """The column beats the option; a queue id is heeded."""
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(topic, b"there")
        producer.send(f"{topic}_other", b"there")
    frame = spark.createDataFrame(
        [("1", f"{topic}_other", 2), ("2", None, 3)], "body string, topic string, queue_id int"
    )
    write(frame, metaq_broker, topic)
    assert [(m.body, m.queue.queue_id) for m in read(metaq_broker, topic) if m.body != b"there"] == [(b"2", 3)]
    assert [(m.body, m.queue.queue_id) for m in read(metaq_broker, f"{topic}_other") if m.body != b"there"] == [
        (b"1", 2)
    ]


def test_nothing_is_seen_of_a_write_one_of_whose_rows_is_wrong(spark, metaq_broker, topic):
    """All or none, also of a batch write without a number; the row is named."""
    frame = spark.range(5000).selectExpr("if(id = 4321, '', cast(id as string)) as body")
    with pytest.raises(Exception, match=r"row \d+: body is empty"):
        write(frame, metaq_broker, topic)
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(topic, b"after")
    assert [message.body for message in read(metaq_broker, topic)] == [b"after"]


def test_a_numbered_write_is_done_once(spark, metaq_broker, topic):
    """The same version again adds nothing, an older one is refused, a newer one is written."""
    frame = spark.range(10).selectExpr("cast(id as string) as body")
    for version in (0, 0, 3):
        write(frame, metaq_broker, topic, txnAppId=topic, txnVersion=version)
    with pytest.raises(Exception, match="StaleBatch"):
        write(frame, metaq_broker, topic, txnAppId=topic, txnVersion=2)
    write(frame, metaq_broker, topic, txnAppId=topic, txnVersion=2, sinkId="other")
    assert set(Counter(message.body for message in read(metaq_broker, topic)).values()) == {3}


def test_large_rows_and_many_of_them(spark, metaq_broker, topic):
    """More than a task keeps before it stages."""
    frame = spark.range(30).selectExpr("concat(cast(id as string), repeat('x', 700000)) as body")
    write(frame, metaq_broker, topic)
    assert len({message.body for message in read(metaq_broker, topic)}) == 30


@pytest.mark.parametrize("size", [1 << 21, 1 << 22])
def test_a_row_as_large_as_a_message_may_be(spark, metaq_broker, topic, size):
    """In its place between small ones; a byte more than its broker takes is refused with both numbers, and nothing is seen."""
    one = f"if(id = 3, repeat('x', {size}), cast(id as string))"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(topic, b"there")
    write(spark.range(0, 7, 1, 1).selectExpr(f"{one} as body", "'k' as ordering_key"), metaq_broker, topic)
    found = [message.body for message in read(metaq_broker, topic) if message.body != b"there"]
    assert found == [b"0", b"1", b"2", b"x" * size, b"4", b"5", b"6"]
    with pytest.raises(
        Exception, match=r"row 0: a message .* has a body of 4194305 bytes, the limit is 4194304: raise max"
    ):
        write(spark.range(1).selectExpr(f"repeat('x', {(1 << 22) + 1}) as body"), metaq_broker, topic)
    assert len(read(metaq_broker, topic)) == 8


def test_empty_bodies_are_written_where_that_is_said(spark, metaq_broker, topic):
    """What came from elsewhere with an empty body may go on so."""
    frame = spark.range(0, 3, 1, 1).selectExpr("if(id = 1, '', cast(id as string)) as body", "'k' as ordering_key")
    write(frame, metaq_broker, topic, emptyBodies="true")
    assert [message.body for message in read(metaq_broker, topic)] == [b"0", b"", b"2"]


def test_delays_need_at_least_once(spark, metaq_broker, topic):
    """What a transaction delivers is not delayed; sent at once it is."""
    frame = spark.createDataFrame([("later", 1), ("now", 0)], "body string, delay_level int")
    with pytest.raises(Exception, match="delivery=at-least-once"):
        write(frame, metaq_broker, topic)
    write(frame, metaq_broker, topic, delivery="at-least-once")
    eventually(lambda: {message.body for message in read(metaq_broker, topic)} == {b"later", b"now"}, PATIENCE)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "x"}, "no option subscribe"),
        ({"delivery": "exactly-once"}, "delivery"),
        ({"txnAppId": "x"}, "belong together"),
        ({"sinkId": "a b"}, "sinkId"),
        ({"onlyGroup": "a b"}, "onlyGroup"),
        ({"onlyGroup": "g", "delivery": "at-least-once"}, "onlyGroup needs"),
        ({"emptyBodies": "true", "delivery": "at-least-once"}, "emptyBodies needs"),
        ({"topic": "a b"}, "topic"),
    ],
)
def test_wrong_options_are_refused(options, text):
    """Each text names the option."""
    with pytest.raises(ConfigError, match=text):
        SinkOptions.of({"nameServers": "x:1", **options})


def test_what_spark_hands_on_of_its_own_options_is_let_through():
    """The query's name and checkpoint are none of the sink's business."""
    of_spark = {"queryName": "copies", "checkpointLocation": "x", "path": "y"}
    assert SinkOptions.of({"nameServers": "x:1", **of_spark}) == SinkOptions.of({"nameServers": "x:1"})


def test_what_cannot_be_written_is_refused_before_anything_is(spark, metaq_broker, topic):
    """Columns that no message has, and what no topic can do."""
    frame = spark.createDataFrame([("a", 1)], "body string, amount int")
    with pytest.raises(Exception, match="no column 'amount'"):
        write(frame, metaq_broker, topic)
    with pytest.raises(Exception, match="cannot be overwritten"):
        frame.select("body").write.format("metaq").options(nameServers=metaq_broker.namesrv, topic=topic).mode(
            "overwrite"
        ).save()
    with pytest.raises(Exception, match="there is no broker nobody"):
        write(frame.select("body"), metaq_broker, topic, coordinator="nobody")


def test_the_docs_list_the_options_as_they_are():
    """docs/spark.md has the table that the options themselves make."""
    assert markdown_table(SinkOptions) in (ROOT / "docs" / "spark.md").read_text()
