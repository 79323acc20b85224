"""Off the JVM: a RocketMQ master, a slave of ours that is promoted, RocketMQ's broker and name server gone; Java's clients work all the time."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

from metaq.admin import Admin
from tests.interop.driver import DriverError, ForeignClient
from tests.interop.servers import MetaqNamesrv, MetaqServer, RocketmqServer, mqadmin
from tests.store.log.test_raw import raw_log
from tests.support import eventually, run_metaq

pytestmark = pytest.mark.interop

FILE = 1 << 20
OPTIONS = [f"mappedFileSizeCommitLog={FILE}", "slaveReadEnable=true", "slaveTimeout=300000"]
TOPIC = "moved"
POLL_MS = 1000


class Load:
    """A Java producer that sends one message after the other; what fails is sent again."""

    def __init__(self, java: ForeignClient, namesrv: str) -> None:
        self._java, self._over = java, threading.Event()
        self.acknowledged: list[str] = []
        self.statuses = Counter[str]()
        java.producer("load", namesrv, poll_ms=POLL_MS)
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            body = f"{len(self.acknowledged)} {'x' * 2000}"
            try:
                (receipt,) = self._java.send("load", TOPIC, [body])
            except DriverError:
                continue
            self.statuses[receipt["status"]] += 1
            self.acknowledged.append(body)

    def wait_for(self, more: int) -> None:
        wanted = len(self.acknowledged) + more
        eventually(lambda: len(self.acknowledged) >= wanted, what=f"{more} more messages")

    def stop(self) -> list[str]:
        self._over.set()
        self._thread.join()
        return self.acknowledged


def registered(namesrv: str) -> bool:
    """Whether a master of ours is there."""
    with Admin(namesrv) as admin:
        return any(one.broker_id == 0 and "METAQ" in one.runtime for one in admin.list_brokers())


def copied(namesrv: str) -> int:
    """Where the log of both brokers ends; 0: the slave is not there, or has not all."""
    with Admin(namesrv) as admin:
        ends = {one.broker_id: one.log_end or -1 for one in admin.list_brokers() if not one.error}
    return ends[0] if len(ends) == 2 and ends[0] == ends[1] else 0


def test_a_rocketmq_broker_is_replaced_under_load(java: ForeignClient, tmp_path: Path):
    """A slave from a copy of its log, promoted when it has all; nothing is lost, and the group goes on where it was."""
    names = RocketmqServer(tmp_path / "names")
    names.start_namesrv()
    old = RocketmqServer(tmp_path / "old", namesrv=names.namesrv, options=[*OPTIONS, "brokerRole=SYNC_MASTER"])
    (tmp_path / "new").mkdir()
    role = ["brokerName=broker-a", "brokerRole=SLAVE", "brokerId=1"]
    new = MetaqServer(tmp_path / "new", namesrv=names.namesrv, options=[*OPTIONS, *role])
    (tmp_path / "successor").mkdir()
    successor = MetaqNamesrv(tmp_path / "successor")
    successor.address, started = names.namesrv, False
    try:
        old.start()
        java.consumer("reader", names.namesrv, "readers", {TOPIC: "*"}, poll_ms=POLL_MS)
        load = Load(java, names.namesrv)
        try:
            load.wait_for(1200)
            # A RocketMQ master sends a new slave its last file alone: the others are copied, while it writes.
            shutil.copytree(old.data / "commitlog", new.data / "commitlog")
            new.start()
            before = load.statuses["SEND_OK"]
            eventually(lambda: load.statuses["SEND_OK"] > before, what="sends have their copy")
            # No more sends go there: what is on the way is answered, and copied.
            mqadmin(tmp_path, old, "wipeWritePerm", "-b", "broker-a")
            end = eventually(lambda: copied(names.namesrv), what="the slave has all")
            old.stop()
            led = run_metaq("broker", "promote", "broker-a", "--force", "--role", "ASYNC_MASTER", "-n", names.namesrv)
            assert led.returncode == 0, led.stderr
            load.wait_for(300)
            # The name server at last: clients and brokers go on with what they know, and find the new one at its address.
            names.kill()
            successor.start()
            started = True
            eventually(lambda: registered(names.namesrv), what="the broker is registered at the new name server")
            load.wait_for(300)
        finally:
            sent = load.stop()
        wanted = set(sent)
        got = java.wait("reader", lambda events: wanted <= {event["body"] for event in events})
        repeated = len(got) - len({event["body"] for event in got})
        assert repeated < len(sent) / 4  # progress of the last seconds, and sends that were repeated
        assert end > 2 * FILE
        assert raw_log(new.data, 0, end) == raw_log(old.data, 0, end)
    finally:
        java.shutdown_all()
        for server in (new, old, names):
            server.kill()
        if started:
            successor.stop()
