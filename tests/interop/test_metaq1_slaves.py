"""Slaves for clients of MetaQ 1.x: ours of the original server and of ours, an original one of ours, and consumers that read from them.

The original's slave is in no published jar. `METAQ1_SERVER_LIB` names the folder `lib` of an original distribution 1.4.6.2
(taobao-metamorphosis-server-wrapper), which has it; without it those tests are skipped.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

import pytest

from metaq.metaq1 import ConsumerConfig, MetaClientConfig, MetaMessageSessionFactory, ZKConfig
from tests.interop.driver import DriverError
from tests.interop.metaq1 import (
    GROUP,
    SERVER,
    Metaq1Client,
    OriginalServer,
    OurServer,
    TextConnection,
    TextServer,
    Zookeeper,
    bodies,
    consumer,
    java_command,
    sends,
)
from tests.interop.servers import MetaqNamesrv, launch
from tests.support import environment, eventually, metaq_command, run_metaq

pytestmark = pytest.mark.interop

MAX_SIZE = 1 << 20
NOTA = -4
WRAPPER = "METAQ1_SERVER_LIB"
SOON = {"zk.zkSessionTimeoutMs": 2000}
"""A broker that was killed is gone from ZooKeeper after that."""
_roots = (f"/slaves-{number}" for number in itertools.count())
MASTERS = pytest.mark.parametrize("master", [OriginalServer, OurServer])


@pytest.fixture
def root() -> str:
    """A ZooKeeper root of the test's own; also for groups: the client knows ids in the whole JVM, by group."""
    return next(_roots)


def registry(root: str) -> Mapping[str, object]:
    return {"zk.zkRoot": root, **SOON}


PROPERTIES = "slaveId=0\nslaveGroup=meta-slave-group\nslaveMaxDelayInMills=100\nautoSyncMasterConfig=true\n"


class OurTextSlave(OurServer):
    """`metaq meta1`'s words of the original: `-f server.ini -Fmetaslave=async_slave.properties`."""

    def start(self) -> None:
        properties = self.folder / "async_slave.properties"
        properties.write_text(PROPERTIES)
        command = metaq_command(
            "broker", "-f", str(self.ini), f"-Fmetaslave={properties}", "--port", self.broker.rpartition(":")[2]
        )
        self._process, ready = launch(command, self.log, r"^ready broker \S+ (\S+)", environment())
        self.broker = ready.group(1)


class OriginalSlave(OriginalServer):
    """The original's slave, of a whole distribution."""

    def start(self) -> None:
        properties = self.folder / "async_slave.properties"
        properties.write_text(PROPERTIES)
        command = java_command(self.folder, SERVER, self.jvm)
        at = command.index("-cp") + 1
        command[at] = f"{os.environ[WRAPPER]}/*:{os.environ[WRAPPER]}:{command[at]}"
        command += [f"{GROUP}.ServerStartup", "-f", str(self.ini), f"-Fmetaslave={properties}"]
        self._process, _ = launch(command, self.log, r"start subscribe message from master success")


def frames(server: TextServer, topic: str, partition: int = 0, position: int = 0) -> bytes:
    """All that a server has of a partition, up to 1 MiB; empty: nothing."""
    with TextConnection(server.text) as text:
        answer = text.ask(f"get {topic} other {partition} {position} {MAX_SIZE} 7")
        return answer.body if answer is not None and answer.code is None else b""


def are_same(master: TextServer, slave: TextServer, topic: str = "test", partitions: int = 1) -> bool:
    """Whether the slave has byte for byte what the master has."""
    found = [(frames(master, topic, number), frames(slave, topic, number)) for number in range(partitions)]
    return all(mine and mine == theirs for mine, theirs in found)


def lines(server: TextServer, item: str = "") -> list[str]:
    """The body of `stats`."""
    with TextConnection(server.text) as text:
        answer = text.ask(f"stats {item} 7")
        assert answer is not None
        return answer.text.splitlines()


@pytest.fixture
def producer(java1: Metaq1Client, zookeeper: Zookeeper, root: str) -> Iterator[Metaq1Client]:
    java1.factory("f", zookeeper.address, root=root)
    yield java1


def a_consumer_reads_and_goes(java: Metaq1Client, root: str, count: int) -> None:
    """The publisher `p` sends so many messages. Who comes to their consumer's group next begins behind them, by ZooKeeper."""
    java.publisher("p", "f", ["test"])
    sends(java, "p", "test", [f"a{number}" for number in range(count)])
    consumer(java, "c", root, {"test": MAX_SIZE})
    java.wait("c", count)
    java.shutdown("c")


