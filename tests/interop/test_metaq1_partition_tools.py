"""Partitions of the original server 1.4.6.2 are moved and deleted in its data folder, and it serves what is there then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.metaq1 import OriginalServer, TextConnection, Zookeeper
from tests.support import run_metaq

pytestmark = pytest.mark.interop


def test_moved_and_deleted_partitions_at_the_original(zookeeper: Zookeeper, tmp_path: Path) -> None:
    """Refused while it runs, whose process is named; then partitions 0 and 1 are 1 and 2, and 2 is deleted."""
    topics = {"orders": {"numPartitions": 3}}
    # With its transactions beside its partitions the original does not load all of these before their first put.
    system = {"dataLogPath": tmp_path / "transaction-log"}
    with OriginalServer(tmp_path, zookeeper, topics, system, registry={"zk.zkRoot": "/partition-tools"}) as server:
        words = ("--data-dir", str(server.data), "--topic", "orders", "--start", "0", "--end", "1")
        with TextConnection(server.text) as text:
            for number in (0, 1):
                assert text.ask(f"put orders {number} 2 0 1", b"p%d" % number).code == 200
        refused = run_metaq("meta1", "move-partitions", *words, "--offset", "1")
        assert refused.returncode == 2, refused.stderr
        assert "stop the server first" in refused.stderr
        server.stop()
        done = run_metaq("meta1", "move-partitions", *words, "--offset", "1")
        assert done.returncode == 0, done.stderr
        server.start()
        with TextConnection(server.text) as text:
            for number in (0, 1):
                assert text.ask(f"get orders g {number + 1} 0 1000 2").body.endswith(b"p%d" % number)
            assert text.ask("get orders g 0 0 1000 3").code == 404
        server.stop()
        words = ("--data-dir", str(server.data), "--topic", "orders", "--start", "2", "--end", "2")
        done = run_metaq("meta1", "delete-partitions", *words, "-f")
        assert done.returncode == 0, done.stderr
        server.start()
        with TextConnection(server.text) as text:
            assert text.ask("get orders g 2 0 1000 2").code == 404
            assert text.ask("get orders g 1 0 1000 3").body.endswith(b"p0")
