"""kill -9 of the server and of the driver under queries on a cluster of MetaQ 1.x: the original server's and ours. Each message that a
put was answered for comes once, and a group's offsets never run ahead of what is committed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from metaq.errors import NoRoute
from metaq.registry.zookeeper.layout import Layout
from metaq.spark.data_source import MetaqDataSource
from metaq.spark.metaq1.plan import Metaq1Planner
from metaq.spark.metaq1.settings import Metaq1Options
from metaq.wire.hot import crc31
from metaq.wire.metaq1.frame import HEAD_BYTES
from tests.interop.metaq1 import OriginalServer, OurServer, TextConnection, TextServer, Zookeeper
from tests.spark.metaq1 import faulty_source
from tests.spark.metaq1.faulty_source import POINTS
from tests.spark.running import finished, printed_by
from tests.support import PATIENCE, ROOT, WHOLE_PATIENCE, environment, eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]

SERVERS: dict[str, type[TextServer]] = {"original": OriginalServer, "ours": OurServer}
TOPIC = "orders"
PARTITIONS = 2


class Cluster:
    """A server in ZooKeeper, and what was put there."""

    def __init__(self, server: TextServer, zookeeper: Zookeeper, root: str) -> None:
        self.server, self.zookeeper, self.root = server, zookeeper, root
        self.options = {
            "zkConnect": zookeeper.address, "zkRoot": root, "topic": TOPIC, "retrySeconds": str(PATIENCE),
            "startingOffsets": "earliest",
        }  # fmt: skip
        self.stored: Counter[tuple[int, int, bytes]] = Counter()
        """(partition, offset, body) → 1."""

    def put(self, count: int, prefix: bytes = b"") -> None:
        """Put so many messages into each partition."""
        with TextConnection(self.server.text) as text:
            for number in range(PARTITIONS):
                for body in [prefix + b"%d" % index for index in range(count)]:
                    answer = text.ask(f"put {TOPIC} {number} {len(body)} 0 {crc31(body)} 1", body)
                    assert answer is not None
                    assert answer.code == 200, answer.text
                    self.stored[number, int(answer.text.split()[2]), body] += 1

    @property
    def end(self) -> dict[str, int]:
        found = dict.fromkeys(range(PARTITIONS), 0)
        for number, offset, body in self.stored:
            found[number] = max(found[number], offset + HEAD_BYTES + len(body))
        return {f"0-{number}": end for number, end in found.items()}

    def served(self) -> bool:
        with contextlib.closing(Metaq1Planner(Metaq1Options.of(self.options | {"retrySeconds": "0"}))) as planner:
            try:
                return len(planner.cluster.places()) == PARTITIONS
            except NoRoute:
                return False

    def killed_and_started(self) -> None:
        self.server.kill()
        # The original does not register while ZooKeeper still has the nodes of the server that was killed.
        eventually(lambda: not self.served(), what="the server is gone from ZooKeeper")
        self.server.start()

    def progress(self, group: str) -> dict[str, int]:
        with self.zookeeper.nodes() as nodes:
            found = {f"0-{n}": nodes.text(Layout(self.root).offset(group, TOPIC, f"0-{n}")) for n in range(PARTITIONS)}
        return {partition: int(text.rpartition("-")[2]) for partition, text in found.items() if text}


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zookeeper]:
    with Zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@contextlib.contextmanager
def cluster_of(kind: str, zookeeper: Zookeeper, folder: Path, root: str = "") -> Iterator[Cluster]:
    root = root or f"/kills-{folder.name}"
    # With its transactions beside its partitions the original does not load all of these before their first put.
    system = {"dataLogPath": folder / "transaction-log"} if kind == "original" else {}
    made = SERVERS[kind](
        folder / kind, zookeeper, {TOPIC: {"numPartitions": PARTITIONS}}, system,
        registry={"zk.zkRoot": root, "zk.zkSessionTimeoutMs": 2000},
    )  # fmt: skip
    with made as server:
        cluster = Cluster(server, zookeeper, root)
        eventually(cluster.served, what="the server is registered")
        yield cluster


def rows(folder: Path) -> Counter[tuple[int, int, bytes]]:
    table = ds.dataset(folder, partitioning="hive").to_table().to_pylist()
    return Counter((row["queue_id"], row["queue_offset"], row["body"]) for row in table)


@pytest.mark.parametrize("kind", SERVERS)
def test_each_message_once_although_the_server_is_killed(
    kind: str, spark, zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """Batch, AvailableNow and a stream on one checkpoint. A batch whose sink fails moves no offset of the group, and is read again."""
    spark.dataSource.register(MetaqDataSource)
    out, fails = tmp_path / "out", threading.Event()

    def write(frame, batch: int) -> None:
        frame.select("queue_id", "queue_offset", "body").write.mode("overwrite").parquet(f"{out}/batch={batch}")
        if fails.is_set() and batch > 0:
            raise OSError("the sink is full")

    with cluster_of(kind, zookeeper, tmp_path) as cluster:

        def start(**trigger):
            stream = spark.readStream.format("metaq").options(**cluster.options, progressGroup="g").load()
            writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "check"))
            return writer.trigger(**trigger).start()

        cluster.put(30)
        found = spark.read.format("metaq").options(**cluster.options).load().collect()
        assert Counter((row.queue_id, row.queue_offset, bytes(row.body)) for row in found) == cluster.stored

        fails.set()
        with pytest.raises(Exception, match="the sink is full"):
            finished(lambda: start(availableNow=True))
        assert set(cluster.progress("g").values()) == {0}
        fails.clear()
        finished(lambda: start(availableNow=True))
        assert rows(out) == cluster.stored
        assert cluster.progress("g") == cluster.end

        query = start(processingTime="0 seconds")
        cluster.put(10, b"while it runs ")
        eventually(lambda: rows(out) == cluster.stored or not query.isActive, what="the stream has read what came")
        cluster.killed_and_started()
        cluster.put(10, b"after the kill ")
        eventually(lambda: cluster.progress("g") == cluster.end or not query.isActive, what="the stream has read on")
        assert query.exception() is None
        query.stop()
        assert rows(out) == cluster.stored
        newest = query.lastProgress["sources"][0]["latestOffset"]
        assert (json.loads(newest) if isinstance(newest, str) else newest)["q"] == cluster.end


def test_the_program_of_the_page_archives_what_is_new(spark, zookeeper: Zookeeper, tmp_path: Path) -> None:
    """docs/spark.md, run twice; the group goes on behind it."""
    page = (ROOT / "docs" / "spark.md").read_text().partition("### A cluster of MetaQ 1.x")[2]
    program = page.partition("```python\n")[2].partition("```")[0].replace("localhost:2181", zookeeper.address)
    for folder in ("archive/orders", "checkpoints/orders"):  # relative ones would be the JVM's
        assert f'"{folder}"' in program
        program = program.replace(folder, str(tmp_path / folder))
    spark.dataSource.register(MetaqDataSource)
    with cluster_of("ours", zookeeper, tmp_path, "/meta") as cluster:
        cluster.put(10)
        assert printed_by(program, spark, tmp_path) == "20 messages"
        cluster.put(5, b"later ")
        assert printed_by(program, spark, tmp_path) == "30 messages"
        assert cluster.progress("orders-archive") == cluster.end


@contextlib.contextmanager
def driver(options: dict[str, str], plan: dict[Path, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The driver as a process of its own, with everything it starts; killed -9 at the end."""
    given = json.dumps({str(query): point for query, point in plan.items()})
    command = [sys.executable, "-m", "tests.spark.metaq1.faulty_source", json.dumps(options), given]
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env["PYTHONPATH"]])
    with (folder / "driver.log").open("a") as log:
        running = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait(WHOLE_PATIENCE)


