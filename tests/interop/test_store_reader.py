"""The store reader over folders that the servers of others write, and that their kill leaves."""

from pathlib import Path

import pytest

from tests.interop import maven
from tests.interop.driver import ForeignClient
from tests.interop.metaq1 import OriginalServer, TextConnection, Zookeeper
from tests.interop.servers import CLUSTER, RocketmqServer
from tests.spark.files.support import FRAMES, put_frames, read

pytestmark = [pytest.mark.interop, pytest.mark.all]
COLUMNS = ("topic", "queue_id", "queue_offset", "message_id", "tag", "body")


def test_a_rocketmq_folder_is_read_while_it_is_written_and_after_a_kill(java: ForeignClient, tmp_path: Path) -> None:
    """Every message that its clients sent, once, in the order of its queues; with damage told where it is."""
    maven.jars(*maven.SERVER)
    server = RocketmqServer(tmp_path / "server")
    server.start()
    sent: list[str] = []
    try:
        java.producer("p", server.namesrv)
        java.call("create_topic", producer="p", cluster=CLUSTER, topic="orders", queues=3)
        for number in range(5):
            bodies = [f"{number}-{i}-" + "x" * 500 for i in range(100)]
            java.send("p", "orders", bodies, "batch", tag="a")
            sent += bodies
            rows, damage = read(server.data, COLUMNS, topics="orders", maxBytesPerPartition=1 << 20)
            assert damage == []
            assert sorted(row["body"].decode() for row in rows) == sorted(sent)
        java.send("p", "orders", ["later"], delay_level=1)
        java.consumer("c", server.namesrv, "readers", {"orders": "*"})
        java.wait("c", len(sent) + 1)
        java.shutdown_all()
    finally:
        server.kill()
    rows, damage = read(server.data, COLUMNS)
    assert damage == []
    assert sorted(row["body"].decode() for row in rows if row["topic"] == "orders") == sorted([*sent, "later"])
    for queue_id in range(3):
        offsets = [row["queue_offset"] for row in rows if (row["topic"], row["queue_id"]) == ("orders", queue_id)]
        assert offsets == list(range(len(offsets)))
    assert {row["tag"] for row in rows if row["topic"] == "orders"} == {"a", None}


def test_the_data_folder_of_a_metaq_1_x_server_is_read_while_it_runs(zookeeper: Zookeeper, tmp_path: Path) -> None:
    """With the ids and positions that its clients were told."""
    root = {"zk.zkRoot": "/store-reader"}
    columns = ("attribute", "tag", "body", "metaq1_id", "position")
    with (
        OriginalServer(tmp_path, zookeeper, {"test": {}}, registry=root) as server,
        TextConnection(server.text) as text,
    ):
        wanted = []
        for _ in range(3):
            told = put_frames(text)
            wanted += [(*FRAMES[i], number, position) for i, (number, position) in enumerate(told)]
            rows, damage = read(server.data, columns)
            assert damage == []
            assert [tuple(row.values()) for row in rows] == wanted
