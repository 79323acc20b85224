"""Groups of MetaQ 1.x in our commands: how many messages they are behind, from a real ZooKeeper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metaq.testing import EmbeddedBroker
from tests.interop.metaq1 import Metaq1Client, OurServer, Zookeeper
from tests.support import eventually, run_metaq

pytestmark = pytest.mark.interop


def test_group_show_counts_the_messages_that_a_java_group_is_behind(
    java1: Metaq1Client, zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """After a consumer has read what there was, and others came; the unknown group is unknown."""
    root = {"zk.zkRoot": "/lag", "zk.zkSessionTimeoutMs": 2000}
    with EmbeddedBroker() as names:
        ours = OurServer(tmp_path / "ours", zookeeper, {"test": {}}, registry=root)
        ours.options = [f"namesrvAddr={names.namesrv}"]
        with ours, zookeeper.nodes() as nodes:
            eventually(lambda: nodes.text("/lag/brokers/topics-sub/test/0-m"))
            java1.factory("f", zookeeper.address, root="/lag")
            java1.publisher("p", "f", ["test"])
            java1.send("p", "test", [f"{number:02d}" for number in range(10)])
            java1.subscriber("c", "f", "readers", {"test": 1 << 20})
            assert len(java1.wait("c", 10)) == 10
            eventually(lambda: (nodes.text("/lag/consumers/readers/offsets/test/0-0") or "").endswith("-220"))
            java1.shutdown_all()
            java1.factory("f", zookeeper.address, root="/lag")
            java1.publisher("p", "f", ["test"])
            java1.send("p", "test", ["ab"] * 7)

            def shown() -> dict[str, int]:
                done = run_metaq("group", "show", "readers", "-n", names.namesrv, "--json")
                assert done.returncode == 0, done.stderr
                return {queue["topic"]: queue["lag"] for queue in json.loads(done.stdout)["queues"]}

            assert shown() == {"test": 7}
            listed = run_metaq("group", "list", "-n", names.namesrv, "--json")
            assert listed.returncode == 0, listed.stderr
            assert [(one["group"], one["lag"]) for one in json.loads(listed.stdout)] == [("readers", 7)]
            unknown = run_metaq("group", "show", "nobody", "-n", names.namesrv)
            assert unknown.returncode == 3