@MASTERS
def test_a_java_consumer_goes_on_at_our_slave_while_the_master_is_away(
    master: type[TextServer], producer: Metaq1Client, zookeeper: Zookeeper, root: str, tmp_path: Path
) -> None:
    """From its byte offset in ZooKeeper; and at the master again when it is back. The slave takes nothing, and says what it is."""
    java = producer
    with master(tmp_path / "m", zookeeper, {"test": {}}, registry=registry(root)) as served:
        a_consumer_reads_and_goes(java, root, 20)
        with OurTextSlave(tmp_path / "s", zookeeper, {"test": {}}, registry=registry(root)) as slave:
            sends(java, "p", "test", [f"b{number}" for number in range(20)])
            eventually(lambda: are_same(served, slave), what="the slave has all")
            assert "slave true" in lines(slave)
            status = run_metaq("meta1", "slave-status", slave.text, served.text)
            assert (status.returncode, "Replicate status: yes" in status.stdout) == (0, True), status.stderr
            assert run_metaq("meta1", "slave-status", served.text, slave.text).returncode == 1
            assert lines(served, "offsets")[1:-1] == lines(slave, "offsets")[1:-1]
            with TextConnection(slave.text) as text:
                answer = text.ask("put test 0 2 0 1", b"no")
                assert answer is not None
                assert (answer.code, "asynchronous slave 0" in answer.text) == (500, True)
            with zookeeper.nodes() as nodes:
                tree = nodes.tree(root)
                assert tree[f"{root}/brokers/ids/0/slave0"] == (f"meta://{slave.text}", True)
                assert f"{root}/brokers/topics-sub/test/0-s0" in tree
                assert [path for path in tree if path.startswith(f"{root}/consumers/meta-slave-group/ids/")]
            java.shutdown("p")
            served.stop()
            consumer(java, "d", root, {"test": MAX_SIZE})
            assert bodies(java.wait("d", 20)) == [f"b{number}" for number in range(20)]
            served.start()
            java.publisher("p", "f", ["test"])
            sends(java, "p", "test", ["c0"])
            java.wait("d", lambda events: "c0" in bodies(events))
            eventually(lambda: are_same(served, slave), what="the slave has what came then")


def test_our_slave_is_killed_and_goes_on_without_loss_or_doubles(
    zookeeper: Zookeeper, root: str, tmp_path: Path
) -> None:
    """In the middle of the copy, again and again; topics that appear are copied, too."""
    with (
        OriginalServer(
            tmp_path / "m", zookeeper, {"test": {"numPartitions": 2}, "t-*": {}}, registry=registry(root)
        ) as served,
        OurTextSlave(tmp_path / "s", zookeeper, {"test": {}}, registry=registry(root)) as slave,
    ):
        with TextConnection(served.text) as text:
            for turn in range(2):
                for number in range(400):
                    text.write(f"put test {number % 2} 100 0 {number}\r\n".encode() + b"%d" % (number % 10) * 100)
                for _ in range(400):
                    answer = text.read()
                    assert answer is not None
                    assert answer.code == 200
                slave.kill()
                slave.start()
                if turn == 1:
                    text.ask("put t-new 0 3 0 1", b"new")
        eventually(lambda: are_same(served, slave, partitions=2), what="the slave has all")
        eventually(lambda: are_same(served, slave, "t-new"), what="the slave has the new topic")
        assert "[topic=t-*]" in slave.ini.read_text(), "autoSyncMasterConfig"
        assert f"serverPort={slave.port}" in slave.ini.read_text()


def test_topics_of_our_masters_server_ini_come_to_its_slave(zookeeper: Zookeeper, root: str, tmp_path: Path) -> None:
    """A reload of the master is noticed by the checksum in ZooKeeper; the slave has as many partitions then."""
    with (
        OurServer(tmp_path / "m", zookeeper, {"test": {}}, registry=registry(root)) as served,
        OurTextSlave(tmp_path / "s", zookeeper, {"test": {}}, registry=registry(root)) as slave,
    ):
        served.configure({"test": {"numPartitions": 3}, "more": {}})
        done = run_metaq("meta1", "reload", served.broker)
        assert done.returncode == 0, done.stderr
        eventually(lambda: "numPartitions=3" in slave.ini.read_text(), what="the slave's server.ini is written")
        with zookeeper.nodes() as nodes:
            eventually(
                lambda: '"numParts":3' in (nodes.text(f"{root}/brokers/topics-sub/test/0-s0") or ""),
                what="three partitions",
            )
            eventually(lambda: nodes.text(f"{root}/brokers/topics-sub/more/0-s0"), what="the new topic")


