"""RocketMQ's own administration tool, the commands that everybody uses."""

from pathlib import Path

import pytest

from tests.interop.driver import ForeignClient
from tests.interop.servers import CLUSTER, Server, mqadmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]


def test_cluster_topics_and_progress(java: ForeignClient, server: Server, tmp_path: Path) -> None:
    """clusterList, topicList, topicStatus and consumerProgress read as with RocketMQ."""
    clusters = mqadmin(tmp_path, server, "clusterList")
    (row,) = [line.split() for line in clusters.splitlines() if line.startswith(CLUSTER)]
    assert server.broker in row

    java.producer("p", server.namesrv)
    java.call("create_topic", producer="p", cluster=CLUSTER, topic="by-admin", queues=3)
    assert "by-admin" in mqadmin(tmp_path, server, "topicList").split()
    java.send("p", "by-admin", [f"m{i}" for i in range(6)])
    status = mqadmin(tmp_path, server, "topicStatus", "-t", "by-admin").splitlines()
    rows = [line.split() for line in status if line and not line.startswith("#")]
    assert sorted((int(row[1]), int(row[2]), int(row[3])) for row in rows) == [(0, 0, 2), (1, 0, 2), (2, 0, 2)]

    java.consumer("c", server.namesrv, "by-admin-group", {"by-admin": "*"})
    java.wait("c", 6)
    java.shutdown("c")  # which commits its offsets
    progress = mqadmin(tmp_path, server, "consumerProgress", "-g", "by-admin-group")
    assert "Diff Total: 0" in progress