def test_each_message_once_although_driver_and_server_are_killed(spark, zookeeper: Zookeeper, tmp_path: Path) -> None:
    """A query for each point at which a checkpoint is half written, over the original server. What was not committed is not in the
    group's offsets, and is read by the next run."""
    plan = {tmp_path / f"query-{number}": point for number, point in enumerate(POINTS)}
    for query in plan:
        query.mkdir()
    with cluster_of("original", zookeeper, tmp_path) as cluster:
        cluster.put(50)
        with driver(cluster.options, plan, tmp_path) as running:
            there = lambda: all((query / f"mark-{point}").exists() for query, point in plan.items())  # noqa: E731
            eventually(lambda: there() or running.poll() is not None, WHOLE_PATIENCE, what="all points")
            assert there(), (tmp_path / "driver.log").read_text()[-3000:]
        for query, point in plan.items():
            offsets, commits = (
                len(list((query / "checkpoint" / name).glob("[0-9]*"))) for name in ("offsets", "commits")
            )
            assert offsets - commits == 1, point
            assert set(cluster.progress(query.name).values()) == {0}, point
        cluster.killed_and_started()
        cluster.put(20, b"after the kill ")
        faulty_source.run(spark, cluster.options, dict.fromkeys(map(str, plan), ""))
        for query, point in plan.items():
            assert rows(query / "out") == cluster.stored, point
            assert cluster.progress(query.name) == cluster.end, point
