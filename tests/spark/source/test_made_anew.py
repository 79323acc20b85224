"""A query whose topic is deleted and made anew reads it from its first message on, and says so; its checkpoint tells the two apart."""

from __future__ import annotations

import dataclasses
import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType

from metaq.admin import Admin
from metaq.errors import ConfigError, MessagesLost
from metaq.model import offsets
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.parting import Parting
from metaq.pipelines.archive.slices import fetch_rows
from metaq.spark.cluster import client
from metaq.spark.data_source import MetaqReader, MetaqStreamReader
from metaq.spark.schema import SLICE_SCHEMA, slices_of
from metaq.spark.source.plan import Planner
from metaq.spark.source.settings import SourceOptions
from tests.scripted import ScriptedCluster

Q0 = MessageQueue("orders", "broker-a", 0)
NO_LIMIT = ReadAllAvailable()


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path) as running:
        running.put("orders", 0, [b"old"] * 50)
        yield running
        client.client_of.cache_clear()


def options(cluster, **more) -> SourceOptions:
    given = {
        "nameServers": cluster.namesrv,
        "retrySeconds": "0.2",
        "subscribe": "orders",
        "startingOffsets": "earliest",
    }
    return SourceOptions.of(given | more)


def reader(cluster, **more) -> MetaqStreamReader:
    return MetaqStreamReader(options(cluster, **more), StructType([]))


def make_anew(cluster, count) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.delete_topic("orders")
        admin.create_topic("orders", queues=1)
    cluster.put("orders", 0, [b"new"] * count)


def slices(stream, start, end) -> list[tuple[int, int]]:
    return [(one.wanted.start, one.wanted.end) for one in stream.partitions(start, end)]


def kept(offset):
    """As Spark's checkpoint keeps it."""
    return json.loads(json.dumps(offset))


def checkpoint(cluster, **more):
    """Return the offset at which a query is that has read all."""
    stream = reader(cluster, **more)
    start = stream.latestOffset(stream.initialOffset(), NO_LIMIT)
    return kept(stream.latestOffset(start, NO_LIMIT))


@pytest.mark.parametrize("count", [20, 50, 90])
@pytest.mark.parametrize(
    "limits", [{}, {"maxOffsetsPerTrigger": "1000", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "0s"}]
)
def test_without_a_word_of_loss_wanted_it_is_read_from_the_beginning(cluster, count, limits, caplog):
    """Shorter, as long, and longer than what was read; at a restart and while the query runs."""
    at = checkpoint(cluster)
    assert at.keys() == {"v", "q", "g"}
    assert at["g"]["orders"]["broker-a"] < 0, "that of the broker's store"
    stream = reader(cluster, failOnDataLoss="false", **limits)
    for length in (count, count + 10):
        make_anew(cluster, length)
        limit = stream.getDefaultReadLimit()
        pinned = kept(stream.latestOffset(at, limit))
        assert offsets.from_json(pinned) == {Q0: 0}
        assert slices(stream, at, pinned) == []
        at = kept(stream.latestOffset(pinned, limit))
        assert slices(stream, pinned, at) == [(0, length)]
        assert "was deleted and made anew" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("count", [20, 50, 90])
def test_it_is_a_loss_of_data(cluster, count):
    at = checkpoint(cluster)
    make_anew(cluster, count)
    stream = reader(cluster)
    for _ in range(2):
        with pytest.raises(
            MessagesLost, match=r"orders@broker-a:0, which was read to offset 50, was deleted and made anew"
        ):
            stream.latestOffset(at, NO_LIMIT)


@pytest.mark.parametrize("count", [20, 90])
def test_a_run_to_the_end_takes_the_new_topic(cluster, count):
    at = checkpoint(cluster)
    make_anew(cluster, count)
    stream, read = reader(cluster, failOnDataLoss="false"), []
    stream.prepareForTriggerAvailableNow()
    while (end := kept(stream.latestOffset(at, ReadMaxRows(1 << 62)))) != at:
        read += slices(stream, at, end)
        at = end
    assert read == [(0, count)]


def test_a_query_that_begins_in_a_topic_made_anew_goes_on_in_it(cluster):
    """Its first offset has the generation already."""
    make_anew(cluster, 10)
    for start in ("earliest", "latest"):
        stream = reader(cluster, startingOffsets=start)
        at = kept(stream.latestOffset(stream.initialOffset(), NO_LIMIT))
        assert at["g"]["orders"]["broker-a"] > 0
        cluster.put("orders", 0, [b"more"])
        end = reader(cluster).latestOffset(at, NO_LIMIT)
        assert offsets.from_json(end)[Q0] == sum(cluster.ends("orders").values())


def test_offsets_that_were_written_down_are_compared_too(cluster):
    make_anew(cluster, 10)
    written = json.dumps(checkpoint(cluster))
    make_anew(cluster, 20)
    with pytest.raises(MessagesLost, match="made anew"):
        Planner(options(cluster, startingOffsets=written)).start("latest")
    careless = Planner(options(cluster, startingOffsets=written, failOnDataLoss="false"))
    assert careless.start("latest") == {Q0: 0}


