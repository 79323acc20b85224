"""What the Spark source asks of a cluster of MetaQ 1.x in ZooKeeper, without Spark. The oracle is the bodies put."""

from __future__ import annotations

import zlib

import pytest

from metaq.errors import NoRoute
from metaq.registry.zookeeper.layout import Layout, OffsetNode
from metaq.spark.metaq1.fetch import RangeReader
from metaq.spark.metaq1.plan import Metaq1Planner
from metaq.spark.metaq1.settings import Metaq1Options
from tests.interop.metaq1 import OriginalServer, OurServer, TextConnection
from tests.support import eventually

pytestmark = pytest.mark.interop

SERVERS = {"original": OriginalServer, "ours": OurServer}
TOPIC = "orders"


@pytest.mark.parametrize("kind", SERVERS)
def test_partitions_stored_offsets_and_messages(kind, zookeeper, tmp_path):
    """From a group's stored offset to the end: each message once, at the offset that the server told its sender."""
    root = f"/spark-{kind}"
    topics = {TOPIC: {"numPartitions": 2}}
    with SERVERS[kind](tmp_path / kind, zookeeper, topics, registry={"zk.zkRoot": root}) as server:
        told = {}
        with TextConnection(server.text) as text:
            for body in [b"a%02d" % number for number in range(30)]:
                answer = text.ask(f"put {TOPIC} 0 {len(body)} 0 {zlib.crc32(body) & 0x7FFFFFFF} 1", body)
                assert answer is not None
                assert answer.code == 200, answer.text
                told[int(answer.text.split()[2])] = body
        end = max(told) + 23
        pairs = {"zkConnect": zookeeper.address, "zkRoot": root, "topic": TOPIC, "group": "g", "retrySeconds": "20"}
        planner = Metaq1Planner(Metaq1Options.of(pairs | {"startingOffsets": "group"}))
        eventually(lambda: len(planner.places()) == 2, 20, what="the server is registered")
        eventually(lambda: planner.end() == {"0-0": end, "0-1": 0}, 20, what="the messages are flushed")
        begin = sorted(told)[20]
        with zookeeper.nodes() as nodes:
            path = Layout(root).offset("g", TOPIC, "0-0")
            nodes.client.create(path, OffsetNode(-1, begin).text.encode(), makepath=True)
        start = planner.start("latest")
        assert start == {"0-0": begin, "0-1": 0}
        (wanted,) = planner.ranges(start, planner.end())
        reader = RangeReader(wanted, "g", fetch_bytes=64, retry_seconds=5.0, fail_on_data_loss=True)
        found = {one.offset: one.frame.body for batch in reader.read() for one in batch}
        assert found == {offset: body for offset, body in told.items() if offset >= begin}


def test_a_topic_that_nobody_serves(zookeeper):
    """The error names the topic."""
    options = Metaq1Options.of({"zkConnect": zookeeper.address, "topic": "nowhere", "retrySeconds": "0"})
    with pytest.raises(NoRoute, match="nowhere"):
        Metaq1Planner(options).places()