@pytest.mark.skipif(WRAPPER not in os.environ, reason=f"{WRAPPER} names no distribution with the original's slave")
def test_the_originals_slave_copies_our_master(
    producer: Metaq1Client, zookeeper: Zookeeper, root: str, tmp_path: Path
) -> None:
    """Consumers of the original read from it while our master is away."""
    java = producer
    with OurServer(tmp_path / "m", zookeeper, {"test": {}}, registry=registry(root)) as served:
        java.publisher("p", "f", ["test"])
        sends(java, "p", "test", [f"a{number}" for number in range(20)])
        with OriginalSlave(tmp_path / "s", zookeeper, {"test": {}}, registry=registry(root)) as slave:
            sends(java, "p", "test", [f"b{number}" for number in range(20)])
            eventually(lambda: are_same(served, slave), what="the slave has all")
            java.shutdown("p")
            served.stop()
            consumer(java, "d", root, {"test": MAX_SIZE})
            assert len(bodies(java.wait("d", 40))) == 40
            java.shutdown_all()


class LogPair:
    """A name server and two brokers of ours, one of which copies the other's log."""

    def __init__(self, folder: Path, zookeeper: Zookeeper, root: str) -> None:
        self.names = MetaqNamesrv(folder)
        self.names.start()
        self.a, self.b = (
            OurServer(folder / name, zookeeper, {"test": {"numPartitions": 2}}, registry=registry(root))
            for name in "ab"
        )
        options = [f"namesrvAddr={self.names.address}", "brokerName=pair", "registerNameServerPeriod=1000"]
        self.a.options = options
        self.b.options = [*options, "brokerRole=SLAVE", "broker.brokerId=1"]

    def __enter__(self) -> Self:
        self.a.start()
        self.b.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.a.kill()
        self.b.kill()
        self.names.stop()

    def promote(self, *flags: str) -> None:
        done = run_metaq("broker", "promote", "pair", "-n", self.names.address, *flags)
        assert done.returncode == 0, done.stderr


def test_a_java_consumer_goes_on_at_a_slave_of_the_log_that_leads(
    producer: Metaq1Client, zookeeper: Zookeeper, root: str, tmp_path: Path
) -> None:
    """The master is killed, the slave is promoted and takes its place in ZooKeeper while the session of the dead one lasts."""
    java = producer
    with LogPair(tmp_path, zookeeper, root) as pair, zookeeper.nodes() as nodes:
        master, slave = f"{root}/brokers/ids/0/master", f"{root}/brokers/ids/0/slave0"
        a_consumer_reads_and_goes(java, root, 20)
        sends(java, "p", "test", [f"b{number}" for number in range(10)])
        eventually(lambda: are_same(pair.a, pair.b, partitions=2), what="the slave has all")
        ends = lines(pair.a, "offsets")
        assert (nodes.text(master), nodes.text(slave)) == (f"meta://{pair.a.text}", f"meta://{pair.b.text}")
        pair.a.kill()
        pair.promote("--force")
        assert nodes.text(master) == f"meta://{pair.b.text}"
        assert nodes.text(slave) is None
        assert lines(pair.b, "offsets") == ends
        consumer(java, "d", root, {"test": MAX_SIZE})
        assert sorted(bodies(java.wait("d", 10))) == sorted(f"b{number}" for number in range(10))
        sends(java, "p", "test", ["c0"])
        java.wait("d", lambda events: "c0" in bodies(events))
        pair.a.start()
        eventually(lambda: nodes.text(slave) == f"meta://{pair.a.text}", what="the old master is a slave")
        assert nodes.text(master) == f"meta://{pair.b.text}"
        eventually(lambda: are_same(pair.b, pair.a, partitions=2), what="the old master has all")
        # In order: the roles change while both run, and nodes of the one never take away those of the other.
        pair.promote()
        eventually(lambda: nodes.text(master) == f"meta://{pair.a.text}", what="it leads again")
        eventually(lambda: nodes.text(slave) == f"meta://{pair.b.text}", what="the other follows")
        assert nodes.text(master) == f"meta://{pair.a.text}"
        sends(java, "p", "test", ["d0"])
        java.wait("d", lambda events: "d0" in bodies(events))


