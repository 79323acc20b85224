"""What the Spark source asks of a cluster of MetaQ 1.x in ZooKeeper, without Spark: at the original server and at ours. The oracle is
the bodies put, at the offsets that the server told."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from metaq.errors import ConfigError, MessagesLost, NoRoute
from metaq.registry.zookeeper.layout import SUBSCRIBE, Layout, OffsetNode
from metaq.spark.metaq1 import cluster
from metaq.spark.metaq1.fetch import RangeReader
from metaq.spark.metaq1.plan import Metaq1Planner
from metaq.spark.metaq1.settings import Metaq1Options
from metaq.spark.metaq1.source import Metaq1StreamReader
from metaq.testing import free_port
from tests.interop.metaq1 import Metaq1Client, OriginalServer, OurServer, TextConnection, TextServer, Zookeeper, bodies
from tests.support import PATIENCE, eventually, run_metaq

pytestmark = pytest.mark.interop

SERVERS: dict[str, type[TextServer]] = {"original": OriginalServer, "ours": OurServer}
TOPIC = "orders"
NO_LIMIT = ReadAllAvailable()


class Served:
    """A server with its own root in ZooKeeper."""

    def __init__(self, server: TextServer, zookeeper: Zookeeper, root: str) -> None:
        self.server, self.zookeeper, self.root = server, zookeeper, root

    def options(self, **more: str) -> Metaq1Options:
        pairs = {
            "zkConnect": self.zookeeper.address,
            "zkRoot": self.root,
            "topic": TOPIC,
            "retrySeconds": str(PATIENCE),
        }
        return Metaq1Options.of(pairs | more)

    def reader(self, **more: str) -> Metaq1StreamReader:
        return Metaq1StreamReader(self.options(**more), StructType([]))

    def put(self, texts: list[bytes], partition: int = 0) -> dict[int, bytes]:
        """Put messages; return those of the partition at their offsets, when all can be read."""
        told = {}
        with TextConnection(self.server.text) as text:
            for body in texts:
                answer = text.ask(f"put {TOPIC} {partition} {len(body)} 0 {zlib.crc32(body) & 0x7FFFFFFF} 1", body)
                assert answer is not None
                assert answer.code == 200, answer.text
                told[int(answer.text.split()[2])] = body
            last = max(told)
            eventually(
                lambda: text.ask(f"get {TOPIC} test {partition} {last} 4096 2").code is None, what="it is flushed"
            )
        return told

    def registered(self, partitions: int) -> Metaq1Planner:
        """The planner of a stream, once ZooKeeper names so many partitions."""
        planner = Metaq1Planner(self.options(retrySeconds="0"), stream=True)

        def there() -> bool:
            with contextlib.suppress(NoRoute):
                return len(planner.cluster.places()) == partitions
            return False

        eventually(there, what="the server is registered")
        planner.close()
        return Metaq1Planner(self.options(), stream=True)

    def stored(self, group: str, partition: str = "0-0") -> str | None:
        with self.zookeeper.nodes() as nodes:
            return nodes.text(Layout(self.root).offset(group, TOPIC, partition))


@contextlib.contextmanager
def serving(kind: str, folder: Path, zookeeper: Zookeeper, partitions: int = 2, **system: object) -> Iterator[Served]:
    root = f"/spark-{kind}-{folder.name}"
    # With its transactions beside its partitions the original does not load all of these before their first put.
    more = {"dataLogPath": folder / "transaction-log"} if kind == "original" else {}
    made = SERVERS[kind](
        folder / kind, zookeeper, {TOPIC: {"numPartitions": partitions}}, more | system,
        registry={"zk.zkRoot": root, "zk.zkSessionTimeoutMs": 2000},
    )  # fmt: skip
    if isinstance(made, OurServer):
        made.options = ["cleanResourceInterval=100", "diskMaxUsedSpaceRatio=95"]
    with made as server:
        served = Served(server, zookeeper, root)
        served.registered(partitions).close()
        yield served


def read(
    reader: Metaq1StreamReader | Metaq1Planner, start, end, *, fail: bool = True, seconds: float = 1.0
) -> dict[int, bytes]:
    """The messages of one range, of partition 0."""
    (wanted,) = (
        reader.ranges(start, end)
        if isinstance(reader, Metaq1Planner)
        else [one.wanted for one in reader.partitions(start, end)]
    )
    found = RangeReader(wanted, "g", fetch_bytes=64, retry_seconds=seconds, fail_on_data_loss=fail)
    return {one.offset: one.frame.body for batch in found.read() for one in batch}


@pytest.mark.parametrize("kind", SERVERS)
def test_progress_of_a_group_from_its_stored_offsets_to_a_java_consumer(
    kind: str, zookeeper: Zookeeper, java1: Metaq1Client, tmp_path: Path
) -> None:
    """A query begins where the group has come, and stores each batch's end once the next is asked for, which is when Spark has
    committed it. What fails is read again and moves nothing; nobody is sent back; Java's consumer goes on there."""
    with serving(kind, tmp_path, zookeeper) as served, zookeeper.nodes() as nodes:
        told = served.put([b"a%02d" % number for number in range(30)])
        begin, end = sorted(told)[20], max(told) + 23
        path = Layout(served.root).offset("g", TOPIC, "0-0")
        nodes.client.create(path, OffsetNode(-77, begin).text.encode(), makepath=True)
        with pytest.raises(ConfigError, match="has offsets in orders that this query did not make"):
            served.reader(progressGroup="g").initialOffset()
        with pytest.raises(ConfigError, match="the consumer group nobody has consumed nothing of orders"):
            served.reader(startingGroup="nobody").initialOffset()

        reader = served.reader(startingGroup="g", progressGroup="g")
        start = reader.initialOffset()
        assert start["q"] == {"0-0": begin}
        assert reader.latestOffset(start, NO_LIMIT) == start
        reached = reader.latestOffset(start, NO_LIMIT)
        assert reached["q"] == {"0-0": end}
        assert read(reader, start, reached) == {offset: body for offset, body in told.items() if offset >= begin}
        assert nodes.text(path) == f"-77-{begin}"
        reader.stop()

        again = served.reader(
            startingGroup="g", progressGroup="g"
        )  # the batch has failed: another run has the checkpoint
        assert len(read(again, start, reached)) == 10
        assert nodes.text(path) == f"-77-{begin}"
        told |= served.put([b"later"])
        later = again.latestOffset(reached, NO_LIMIT)
        assert nodes.text(path) == f"-1-{end}"
        assert served.stored("g", "0-1") is None
        nodes.client.set(path, b"5-%d" % (later["q"]["0-0"] + 1000))  # somebody has gone further
        served.put([b"last"])
        again.latestOffset(later, NO_LIMIT)
        assert nodes.text(path) == f"5-{later['q']['0-0'] + 1000}"
        nodes.client.set(path, b"-1-%d" % end)
        again.stop()

        java1.factory("f", zookeeper.address, root=served.root)
        java1.subscriber("c", "f", "g", {TOPIC: 1 << 20})
        assert bodies(java1.wait("c", 2)) == ["later", "last"]
        with pytest.raises(ConfigError, match="progressGroup: the consumer group g has members"):
            served.reader(startingGroup="g", progressGroup="g").initialOffset()
        joined = served.reader(startingGroup="g", progressGroup="g")
        reported = end + 1_000_000
        joined._report({"0-0": reported})
        assert nodes.text(path) != f"-1-{reported}"
        joined.stop()


