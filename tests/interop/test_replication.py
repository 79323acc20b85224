"""Pairs of one broker of ours and one of RocketMQ 4.9.7, both ways round: the same log on both sides, and groups that go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metaq import Consumer, NoRoute, Producer, SendFailed
from metaq.admin import Admin
from metaq.wire.files import CONSUMER_OFFSETS
from tests.interop.driver import ForeignClient
from tests.interop.servers import MetaqServer, RocketmqServer
from tests.store.log.test_raw import raw_log
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop

FILE = 1 << 20
SMALL = f"mappedFileSizeCommitLog={FILE}"
NAME = "brokerName=broker-a"
SLAVE = ["brokerRole=SLAVE", "brokerId=1", "slaveReadEnable=true"]
TOPIC = "replicated"


class Pair:
    """Two brokers of one name at one name server."""

    def __init__(self, folder: Path, master: str, slave: str, role: str = "ASYNC_MASTER") -> None:
        self.names = RocketmqServer(folder / "names")
        self.names.start_namesrv()
        self.namesrv = self.names.namesrv
        roles = {"master": [f"brokerRole={role}", "slaveReadEnable=true", "slaveTimeout=300000"], "slave": SLAVE}
        kinds = {"master": master, "slave": slave}
        self.master, self.slave = (self._server(folder / who, kinds[who], roles[who]) for who in ("master", "slave"))

    def _server(self, folder: Path, kind: str, options: list[str]) -> MetaqServer | RocketmqServer:
        if kind == "rocketmq":
            return RocketmqServer(folder, namesrv=self.namesrv, options=[*options, SMALL])
        folder.mkdir()
        return MetaqServer(folder, namesrv=self.namesrv, options=[*options, SMALL, NAME])

    def ends(self) -> dict[int, int]:
        """Broker id → end of its log."""
        with Admin(self.namesrv) as admin:
            return {one.broker_id: int(one.runtime.get("commitLogMaxOffset", -1)) for one in admin.list_brokers()}

    def is_whole(self) -> int:
        ends = self.ends()
        return ends[0] if len(ends) == 2 and ends[0] == ends[1] else 0

    def assert_same(self, since: int = 0) -> None:
        """The slave has the master's bytes."""
        end = eventually(self.is_whole, PATIENCE, what="the slave has what the master has")
        assert raw_log(self.slave.data, since, end) == raw_log(self.master.data, since, end)


@contextmanager
def pair(folder: Path, master: str, slave: str, role: str = "ASYNC_MASTER") -> Iterator[Pair]:
    both = Pair(folder, master, slave, role)
    try:
        yield both
    finally:
        for server in (both.slave, both.master, both.names):
            if not isinstance(server, MetaqServer) or hasattr(server, "_process"):
                server.kill()