def test_a_prepared_branch_of_java_is_committed_at_the_slave_that_leads(
    java1: Metaq1Client, zookeeper: Zookeeper, root: str, tmp_path: Path
) -> None:
    """All of it, once: its transaction manager finds it there by RECOVER, with a resource of its own: Java's keeps a broker's address."""
    java = java1
    java.factory("x", zookeeper.address, root=root, kind="xa")
    with LogPair(tmp_path, zookeeper, root) as pair:
        java.publisher("before", "x", ["test"])
        java.xa("before", "start", "b1")
        receipts = java.send("before", "test", ["x1", "x2", "x3"])
        assert all(one["ok"] for one in receipts)
        java.xa("before", "end", "b1")
        assert java.xa("before", "prepare", "b1") == 0
        done = run_metaq("broker", "status", "pair", "-n", pair.names.address, "--wait")
        assert done.returncode == 0, done.stderr
        pair.a.kill()
        pair.promote("--force")
        java.publisher("after", "x", ["test"])
        assert java.xa("after", "recover") == ["7:g:b1"]
        java.xa("after", "commit", "b1")
        found = b"".join(frames(pair.b, "test", number) for number in (0, 1))
        assert [found.count(body) for body in (b"x1", b"x2", b"x3")] == [1, 1, 1]
        assert java.xa("after", "recover") == []
        with pytest.raises(DriverError) as caught:
            java.xa("after", "commit", "b1")
        assert caught.value.code == NOTA


@pytest.mark.parametrize("kind", ["text", "log"])
def test_our_python_client_reads_from_the_server_that_it_is_told_to(
    kind: str, producer: Metaq1Client, zookeeper: Zookeeper, root: str, tmp_path: Path
) -> None:
    """`slave_first` from either kind of slave, while the master is there; from the master when there is no slave any more."""
    java = producer

    def consume(read_from: str, wanted: int) -> list[str]:
        config = MetaClientConfig(zk_config=ZKConfig(zk_connect=zookeeper.address, zk_root=root))
        got: list[str] = []
        with MetaMessageSessionFactory(config) as factory:
            group = f"{read_from}-{kind}{root.replace('/', '-')}"
            reader = factory.create_consumer(
                ConsumerConfig(group, read_from=read_from, max_delay_fetch_time=0.1)  # type: ignore[arg-type]
            )
            reader.subscribe("test", MAX_SIZE, lambda message: got.append(message.data.decode()))
            reader.complete_subscribe()
            eventually(lambda: len(got) >= wanted)
        return sorted(got)

    def gets(server: TextServer) -> int:
        return next(int(line.split()[1]) for line in lines(server) if line.startswith("cmd_get "))

    def check(master: TextServer, slave: TextServer) -> None:
        sent = [f"m{number}" for number in range(10)]
        java.publisher("p", "f", ["test"])
        sends(java, "p", "test", sent)
        eventually(
            lambda: are_same(master, slave, partitions=1) or are_same(master, slave, partitions=2),
            what="the slave has all",
        )
        before = gets(slave)
        assert consume("slave_first", 10) == sorted(sent)
        assert gets(slave) > before
        before = gets(slave)
        assert consume("master_first", 10) == sorted(sent)
        assert gets(slave) == before
        slave.stop()
        assert consume("random", 10) == sorted(sent)

    if kind == "log":
        with LogPair(tmp_path, zookeeper, root) as pair:
            check(pair.a, pair.b)
        return
    with (
        OriginalServer(tmp_path / "m", zookeeper, {"test": {}}, registry=registry(root)) as master,
        OurTextSlave(tmp_path / "s", zookeeper, {"test": {}}, registry=registry(root)) as slave,
    ):
        check(master, slave)


def test_our_slave_takes_the_masters_place_and_the_old_master_comes_back_as_the_slave(
    producer: Metaq1Client, zookeeper: Zookeeper, root: str, tmp_path: Path
) -> None:
    """docs/failure-procedures.md: the slave without `-Fmetaslave`; the old master with it, and an empty folder."""
    java = producer
    with OurServer(tmp_path / "m", zookeeper, {"test": {}}, registry=registry(root)) as old:
        a_consumer_reads_and_goes(java, root, 10)
        with OurTextSlave(tmp_path / "s", zookeeper, {"test": {}}, registry=registry(root)) as slave:
            sends(java, "p", "test", [f"b{number}" for number in range(10)])
            eventually(lambda: are_same(old, slave), what="the slave has all")
            old.kill()
            slave.stop()
            OurServer.start(slave)
            sends(java, "p", "test", ["c0"])
            consumer(java, "d", root, {"test": MAX_SIZE})
            assert bodies(java.wait("d", 11)) == [*(f"b{number}" for number in range(10)), "c0"]
            shutil.rmtree(old.data)
            old.data.mkdir()
            OurTextSlave.start(old)  # type: ignore[arg-type]
            eventually(lambda: are_same(slave, old), what="the old master has all")
            sends(java, "p", "test", ["d0"])
            eventually(lambda: are_same(slave, old), what="the old master follows")
