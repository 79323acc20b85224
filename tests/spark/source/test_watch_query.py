"""Queries in Spark whose brokers come and go: two real brokers, killed -9 and started again under producers."""

from __future__ import annotations

from collections import Counter

import pytest

import metaq
from metaq.errors import MetaqError
from metaq.testing import Cluster
from tests.support import PATIENCE, WHOLE_PATIENCE, eventually

pytestmark = [pytest.mark.all, pytest.mark.spark_all, pytest.mark.spark]


@pytest.fixture
def brokers():
    with Cluster(brokers=2) as running:
        yield running


def make(cluster, topic: str, queues: int) -> None:
    with metaq.admin.Admin(cluster.namesrv) as admin:
        admin.create_topic(topic, queues=queues)

    def there() -> bool:
        try:
            with metaq.Producer(cluster.namesrv) as producer:
                return len(producer.queues(topic)) == queues * sum(one.alive for one in cluster.brokers)
        except MetaqError:
            return False

    eventually(there, PATIENCE, what=f"queues of {topic}")


def send(cluster, topic: str, count: int, name: str) -> None:
    with metaq.Producer(cluster.namesrv, timeout=PATIENCE) as producer:
        queues = producer.queues(topic)
        sent = [producer.submit(topic, f"{name} {i}".encode(), queue=queues[i % len(queues)]) for i in range(count)]
        for future in sent:
            future.result(PATIENCE)


def stored(cluster, *topics: str) -> Counter:
    found: Counter = Counter()
    for topic in topics:
        with metaq.Reader(cluster.namesrv, topic, stop_at_end=True) as reader:
            found.update((*message.queue, message.queue_offset, message.body) for message in reader)
    return found


def rows(spark, folder) -> Counter:
    read = spark.read.parquet(str(folder)).collect()
    return Counter((row.topic, row.broker, row.queue_id, row.queue_offset, bytes(row.body)) for row in read)


def start(spark, cluster, folder, **options):
    chosen = {"nameServers": cluster.namesrv, "startingOffsets": "earliest", "retrySeconds": "2", **options}
    frame = spark.readStream.format("metaq").options(**chosen).load()
    writer = frame.select("topic", "broker", "queue_id", "queue_offset", "body").writeStream.format("parquet")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "out")).start()


def count(query) -> int:
    """Rows of the latest hundred batches."""
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def reaches(query, wanted: int) -> None:
    eventually(lambda: count(query) >= wanted or query.exception(), WHOLE_PATIENCE, what=f"{wanted} rows")
    assert query.exception() is None


def test_a_query_goes_on_without_a_broker_and_takes_the_rest_later(spark, brokers, tmp_path):
    """One is killed: the other's rows arrive. More queues and a topic of the pattern join meanwhile, then the broker with its
    part of them. In the end each stored message is a row, once.
    """
    make(brokers, "going-a", 2)
    send(brokers, "going-a", 200, "early")
    query = start(spark, brokers, tmp_path, subscribePattern="going-*")
    try:
        reaches(query, 200)
        brokers.brokers[1].kill()
        make(brokers, "going-a", 4)
        make(brokers, "going-b", 1)
        send(brokers, "going-a", 100, "alone")
        send(brokers, "going-b", 50, "new topic")
        reaches(query, 350)
        brokers.brokers[1].start()
        brokers.wait_registered()
        make(brokers, "going-a", 4)
        make(brokers, "going-b", 1)
        send(brokers, "going-a", 100, "together")
        send(brokers, "going-b", 50, "together")
        reaches(query, 500)
        for broker in brokers.brokers:  # Under whatever batch runs.
            broker.kill()
            broker.start()
        brokers.wait_registered()
        send(brokers, "going-a", 100, "last")
        reaches(query, 600)
    finally:
        query.stop()
    wanted = stored(brokers, "going-a", "going-b")
    assert len(wanted) >= 600
    assert rows(spark, tmp_path / "out") == wanted


def test_a_query_that_does_not_wait_fails_by_name_and_goes_on_from_its_checkpoint(spark, brokers, tmp_path):
    make(brokers, "failing", 1)
    send(brokers, "failing", 20, "early")
    query = start(spark, brokers, tmp_path, subscribe="failing", brokerAway="fail")
    try:
        reaches(query, 20)
        brokers.brokers[1].kill()
        failure = eventually(query.exception, WHOLE_PATIENCE, what="the query fails")
        assert "the broker broker-1 is away" in str(failure)
        assert "failing@broker-1:0" in str(failure)
    finally:
        query.stop()
    brokers.brokers[1].start()
    brokers.wait_registered()
    send(brokers, "failing", 20, "later")
    again = start(spark, brokers, tmp_path, subscribe="failing", brokerAway="fail")
    try:
        reaches(again, 20)
    finally:
        again.stop()
    assert rows(spark, tmp_path / "out") == stored(brokers, "failing")