def test_the_form_in_checkpoints():
    """Positions of topics of which no generation is known have nothing more."""
    value = offsets.to_json({Q0: 7}, {("orders", "broker-a"): 5, ("other", "broker-a"): 3})
    assert value == {"v": 1, "q": {"orders": {"broker-a": {"0": 7}}}, "g": {"orders": {"broker-a": 5}}}
    assert offsets.from_json(value) == {Q0: 7}
    assert offsets.generations_of(json.dumps(value)) == {("orders", "broker-a"): 5}
    assert offsets.to_json({Q0: 7}, {("orders", "broker-a"): 0}) == {"v": 1, "q": {"orders": {"broker-a": {"0": 7}}}}
    assert offsets.generations_of({"g": {"t": {"b": -5}}}) == {("t", "b"): -5}
    for wrong in ("[]", '{"v":1,"q":{},"g":[]}', '{"g":{"t":{"b":"1"}}}'):
        with pytest.raises(ConfigError, match="startingOffsets"):
            offsets.generations_of(wrong, "startingOffsets")


@pytest.mark.parametrize(
    ("now", "then", "another"),
    [
        (5, 5, False),
        (7, 5, True),
        (7, 0, True),
        (0, 7, True),
        (-9, -9, False),
        (-9, -8, True),
        (5, -9, True),
        (-9, 0, False),
    ],
)
def test_what_was_reached_where_no_generation_was_known_goes_on_in_a_store_that_is_dated(now, then, another):
    """Otherwise a position that a slave has told would be lost data at its master."""
    assert offsets.is_another(now, then) is another


def planned(stream, cluster):
    start = stream.latestOffset(stream.initialOffset(), NO_LIMIT)
    (part,) = stream.partitions(start, stream.latestOffset(start, NO_LIMIT))
    assert (part.wanted.start, part.wanted.end) == (0, 50)
    return part


@pytest.mark.parametrize("count", [50, 90])
def test_a_batch_that_was_planned_before_is_not_read_of_the_topic_after(cluster, count, caplog):
    part = planned(reader(cluster), cluster)
    make_anew(cluster, count)
    with pytest.raises(MessagesLost, match="made anew"):
        list(reader(cluster).read(part))
    careless = reader(cluster, failOnDataLoss="false")
    assert list(careless.read(part)) == []
    assert "was deleted and made anew" in caplog.text


def test_a_batch_whose_topic_is_the_same_is_read(cluster):
    for more in ({}, {"failOnDataLoss": "false"}):
        stream = MetaqStreamReader(options(cluster, **more), StructType([StructField("queue_offset", LongType())]))
        assert sum(batch.num_rows for batch in stream.read(planned(stream, cluster))) == 50


def test_a_batch_read_is_of_the_topic_that_was_planned(cluster):
    batch = MetaqReader(options(cluster), StructType([]))
    (part,) = batch.partitions()
    assert part.wanted.generation < 0
    make_anew(cluster, 60)
    with pytest.raises(MessagesLost, match="made anew"):
        list(batch.read(part))


@pytest.mark.parametrize("count", [50, 90])
def test_the_tasks_of_a_pipeline_read_nothing_of_a_topic_made_anew_since_they_were_planned(cluster, count, caplog):
    """Also of a batch that is planned again after a restart: it has the generation of its end."""
    stream = reader(cluster, rows="slices")
    start = stream.latestOffset(stream.initialOffset(), NO_LIMIT)
    end = kept(stream.latestOffset(start, NO_LIMIT))
    make_anew(cluster, count)
    columns = StructType([StructField(name, _spark_type(name)) for name in SLICE_SCHEMA.names])
    again = MetaqStreamReader(options(cluster, rows="slices"), columns)
    (wanted,) = slices_of(batch for part in again.partitions(kept(start), end) for batch in again.read(part))
    assert (wanted.start, wanted.end) == (0, 50)
    with pytest.raises(MessagesLost, match="made anew"):
        list(fetch_rows(wanted, cluster.namesrv, again.fetch, Parting()))
    careless = dataclasses.replace(again.fetch, fail_on_data_loss=False)
    assert list(fetch_rows(wanted, cluster.namesrv, careless, Parting())) == []
    assert "was deleted and made anew" in caplog.text


def _spark_type(name: str) -> DataType:
    return {"string": StringType(), "int32": IntegerType(), "int64": LongType()}[str(SLICE_SCHEMA.field(name).type)]


def test_a_batch_read_of_a_topic_made_anew_in_between_is_a_new_one(cluster):
    """Whatever this process knew of it."""
    for given in ("earliest", '{"v":1,"q":{"orders":{"broker-a":{"0":10}}}}'):
        (part,) = MetaqReader(options(cluster, startingOffsets=given), StructType([])).partitions()
        make_anew(cluster, 60)
        batch = MetaqReader(options(cluster, startingOffsets=given), StructType([]))
        (again,) = batch.partitions()
        assert again.wanted.generation != part.wanted.generation
        list(batch.read(again))