class Load:
    """A producer that sends without a pause, in a thread."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv, self._over = namesrv, threading.Event()
        self.acknowledged: list[bytes] = []
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def _run(self) -> None:
        with Producer(self._namesrv, timeout=PATIENCE) as producer:
            number = 0
            while not self._over.is_set():
                body = b"%d " % number + b"x" * 2000
                try:
                    producer.send(TOPIC, body)
                except (SendFailed, NoRoute):  # while the master is away
                    continue
                self.acknowledged.append(body)
                number += 1

    def wait_for(self, more: int) -> None:
        wanted = len(self.acknowledged) + more
        eventually(lambda: len(self.acknowledged) >= wanted, what=f"{more} more messages")

    def stop(self) -> list[bytes]:
        self._over.set()
        self._thread.join()
        return self.acknowledged


def read_until(namesrv: str, wanted: set[bytes]) -> None:
    """Return when all of these were read; some come twice, as their sends were repeated."""
    with Consumer(namesrv, group="readers", topics=TOPIC, start="earliest") as consumer:
        for message in consumer:
            with message:
                wanted.discard(message.body)
            if not wanted:
                return


@pytest.mark.parametrize(("master", "slave"), [("ours", "rocketmq"), ("rocketmq", "ours")])
def test_a_pair_has_one_log_through_kills_of_either_side(tmp_path, master, slave):
    """Under load, over several files. What was acknowledged is read from the slave when the master is gone for good."""
    with pair(tmp_path, master, slave) as both:
        both.master.start()
        both.slave.start()
        load = Load(both.namesrv)
        try:
            load.wait_for(700)
            both.slave.kill()
            load.wait_for(300)
            both.slave.start()
            load.wait_for(300)
            both.master.kill()
            both.master.start()
            load.wait_for(300)
        finally:
            sent = load.stop()
        both.assert_same()
        assert both.ends()[0] > 3 * FILE
        both.master.kill()
        read_until(both.namesrv, set(sent))


def test_a_slave_of_ours_begins_with_the_last_file_of_a_rocketmq_master(tmp_path):
    """A RocketMQ master sends no more to a slave that has nothing."""
    with pair(tmp_path, "rocketmq", "ours") as both:
        both.master.start()
        with Producer(both.namesrv, timeout=PATIENCE) as producer:
            for number in range(1000):
                producer.send(TOPIC, b"%d" % number + b"x" * 2000)
            both.slave.start()
            both.assert_same(both.ends()[0] // FILE * FILE)
            for number in range(1000):
                producer.send(TOPIC, b"%d" % number + b"x" * 2000)
            both.assert_same(both.ends()[0] // FILE * FILE)


def test_a_rocketmq_slave_of_ours_makes_sends_ok(tmp_path):
    """SYNC_MASTER: each send has its copy, and is told if there is none."""
    with pair(tmp_path, "ours", "rocketmq", "SYNC_MASTER") as both:
        both.master.start()
        with Producer(both.namesrv, timeout=PATIENCE) as producer:
            assert producer.send(TOPIC, b"alone").status.name == "SLAVE_NOT_AVAILABLE"
            both.slave.start()
            eventually(lambda: producer.send(TOPIC, b"x").status.name == "SEND_OK")
            assert {producer.send(TOPIC, b"%d" % number).status.name for number in range(100)} == {"SEND_OK"}
        both.assert_same()


@pytest.mark.parametrize("slave", ["ours", "rocketmq"])
def test_java_consumers_go_on_at_the_slave_of_a_master_that_is_gone(java: ForeignClient, tmp_path: Path, slave: str):
    """What the group had consumed is not handed out again, but for the last moment; the rest comes from the slave."""
    topic = f"{TOPIC}-{slave}"
    with pair(tmp_path, "ours", slave) as both:
        both.master.start()
        both.slave.start()
        with Producer(both.namesrv, timeout=PATIENCE) as producer:
            for number in range(200):
                producer.send(topic, b"%d" % number)
        both.assert_same()
        java.consumer("first", both.namesrv, f"java-{slave}", {topic: "*"})
        java.wait("first", 200)
        java.shutdown("first")
        with Producer(both.namesrv, timeout=PATIENCE) as producer:
            for number in range(200, 300):
                producer.send(topic, b"%d" % number)
        both.assert_same()
        eventually(lambda: progress(both.slave.data, f"java-{slave}") == 200, what="the slave knows what was consumed")
        both.master.kill()
        java.consumer("second", both.namesrv, f"java-{slave}", {topic: "*"})
        got = java.wait("second", 100)
        assert sorted({int(event["body"]) for event in got}) == list(range(200, 300))
        java.shutdown_all()


def progress(data: Path, group: str) -> int:
    """What a broker's file says that the group has consumed of our topics."""
    path = data / "config" / "consumerOffset.json"
    table = CONSUMER_OFFSETS.parse(path.read_text()) if path.exists() else {}
    return sum(
        sum(queues.values()) for (topic, name), queues in table.items() if topic.startswith(TOPIC) and name == group
    )
