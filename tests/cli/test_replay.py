"""`metaq consume --from-archive`: past retention, from the command line."""

from __future__ import annotations

import pytest

from metaq import MessageQueue
from metaq.archive.folder import ArchiveFolder
from tests.archive.from_broker import archive_until
from tests.scripted import ScriptedCluster
from tests.support import run_metaq

pytestmark = pytest.mark.slow

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster") as running:
        running.put("orders", 0, [b"%d" % number for number in range(30)])
        running.new_log_file()
        yield running


def consume(cluster, folder, *more):
    return run_metaq("consume", "orders", "-n", cluster.namesrv, "--from-archive", str(folder), *more)


def test_what_has_left_the_broker_is_printed_with_the_rest(cluster, tmp_path):
    """From the beginning, or from a moment on; a tag chooses."""
    archive_until(ArchiveFolder(tmp_path / "out"), cluster.namesrv, {QUEUE: 30})
    cluster.put("orders", 0, [b"30", b"31"], 1_700_000_000_000 + 5000)
    cluster.expire("orders", 0, 30)
    got = consume(cluster, tmp_path / "out")
    assert (got.returncode, got.stdout.split()) == (0, [str(number) for number in range(32)]), got.stderr
    assert consume(cluster, tmp_path / "out", "--from", "2023-11-14T22:13:21Z").stdout.split() == ["30", "31"]
    assert consume(cluster, tmp_path / "out", "--tag", "other").stdout == ""
    assert consume(cluster, tmp_path / "out", "--count", "3").stdout.split() == ["0", "1", "2"]


def test_a_hole_is_an_error_after_what_came_before_it(cluster, tmp_path):
    """With its size."""
    archive_until(ArchiveFolder(tmp_path / "out"), cluster.namesrv, {QUEUE: 10})
    cluster.put("orders", 0, [b"30"])
    cluster.expire("orders", 0, 30)
    got = consume(cluster, tmp_path / "out")
    assert got.returncode != 0
    assert got.stdout.split() == [str(number) for number in range(10)]
    assert "20 messages of orders@broker-a:0 are gone: offsets [10, 30)" in got.stderr
    assert "Traceback" not in got.stderr


def test_what_cannot_be_is_said(cluster, tmp_path):
    """A folder without an archive, a topic that is not in it, and groups, whose progress is at the brokers."""
    for more, said in (
        ((), "there is no archive (no _manifests in it)"),
        (("--group", "g"), "--from-archive cannot be combined with --group"),
        (
            ("--from-archive", "hdfs://nn:8020/a"),
            "archive=hdfs://nn:8020/a: it is replayed from a local folder, not by hdfs: which only Hadoop can read",
        ),
    ):
        got = consume(cluster, tmp_path, *more)
        assert got.returncode != 0
        assert said in got.stderr
    cluster.put("others", 0, [b"x"])
    archive_until(ArchiveFolder(tmp_path / "out"), cluster.namesrv, {MessageQueue("others", "broker-a", 0): 1})
    assert "has nothing of topic orders: it has others" in consume(cluster, tmp_path / "out").stderr
