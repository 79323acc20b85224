"""A broker is drained and removed while the unchanged Java client 4.9.8 sends and consumes all the time; and RocketMQ's servers."""

import contextlib
import itertools
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from metaq.admin import Admin, Refusal
from metaq.testing import Cluster
from tests.admin.growing import Traffic
from tests.interop.driver import DriverError, ForeignClient
from tests.interop.servers import MetaqServer, RocketmqServer
from tests.support import PATIENCE, eventually

pytestmark = [pytest.mark.interop, pytest.mark.all]

QUIET = 40.0
"""The command's own: the Java client looks at routes every 30 s."""


class Sends:
    """A Java producer that sends in a thread, until the block is left."""

    def __init__(self, java: ForeignClient, topic: str) -> None:
        self.failed: list[DriverError] = []
        self.brokers: list[str] = []
        self._java, self._topic, self._end = java, topic, threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _send(self) -> None:
        for number in itertools.count():
            if self._end.wait(0.01):
                return
            try:
                [receipt] = self._java.send("p", self._topic, [f"m{number}"])
            except DriverError as error:
                self.failed.append(error)
            else:
                assert receipt["status"] == "SEND_OK"
                self.brokers.append(receipt["broker"])


def test_no_send_of_a_java_producer_fails(java: ForeignClient) -> None:
    """The broker takes what comes until the client knows, is read to its end, and stops; each message is consumed once."""
    with Cluster(brokers=2) as cluster, Admin(cluster.namesrv) as admin:
        admin.create_topic("drained", queues=2)
        java.producer("p", cluster.namesrv, retries=0)
        java.consumer("c", cluster.namesrv, "drained-group", {"drained": "*"})
        with Sends(java, "drained") as sends:
            eventually(lambda: set(sends.brokers[:50]) == {"broker-0", "broker-1"})
            begun = len(sends.brokers)
            done = admin.remove_broker("broker-0", quiet_seconds=QUIET, timeout=PATIENCE)
            assert "broker-0" in sends.brokers[begun:], "it still was sent to, and took it"
            assert cluster.brokers[0].wait_ended(PATIENCE) == 0
            after = len(sends.brokers)
            eventually(lambda: len(sends.brokers) > after + 50)
        assert sends.failed == []
        assert set(sends.brokers[after:]) == {"broker-1"}
        assert not done.left.waits
        events = java.wait("c", len(sends.brokers))
        assert sorted(event["body"] for event in events) == sorted(f"m{number}" for number in range(len(sends.brokers)))
        with contextlib.suppress(DriverError):
            java.shutdown_all()


def test_a_rocketmq_broker_is_drained_by_its_permission(tmp_path: Path) -> None:
    """Beside one of ours, at our name server: sends go to ours, none fails, all is read; nobody can stop it from here."""
    with Cluster(brokers=1) as cluster, Admin(cluster.namesrv) as admin, ExitStack() as ends:
        foreign = RocketmqServer(tmp_path, namesrv=cluster.namesrv)
        foreign.start()
        ends.callback(foreign.kill)
        eventually(lambda: len(admin.list_brokers()) == 2)
        for broker in ("broker-0", "broker-a"):
            admin.create_topic("beside", queues=2, broker=broker)
        with Traffic(cluster.namesrv, "beside", "beside-group") as traffic:
            eventually(lambda: traffic.since() == {"broker-0", "broker-a"})
            with pytest.raises(Refusal, match="is a RocketMQ"):
                admin.drain_broker("broker-a", stop=True)
            done = admin.remove_broker("broker-a", quiet_seconds=2, timeout=PATIENCE)
            assert not done.stopped
            assert not done.left.waits
            assert traffic.since() == {"broker-0"}
            admin.undo_drain("broker-a")
            eventually(lambda: traffic.since() == {"broker-0", "broker-a"})
        traffic.whole()


def test_a_topic_moves_at_a_name_server_of_rocketmq(tmp_path: Path) -> None:
    """Which could only forget the whole route: the topic stays at the old broker, read-only, and no send fails."""
    with ExitStack() as ends:
        foreign = RocketmqServer(tmp_path / "foreign")
        foreign.start_namesrv()
        ends.callback(foreign.kill)
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            broker = MetaqServer(tmp_path / name, namesrv=foreign.namesrv, options=[f"brokerName=broker-{name}"])
            broker.start()
            ends.callback(broker.stop)
        admin = ends.enter_context(Admin(foreign.namesrv))
        eventually(lambda: len(admin.list_brokers()) == 2)
        admin.create_topic("moves", queues=2, broker="broker-a")
        with Traffic(foreign.namesrv, "moves", "moves-group") as traffic:
            done = admin.move_topic("moves", "broker-a", "broker-b", quiet_seconds=2, timeout=PATIENCE)
            assert done.left
            assert traffic.since() == {"broker-b"}
        traffic.whole()
        perms = {data.broker: data.perm for data in admin.describe_topic("moves").route.queues}
        assert perms == {"broker-a": 4, "broker-b": 6}
