"""Pairs of one broker of ours and one of RocketMQ 4.9.7, both ways round: the same log on both sides, and groups that go on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from metaq import Consumer, NoRoute, Producer, SendFailed
from metaq.wire.files import CONSUMER_OFFSETS
from tests.interop.driver import ForeignClient
from tests.interop.pairs import FILE, OURS, ROCKETMQ, pair
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop

TOPIC = "replicated"


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


@pytest.mark.parametrize(("master", "slave"), [(OURS, ROCKETMQ), (ROCKETMQ, OURS)])
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
    with pair(tmp_path, ROCKETMQ, OURS) as both:
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
    with pair(tmp_path, OURS, ROCKETMQ, "SYNC_MASTER") as both:
        both.master.start()
        with Producer(both.namesrv, timeout=PATIENCE) as producer:
            assert producer.send(TOPIC, b"alone").status.name == "SLAVE_NOT_AVAILABLE"
            both.slave.start()
            eventually(lambda: producer.send(TOPIC, b"x").status.name == "SEND_OK")
            assert {producer.send(TOPIC, b"%d" % number).status.name for number in range(100)} == {"SEND_OK"}
        both.assert_same()


@pytest.mark.parametrize(("master", "slave"), [(OURS, OURS), (OURS, ROCKETMQ), (ROCKETMQ, OURS)])
def test_java_consumers_go_on_at_the_slave_of_a_master_that_is_gone(
    java: ForeignClient, tmp_path: Path, master: str, slave: str
) -> None:
    """What the group had consumed is not handed out again, but for the last moment; the rest comes from the slave. When the
    master is back, it learns from a slave of ours how far the group is, and never takes that for less.
    """
    topic = group = f"{TOPIC}-{master}-{slave}"
    with pair(tmp_path, master, slave) as both:
        both.master.start()
        both.slave.start()
        with Producer(both.namesrv, timeout=PATIENCE) as producer:
            for number in range(200):
                producer.send(topic, b"%d" % number)
        both.wait_until_whole()
        java.consumer("first", both.namesrv, group, {topic: "*"})
        java.wait("first", 200)
        java.shutdown("first")
        with Producer(both.namesrv, timeout=PATIENCE) as producer:
            for number in range(200, 300):
                producer.send(topic, b"%d" % number)
        both.assert_same(both.ends()[0] // FILE * FILE)
        eventually(lambda: progress(both.slave.data, group) == 200, what="the slave knows what was consumed")
        # What a master has only in memory is lost with it, and the lower offset of its file is a reset to its slave.
        eventually(lambda: progress(both.master.data, group) == 200, what="the master has saved it")
        both.master.kill()
        java.consumer("second", both.namesrv, group, {topic: "*"})
        got = java.wait("second", 100)
        assert sorted({int(event["body"]) for event in got}) == list(range(200, 300))
        java.shutdown("second")
        if slave != OURS:
            return  # RocketMQ's slave forgets what was committed there
        eventually(lambda: progress(both.slave.data, group) == 300, what="progress at the slave")
        both.master.start()
        seen = [progress(both.slave.data, group)]

        def merged() -> bool:
            seen.append(progress(both.slave.data, group))
            return progress(both.master.data, group) == 300

        eventually(merged, what="the master knows what was consumed at its slave")
        assert set(seen) == {300}
        java.consumer("third", both.namesrv, group, {topic: "*"})
        with Producer(both.namesrv, timeout=PATIENCE) as producer:
            producer.send(topic, b"300")
        assert [event["body"] for event in java.wait("third", 1)] == ["300"]
        java.shutdown("third")


def progress(data: Path, group: str) -> int:
    """What a broker's file says that the group has consumed of our topics."""
    path = data / "config" / "consumerOffset.json"
    table = CONSUMER_OFFSETS.parse(path.read_text()) if path.exists() else {}
    return sum(
        sum(queues.values()) for (topic, name), queues in table.items() if topic.startswith(TOPIC) and name == group
    )