@pytest.mark.parametrize("kind", SERVERS)
def test_partitions_that_are_added_are_read_from_their_first_message(
    kind: str, zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """The original has them after a restart, ours after a reload."""
    with serving(kind, tmp_path, zookeeper, partitions=1) as served:
        served.put([b"one"])
        with contextlib.closing(served.registered(1)) as planner:
            start = planner.start("latest")
            served.server.configure({TOPIC: {"numPartitions": 2}})
            if isinstance(served.server, OurServer):
                done = run_metaq("meta1", "reload", served.server.broker)
                assert done.returncode == 0, done.stderr
            else:
                served.server.stop()
                served.server.start()
            told = served.put([b"new", b"newer"], 1)
            eventually(lambda: "0-1" in planner.advance(start, None))
            pinned = planner.advance(start, None)
            assert pinned == {"0-0": 23, "0-1": 0}
            end = planner.advance(pinned, None)
            assert end == {"0-0": 23, "0-1": max(told) + 25}
            assert read(planner, pinned, end) == told


def lost(served: Served, start: dict[str, int], end: dict[str, int]) -> set[int]:
    """Read a range that has lost messages: an error, or what is left of it."""
    planner = served.registered(1)
    with pytest.raises(MessagesLost, match=r"the messages of partition 0-0 of orders in bytes .* are gone"):
        read(planner, start, end)
    found = set(read(planner, start, end, fail=False))
    planner.close()
    return found


def test_messages_that_the_original_has_lost_fail_the_query_or_are_passed_over(
    zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """Its first file is deleted: 301 forwards. Its last file is: 301 backwards, and the end lies before the checkpoint."""
    with serving("original", tmp_path, zookeeper, 1, maxSegmentSize=1000) as served:
        told = served.put([b"%080d" % number for number in range(45)])
        start, end = {"0-0": 0}, {"0-0": max(told) + 100}
        files = sorted((served.server.data / f"{TOPIC}-0").glob("*.meta"))
        firsts = [int(file.stem) for file in files]
        assert len(firsts) > 3
        served.server.stop()
        files[0].unlink()
        files[-1].unlink()
        served.server.start()
        assert lost(served, start, {"0-0": firsts[2]}) == {at for at in told if firsts[1] <= at < firsts[2]}
        assert lost(served, {"0-0": firsts[2]}, end) == {at for at in told if firsts[2] <= at < firsts[-1]}
        with contextlib.closing(served.registered(1)) as planner:
            with pytest.raises(MessagesLost, match="It ends before what was read of it"):
                planner.advance(end, None)
            # A group's offset before the first message: the server moves it, and the loss is said.
            with zookeeper.nodes() as nodes:
                path = Layout(served.root).offset("slow", TOPIC, "0-0")
                nodes.client.create(path, b"-1-100", makepath=True)
            slow = Metaq1Planner(served.options(startingGroup="slow"))
            assert slow.start("latest") == {"0-0": 100}
            assert lost(served, {"0-0": 100}, {"0-0": firsts[2]})
            slow.close()
        careless = Metaq1Planner(served.options(failOnDataLoss="false"), stream=True)
        assert careless.advance(end, None) == {"0-0": firsts[-1]}
        careless.close()


def test_messages_that_ours_has_let_go_fail_the_query_or_are_passed_over(zookeeper: Zookeeper, tmp_path: Path) -> None:
    """By retention; a limit counts from the first message that is left."""
    system = {"maxSegmentSize": 1 << 17, "deleteWhen": "* * * * * ?", "deletePolicy": "delete,1s"}
    with serving("ours", tmp_path, zookeeper, 1, **system) as served:
        told = served.put([b"%09000d" % number for number in range(40)])
        end = {"0-0": max(told) + 9020}
        with contextlib.closing(served.registered(1)) as planner:
            first = eventually(lambda: planner.cluster.bounds(["0-0"], last=False)["0-0"].offset)
        left = lost(served, {"0-0": 0}, end)
        assert left
        assert left <= {at for at in told if at >= first}
        limited = Metaq1Planner(served.options(maxBytesPerTrigger="10000"), stream=True)
        stop = limited.limited({"0-0": 0}, end)["0-0"]
        assert stop >= first + 9020
        assert stop % 9020 == 0
        limited.close()


def test_a_slave_is_read_while_its_master_is_away_and_is_no_witness_of_a_loss(
    zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """It may be behind: where it ends before the query's position, the query waits."""
    root = "/spark-slave"
    layout = Layout(root)
    with OurServer(tmp_path, None, {TOPIC: {}}) as server, zookeeper.nodes() as nodes:
        served = Served(server, zookeeper, root)
        served.put([b"one", b"two"])
        nodes.client.create(f"{layout.broker(0)}/slave1", f"meta://{server.text}".encode(), makepath=True)
        nodes.client.create(f"{layout.topics(SUBSCRIBE, TOPIC)}/0-s1", b'{"numParts":1,"broker":"0-s1"}', makepath=True)
        planner = served.registered(1)
        assert planner.cluster.places() == {"0-0": ((server.text,), False)}
        assert planner.advance({"0-0": 23}, None) == {"0-0": 46}
        assert planner.advance({"0-0": 100}, None) == {"0-0": 100}
        planner.close()
        away = f"127.0.0.1:{free_port()}"
        nodes.client.create(f"{layout.broker(0)}/master", f"meta://{away}".encode())
        nodes.client.create(f"{layout.topics(SUBSCRIBE, TOPIC)}/0-m", b'{"numParts":1,"broker":"0-m"}')
        planner = served.registered(1)
        assert planner.cluster.places() == {"0-0": ((away, server.text), True)}
        assert planner.advance({"0-0": 100}, None) == {"0-0": 100}
        assert len(read(planner, {"0-0": 0}, {"0-0": 46}, seconds=PATIENCE)) == 2
        planner.close()


def test_a_query_goes_on_while_zookeeper_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the servers that it knows. The group's offsets are stored when it is back."""
    monkeypatch.setattr(cluster, "AWAY_SECONDS", 0.2)
    monkeypatch.setattr(cluster, "SHORT_SECONDS", 0.5)
    monkeypatch.setattr(cluster, "PLACES_SECONDS", 0.0)
    with Zookeeper(tmp_path) as own, serving("ours", tmp_path, own, 1) as served:
        served.put([b"one"])
        reader = served.reader(startingOffsets="earliest", progressGroup="g")
        start = reader.initialOffset()
        assert reader.latestOffset(start, NO_LIMIT) == start
        own.kill()
        reached = reader.latestOffset(start, NO_LIMIT)
        assert reached["q"] == {"0-0": 23}
        assert len(reader.partitions(start, reached)) == 1
        served.put([b"two"])
        later = reader.latestOffset(reached, NO_LIMIT)
        assert later["q"] == {"0-0": 46}
        own.start()

        def stored() -> bool:
            reader.latestOffset(later, NO_LIMIT)
            return reader._reported == {"0-0": 46}

        eventually(stored, what="the progress is stored")
        assert served.stored("g") == "-1-46"
        reader.stop()


def test_a_topic_that_nobody_serves(zookeeper: Zookeeper) -> None:
    """The error names the topic."""
    options = Metaq1Options.of({"zkConnect": zookeeper.address, "topic": "nowhere", "retrySeconds": "0"})
    with pytest.raises(NoRoute, match="nowhere"):
        Metaq1Planner(options).start("earliest")
