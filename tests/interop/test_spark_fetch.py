"""The Spark source's way of reading, against our broker and RocketMQ's own, which gives 32 messages a pull."""

from __future__ import annotations

import pytest

from metaq import Producer
from metaq.admin import Admin
from metaq.spark.cluster_client import ClusterClient
from metaq.spark.fetch import FetchSettings, read_slice
from metaq.spark.offsets import Slice, slices_between
from tests.interop.servers import Server
from tests.support import PATIENCE, eventually

TOPIC, GROUP = "spark_fetch", "spark_fetch_progress"
MESSAGES = 3000


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
        progress = {one.queue: one.consumed for one in admin.group_progress(GROUP).queues}
    assert progress == middle


def test_a_slice_in_the_middle(server: Server, client: ClusterClient) -> None:
    """Neither a row before it nor one behind it."""
    queue = client.queues([TOPIC])[0]
    end = client.ends([queue])[queue]
    wanted = Slice(queue, end // 3, end // 2)
    offsets = [int(i) for decoded in read_slice(client, wanted, FetchSettings()) for i in decoded.queue_offsets]
    assert offsets == list(range(end // 3, end // 2))
