"""A body that does not decompress in `format("metaq")`, without a session: what the reader of a task makes of it."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType

from metaq.errors import BodyUnreadable, ConfigError
from metaq.model.message import BODY_AS_STORED
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.archived_rows import SCHEMA
from metaq.pipelines.archive.decoding import BodyColumns, plan_of, wanted
from metaq.pipelines.archive.options import ArchiveOptions
from metaq.pipelines.archive.parting import Parting
from metaq.pipelines.archive.slices import fetch_rows
from metaq.pipelines.metrics.counting import _readable
from metaq.spark.cluster.client import client_of
from metaq.spark.data_source import MetaqReader, SlicePartition
from metaq.spark.source.fetch import read_slice
from metaq.spark.source.settings import SourceOptions
from tests.scripted import ScriptedCluster

QUEUE = MessageQueue("orders", "broker-a", 0)
SENT = [b'{"id": 0}', b"not what zlib writes", b'{"id": 2}']
WANTED = Slice(QUEUE, 0, 3)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ScriptedCluster(tmp_path_factory.mktemp("corrupt")) as running:
        for number, body in enumerate(SENT):
            running.put("orders", 0, [body if number == 1 else zlib.compress(body)], sys_flag=1)
        yield running
        client_of.cache_clear()


def rows(cluster, **more) -> list[dict]:
    options = SourceOptions.of({"nameServers": cluster.namesrv, "subscribe": "orders", **more})
    columns = StructType().add("queue_offset", LongType()).add("body", BinaryType()).add("sys_flag", IntegerType())
    reader = MetaqReader(options, columns)
    return pa.Table.from_batches(reader.read(SlicePartition(WANTED))).to_pylist()


def test_a_query_gets_it_as_it_is_stored(cluster):
    """With a mark, by default; the others as they were sent."""
    found = rows(cluster)
    assert [row["body"] for row in found] == SENT
    assert [row["queue_offset"] for row in found if row["sys_flag"] & BODY_AS_STORED] == [1]


def test_a_query_may_leave_it_out_or_fail(cluster):
    """By an option; the error names queue and offset."""
    assert [row["body"] for row in rows(cluster, corrupt="skip")] == [SENT[0], SENT[2]]
    with pytest.raises(BodyUnreadable, match="offset 1 of orders@broker-a:0 cannot be read"):
        rows(cluster, corrupt="fail")
    with pytest.raises(ConfigError, match="corrupt"):
        rows(cluster, corrupt="ignore")


def test_the_archive_has_it_in_corrupt(cluster):
    """Though it is UTF-8 as it is stored: compressed bytes are no body, whatever a decoder makes of them."""
    decoding = wanted(ArchiveOptions(topics="orders", output="o", decode="utf8"))
    assert decoding is not None
    bodies = BodyColumns(plan_of(decoding))
    settings = SourceOptions.of({"nameServers": cluster.namesrv, "subscribe": "orders"}).fetch_of_stream
    (found,) = fetch_rows(WANTED, cluster.namesrv, settings, Parting(), SCHEMA)
    batch = bodies.ready()(found.batch)
    assert batch["_corrupt"].to_pylist() == [None, SENT[1], None]
    assert batch["decoded"].is_null().to_pylist() == [False, True, False]


def test_metrics_count_it_as_unreadable(cluster):
    """A trace record of the trace topic."""
    settings = SourceOptions.of({"nameServers": cluster.namesrv, "subscribe": "orders"}).fetch
    (decoded,) = read_slice(client_of(cluster.namesrv, 5.0), WANTED, settings)
    number, left = _readable(decoded)
    assert (number, left.to_batch(("body",))["body"].to_pylist()) == (1, [SENT[0], SENT[2]])
