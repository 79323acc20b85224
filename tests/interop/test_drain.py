"""A broker is drained and removed while the unchanged Java client 4.9.8 sends and consumes all the time."""

import contextlib
import itertools
import threading

import pytest

from metaq.admin import Admin
from metaq.testing import Cluster
from tests.interop.driver import DriverError, ForeignClient
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

    def __enter__(self) -> "Sends":
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
