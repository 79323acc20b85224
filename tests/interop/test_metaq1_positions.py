"""Positions never change once they were told (D1): MetaQ's Java client, whose offset is in ZooKeeper, goes on where it was."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from tests.interop.metaq1 import Metaq1Client, OurServer, TextConnection, Zookeeper, bodies, consumer, sends
from tests.support import eventually

pytestmark = pytest.mark.interop

MAX_SIZE = 1 << 20
_roots = (f"/positions-{number}" for number in itertools.count())


@pytest.fixture
def root() -> str:
    """A ZooKeeper root of the test's own; also for groups: the client knows ids in the whole JVM, by group."""
    return next(_roots)


BODY = "{:04d}" + "x" * 996
FRAME = 20 + 1000


def consumed(java: Metaq1Client, zookeeper: Zookeeper, root: str, count: int) -> None:
    """`count` messages of 1000 bytes are put and consumed; the consumer is gone, its offset is in ZooKeeper."""
    java.factory("f", zookeeper.address, root=root)
    java.publisher("p", "f", ["test"])
    receipts = java.send("p", "test", [BODY.format(number) for number in range(count)])
    assert [one["offset"] for one in receipts] == [number * FRAME for number in range(count)]
    consumer(java, "c", root, {"test": MAX_SIZE})
    java.wait("c", count)
    java.shutdown("c")


def goes_on(java: Metaq1Client, server: OurServer, root: str, count: int, kept: int = 0) -> None:
    """What is put now is all that the next consumer gets, and positions are what they were."""
    receipts = sends(java, "p", "test", [BODY.format(number) for number in range(count, count + 5)])
    assert [one["offset"] for one in receipts] == [number * FRAME for number in range(count, count + 5)]
    consumer(java, "d", root, {"test": MAX_SIZE})
    assert bodies(java.wait("d", 5)) == [BODY.format(number) for number in range(count, count + 5)]
    with TextConnection(server.text) as text:
        answer = text.ask(f"get test other 0 {kept * FRAME} {FRAME} 7")
        assert answer is not None
        assert answer.code is None
        assert answer.body[20:24] == f"{kept:04d}".encode()
        assert len(answer.body) == FRAME
    java.shutdown_all()


def test_positions_outlive_their_files(java1: Metaq1Client, zookeeper: Zookeeper, root: str, tmp_path: Path) -> None:
    """After kill -9 the folder of positions is gone: it is made again from the log, with the same numbers."""
    with OurServer(tmp_path, zookeeper, {"test": {}}, registry={"zk.zkRoot": root}) as server:
        consumed(java1, zookeeper, root, 40)
        server.kill()
        assert (server.data / "positions").is_dir()
        shutil.rmtree(server.data / "positions")
        server.start()
        goes_on(java1, server, root, 40)


def test_positions_are_in_a_copied_log(java1: Metaq1Client, zookeeper: Zookeeper, root: str, tmp_path: Path) -> None:
    """Another broker that has nothing but the first one's commitlog and server.ini takes its place: it has as many partitions,
    too."""
    registry = {"zk.zkRoot": root}
    with OurServer(tmp_path / "a", zookeeper, {"test": {}}, registry=registry) as server:
        consumed(java1, zookeeper, root, 40)
        server.stop()
        second = OurServer(tmp_path / "b", zookeeper, {"test": {}}, registry=registry)
        shutil.copytree(server.data / "commitlog", second.data / "commitlog")
        with second:
            goes_on(java1, second, root, 40)


def test_positions_outlive_what_retention_deletes(
    java1: Metaq1Client, zookeeper: Zookeeper, root: str, tmp_path: Path
) -> None:
    """The head of the partition goes, then also the files of positions: a consumer that is behind is moved to the first
    message that is kept, and every message lies where it was."""
    topics = {"test": {"deletePolicy": "delete,1s", "deleteWhen": "0/1 * * * * ?"}}
    system = {"maxSegmentSize": 1 << 20}
    with OurServer(tmp_path, zookeeper, topics, system, registry={"zk.zkRoot": root}) as server:
        consumed(java1, zookeeper, root, 10)
        count = 10
        while count < 2500:  # more than two log files
            java1.send("p", "test", [BODY.format(number) for number in range(count, count + 100)], mode="callback")
            count += 100

        def begins() -> int | None:
            with TextConnection(server.text) as text:
                answer = text.ask("get test other 0 0 100 7")
                return int(answer.text) if answer is not None and answer.code == 301 else None

        first = eventually(begins)
        assert first is not None
        server.kill()
        shutil.rmtree(server.data / "positions")
        server.configure({"test": {"deletePolicy": "delete,168"}})  # what is left stays
        server.start()
        eventually(lambda: begins())
        consumer(java1, "c2", root, {"test": MAX_SIZE})
        with TextConnection(server.text) as text:
            answer = text.ask("get test other 0 0 100 7")
            assert answer is not None
            first = int(answer.text)
            assert first % FRAME == 0
            for place in range(first // FRAME, count, 500):
                answer = text.ask(f"get test other 0 {place * FRAME} {FRAME} 7")
                assert answer is not None
                assert answer.code is None
                assert len(answer.body) == FRAME
        receipts = sends(java1, "p", "test", ["last"])
        assert receipts[0]["offset"] == count * FRAME
        got = bodies(java1.wait("c2", lambda events: "last" in bodies(events)))
        assert len(got) == count - first // FRAME + 1
        java1.shutdown_all()
