"""`format("metaq")` in Spark over a RocketMQ 4.9.7: source and sink, limits, and its broker killed -9 under them."""

from __future__ import annotations

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import metaq
from metaq.model import offsets
from tests.interop.servers import RocketmqServer
from tests.spark.running import finished
from tests.support import PATIENCE, WHOLE_PATIENCE, eventually

pytestmark = [pytest.mark.all, pytest.mark.spark_all, pytest.mark.spark]
_names = itertools.count()
MESSAGES = 3000


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory):
    """Its name server is another's: it outlives the broker, as in a cluster."""
    folder = tmp_path_factory.mktemp("rocketmq")
    names = RocketmqServer(folder / "names")
    names.start_namesrv()
    broker = RocketmqServer(folder / "broker", namesrv=names.namesrv)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
        names.kill()


@pytest.fixture
def topic():
    return f"spark_rocketmq_{next(_names)}"


def send(server, topic, count, prefix=b"") -> list[str]:
    bodies = [b"%s%d" % (prefix, i) for i in range(count)]
    with metaq.Producer(server.namesrv, timeout=PATIENCE) as producer:
        for future in [producer.submit(topic, body, tag="odd" if i % 2 else "even") for i, body in enumerate(bodies)]:
            future.result(PATIENCE)
    return [body.decode() for body in bodies]


def stored(server, topic) -> Counter:
    with metaq.Reader(server.namesrv, topic, stop_at_end=True) as reader:
        return Counter(message.body.decode() for message in reader)


def options(server, topic, **more):
    return {"nameServers": server.namesrv, "subscribe": topic, **more}


def bodies(frame) -> Counter:
    return Counter(bytes(row.body).decode() for row in frame.select("body").collect())


def test_a_batch_read_has_every_message_once(spark, rocketmq, topic):
    """In any number of partitions; chosen by tag at the broker; between offsets."""
    sent = send(rocketmq, topic, MESSAGES)
    reader = spark.read.format("metaq").options(**options(rocketmq, topic, minPartitions=9))
    assert bodies(reader.load()) == Counter(sent)
    assert bodies(reader.option("tags", "odd").load()) == Counter(sent[1::2])
    frame = spark.read.format("metaq").options(**options(rocketmq, topic)).load()
    rows = frame.select("broker", "queue_id", "queue_offset").collect()
    assert len({tuple(row) for row in rows}) == MESSAGES
    first = min((row.queue_id, row.broker) for row in rows)
    queue = metaq.MessageQueue(topic, first[1], first[0])
    start, end = (offsets.to_text({queue: place}) for place in (10, 25))
    assign = f'{{"{topic}": {{"{queue.broker}": [{queue.queue_id}]}}}}'
    reader = spark.read.format("metaq").options(nameServers=rocketmq.namesrv, assign=assign)
    between = reader.option("startingOffsets", start).option("endingOffsets", end).load()
    assert sorted(row.queue_offset for row in between.collect()) == list(range(10, 25))


def test_a_stream_heeds_its_limits_and_goes_on_from_its_checkpoint(spark, rocketmq, topic, tmp_path):
    """What is there now, in batches that are never above the limit; then what has come since."""
    sent = send(rocketmq, topic, MESSAGES)
    chosen = options(rocketmq, topic, startingOffsets="earliest", maxOffsetsPerTrigger="900")

    def run():
        frame = spark.readStream.format("metaq").options(**chosen).load().select("body")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.option("path", str(tmp_path / "out")).trigger(availableNow=True).start()

    first = finished(run, WHOLE_PATIENCE)
    taken = [progress["numInputRows"] for progress in first.recentProgress]
    assert sum(taken) == MESSAGES
    assert max(taken) <= 900
    sent += send(rocketmq, topic, 100, b"later ")
    finished(run, WHOLE_PATIENCE)
    assert bodies(spark.read.parquet(str(tmp_path / "out"))) == Counter(sent)


def test_its_broker_killed_under_a_stream_loses_and_doubles_nothing(spark, rocketmq, topic, tmp_path):
    """kill -9 between micro-batches and in one, twice, under a producer: source to files, each stored message once."""
    sent = send(rocketmq, topic, 200)
    chosen = options(rocketmq, topic, startingOffsets="earliest", maxOffsetsPerTrigger="150", retrySeconds="3")
    frame = spark.readStream.format("metaq").options(**chosen).load().select("body")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.option("path", str(tmp_path / "out")).start()

    def rows() -> int:
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    try:
        for life in range(2):
            eventually(lambda: rows() > 0 or query.exception(), WHOLE_PATIENCE, what="the first rows")
            with ThreadPoolExecutor(1) as pool:
                more = pool.submit(send, rocketmq, topic, 500, b"life %d " % life)
                sent += more.result(WHOLE_PATIENCE)
            rocketmq.kill()
            rocketmq.start()
        sent += send(rocketmq, topic, 100, b"last ")
        wanted = sum(stored(rocketmq, topic).values())
        eventually(lambda: rows() >= wanted or query.exception(), WHOLE_PATIENCE, what="all rows")
        assert query.exception() is None
    finally:
        query.stop()
    found = bodies(spark.read.parquet(str(tmp_path / "out")))
    assert found == stored(rocketmq, topic)
    assert set(found) == set(sent)


def test_the_sink_delivers_at_least_once_though_its_broker_is_killed(spark, rocketmq, topic, tmp_path):
    """A stream from topic to topic; kill -9 of the broker in it. Nothing is missing at the end."""
    target = f"{topic}_copy"
    sent = send(rocketmq, topic, 1000)
    send(rocketmq, target, 1, b"there ")
    chosen = options(rocketmq, topic, startingOffsets="earliest", maxOffsetsPerTrigger="200")
    frame = spark.readStream.format("metaq").options(**chosen).load().select("body", "tag")
    writer = frame.writeStream.format("metaq").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.options(nameServers=rocketmq.namesrv, topic=target, delivery="at-least-once")
    query = writer.start()
    try:
        eventually(lambda: len(stored(rocketmq, target)) > 200 or query.exception(), WHOLE_PATIENCE, what="copies")
        rocketmq.kill()
        rocketmq.start()
        eventually(
            lambda: set(sent) <= set(stored(rocketmq, target)) or query.exception(), WHOLE_PATIENCE, what="all copies"
        )
        assert query.exception() is None
    finally:
        query.stop()
    assert set(stored(rocketmq, target)) - {"there 0"} == set(sent)


def test_exactly_once_into_a_rocketmq_is_refused_by_name(spark, rocketmq, topic):
    """With the way that works there."""
    frame = spark.createDataFrame([("x",)], "body string")
    with pytest.raises(Exception, match="at-least-once"):
        frame.write.format("metaq").options(nameServers=rocketmq.namesrv, topic=topic).mode("append").save()
