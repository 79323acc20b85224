"""The data of an original MetaQ 1.x server, taken over: its clients go on where they were, with a real ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.metaq1 import Metaq1Client, OriginalServer, OurServer, TextConnection, Zookeeper
from tests.support import eventually, run_metaq

pytestmark = pytest.mark.interop
SEGMENT = 1 << 16
TOPICS = {"test": {"numPartitions": 2}, "a.b": {}}


def everything(address: str, topic: str, partition: int, size: int) -> bytes:
    """The bytes of a partition from position 0, as gets hand them out."""
    found = b""
    with TextConnection(address) as text:
        while len(found) < size:
            answer = text.ask(f"get {topic} all {partition} {len(found)} 1048576 1")
            assert answer is not None
            assert answer.code is None, answer.text
            found += answer.body
    return found


def test_java_consumer_goes_on_where_its_offset_in_zookeeper_says(
    java1: Metaq1Client, zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """Nothing twice, nothing left out, over several data files; and all bytes are the same at the same positions."""
    root = {"zk.zkRoot": "/imported", "zk.zkSessionTimeoutMs": 1000}
    original = OriginalServer(tmp_path / "original", zookeeper, TOPICS, {"maxSegmentSize": SEGMENT}, registry=root)
    first = [f"first {number}" for number in range(200)]
    with original:
        java1.factory("f", zookeeper.address, root="/imported")
        java1.publisher("p", "f", ["test", "a.b"])
        java1.send("p", "test", first, attribute="red")
        java1.send("p", "test", ["x" * 30_000] * 8)
        java1.send("p", "a.b", ["dotted"])
        java1.subscriber("c", "f", "g", {"test": 1 << 20})
        assert len(java1.wait("c", 208)) == 208
        with zookeeper.nodes() as nodes:

            def stored() -> list[int]:
                texts = [nodes.text(f"/imported/consumers/g/offsets/test/0-{number}") for number in range(2)]
                return [int((text or "-0").rpartition("-")[2]) for text in texts]

            sizes = [
                sum(path.stat().st_size for path in (original.data / f"test-{number}").glob("*.meta"))
                for number in range(2)
            ]
            eventually(lambda: stored() == sizes)
        java1.shutdown_all()
        java1.factory("f", zookeeper.address, root="/imported")
        java1.publisher("p", "f", ["test"])
        second = [f"second {number}" for number in range(50)]
        java1.send("p", "test", second)
        java1.shutdown_all()
        sizes = [
            sum(path.stat().st_size for path in (original.data / f"test-{number}").glob("*.meta"))
            for number in range(2)
        ]
        before = [everything(original.text, "test", number, sizes[number]) for number in range(2)]
    assert len(list((original.data / "test-0").glob("*.meta"))) > 1
    ours = OurServer(tmp_path / "ours", zookeeper, TOPICS, registry=root)
    done = run_metaq("store", "import-meta", str(original.data), "-c", str(ours.ini))
    assert done.returncode == 0, done.stderr
    with ours, zookeeper.nodes() as nodes:
        eventually(lambda: nodes.text("/imported/brokers/ids/0/master") == f"meta://{ours.text}")
        eventually(lambda: nodes.text("/imported/brokers/topics-sub/test/0-m"))
        assert [everything(ours.text, "test", number, sizes[number]) for number in range(2)] == before
        java1.factory("f", zookeeper.address, root="/imported")
        java1.publisher("p", "f", ["test"])
        java1.send("p", "test", ["third"])
        java1.subscriber("c", "f", "g", {"test": 1 << 20})
        got = [one["body"] for one in java1.wait("c", 51)]
        assert sorted(got) == sorted([*second, "third"])
