"""The Spark source's way of reading, and writing, against our broker and RocketMQ's own, which gives 32 messages a pull."""

from __future__ import annotations

import datetime as dt
import os

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan
from pyspark.sql.types import BinaryType, StructField, StructType

from metaq import Producer, Reader
from metaq.admin import Admin
from metaq.errors import NotSupported
from metaq.model.offsets import Slice
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.cluster.courier import Courier
from metaq.spark.data_source import MetaqDataSource, MetaqStreamReader
from metaq.spark.sink.settings import SinkOptions
from metaq.spark.sink.sink import MetaqWriter
from metaq.spark.sink.task import SentRows
from metaq.spark.source.fetch import FetchSettings, read_slice
from metaq.spark.source.settings import SourceOptions
from metaq.spark.source.slicing import slices_between
from tests.interop.servers import MetaqServer, Server
from tests.support import PATIENCE, eventually

TOPIC, GROUP = "spark_fetch", "spark_fetch_progress"
MESSAGES = 3000
NOTHING, BODY = StructType([]), StructType([StructField("body", BinaryType())])


@pytest.fixture
def client(server: Server):
    asking = ClusterClient(server.namesrv, retry_seconds=10.0)
    yield asking
    asking.close()


def test_slices_positions_and_progress(server: Server, client: ClusterClient) -> None:
    """Every message of every queue once, in order; offsets by time; progress where `metaq group show` finds it."""
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        futures = [producer.submit(TOPIC, b"%d" % i, tag="t", keys=[f"k{i}"]) for i in range(MESSAGES)]
        producer.send(TOPIC, b"large " * 2000)
        stored = {
            (future.result(PATIENCE).queue, future.result(PATIENCE).offset): b"%d" % i
            for i, future in enumerate(futures)
        }
    queues = client.queues([TOPIC])
    ends = eventually(lambda: found if sum((found := client.ends(queues)).values()) > MESSAGES else None)
    starts = client.starts(queues)
    got: dict[tuple[object, int], bytes] = {}
    for wanted in slices_between(starts, ends):
        offset = wanted.start
        for decoded in read_slice(client, wanted, FetchSettings()):
            for row in decoded.to_batch().to_pylist():
                assert row["queue_offset"] == offset
                offset += 1
                got[wanted.queue, row["queue_offset"]] = row["body"]
        assert offset == wanted.end
    assert len(got) == MESSAGES + 1
    assert stored.items() <= got.items()
    assert b"large " * 2000 in got.values()

    assert client.at(queues, 0, GROUP) == starts
    middle = {queue: ends[queue] // 2 for queue in queues}
    client.report(GROUP, middle)
    with Admin(server.namesrv) as admin:
        eventually(lambda: {one.queue: one.consumed for one in admin.group_progress(GROUP).queues} == middle)


def test_a_slice_in_the_middle(server: Server, client: ClusterClient) -> None:
    """Neither a row before it nor one behind it."""
    queue = client.queues([TOPIC])[0]
    end = client.ends([queue])[queue]
    wanted = Slice(queue, end // 3, end // 2)
    offsets = [int(i) for decoded in read_slice(client, wanted, FetchSettings()) for i in decoded.queue_offsets]
    assert offsets == list(range(end // 3, end // 2))


def test_filtered_slices(server: Server, client: ClusterClient) -> None:
    """By tags, with one of the same hash beside them: a broker lets that through."""
    topic = "spark_fetch_tags"
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        for i in range(100):
            producer.send(topic, b"%d" % i, tag=("Aa", "BB", "other")[i % 3])
    queues = client.queues([topic])
    ends = eventually(lambda: found if sum((found := client.ends(queues)).values()) == 100 else None)
    chosen = SourceOptions.of({"nameServers": server.namesrv, "subscribe": topic, "tags": "BB"})
    bodies = [
        row["body"]
        for wanted in slices_between(client.starts(queues), ends)
        for decoded in read_slice(client, wanted, chosen.fetch)
        for row in decoded.to_batch().to_pylist()
    ]
    assert sorted(bodies) == sorted(b"%d" % i for i in range(1, 100, 3))


def test_the_sink_writes_exactly_to_ours_alone_and_at_least_once_to_both(server: Server) -> None:
    """A RocketMQ has no transactions of several messages: it is refused by name, with the way that works."""
    topic, schema = "spark_sink_interop", StructType([StructField("body", BinaryType())])
    options = {"nameServers": server.namesrv, "topic": topic}
    if isinstance(server, MetaqServer):
        assert MetaqWriter(SinkOptions.of(options), schema).transaction
    else:
        with pytest.raises(NotSupported, match="at-least-once"):
            MetaqWriter(SinkOptions.of(options), schema)
    rows = SentRows(Courier(server.namesrv, 10), SinkOptions.of(options | {"delivery": "at-least-once"}))
    bodies = [b"%d" % i for i in range(5000)]
    rows.write([pa.record_batch({"body": bodies, "tag": ["t"] * 5000, "keys": [[f"k{i}"] for i in range(5000)]})])
    rows.write([pa.record_batch({"body": [b"later"], "delay_level": [1]})])
    rows.finish()
    found: list[tuple[bytes, str | None, tuple[str, ...]]] = []

    def arrived() -> bool:
        with Reader(server.namesrv, topic, stop_at_end=True) as reader:
            found[:] = [(message.body, message.tag, message.keys) for message in reader]
        return len(found) == 5001

    eventually(arrived, PATIENCE)
    assert sorted(found) == sorted([(b"%d" % i, "t", (f"k{i}",)) for i in range(5000)] + [(b"later", None, ())])  # type: ignore[type-var]


def test_plans_by_bytes_and_by_conditions(server: Server, client: ClusterClient) -> None:
    """Sizes are sampled, though a RocketMQ answers a small pull by measures of its own; times and tags choose what is read."""
    topic = "spark_plans"
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        queue = producer.send(topic, b"first", tag="first").queue
        sizes = [5] + [100] * 2000 + [10_000] * 400  # Of chance, because producers compress large bodies.
        for future in [producer.submit(topic, os.urandom(size), queue=queue, tag="filler") for size in sizes[1:]]:
            future.result(PATIENCE)
    options = {"nameServers": server.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    whole = {queue: len(sizes)}

    def weights(pieces: list[Slice]) -> list[int]:
        return [sum(size + 200 for size in sizes[piece.start : piece.end]) for piece in pieces]

    eventually(lambda: client.ends([queue]) == whole)
    cut = weights(
        [part.wanted for part in MetaqDataSource(options | {"minPartitions": "8"}).reader(NOTHING).partitions()]
    )
    assert len(cut) == 8
    assert max(cut) <= 1.6 * sum(cut) / 8
    stream = MetaqStreamReader(SourceOptions.of(options | {"maxBytesPerTrigger": "400000"}), NOTHING)
    at, taken = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit()), list[int]()
    while (end := stream.latestOffset(at, stream.getDefaultReadLimit())) != at:
        taken += [sum(weights([part.wanted for part in stream.partitions(at, end)]))]
        at = end
    assert max(taken) <= 800_000
    assert sum(taken) == sum(cut)

    narrow = MetaqDataSource(options | {"pushFilters": "true"}).reader(NOTHING)
    an_hour_ago = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    assert narrow.pushFilters([LessThan(("store_time",), an_hour_ago), EqualTo(("tag",), "first")]) == [
        LessThan(("store_time",), an_hour_ago)
    ]
    assert not any(part.wanted.messages for part in narrow.partitions())
    by_tag = MetaqDataSource(options | {"pushFilters": "true", "columns": "body"}).reader(BODY)
    assert by_tag.pushFilters([EqualTo(("tag",), "first"), GreaterThanOrEqual(("queue_offset",), 0)]) == []
    bodies = [row["body"] for part in by_tag.partitions() for batch in by_tag.read(part) for row in batch.to_pylist()]
    assert bodies == [b"first"]
