"""Off the JVM: a RocketMQ master, a slave of ours that is promoted, RocketMQ's broker and name server gone; Java's clients work all the time.

The program of the gallery does it, examples/gallery/move_from_rocketmq.py; what its commands do is done here.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from metaq.admin import Admin
from tests.examples.gallery import PICTURE_BYTES_MAX, loaded
from tests.interop.driver import DriverError, ForeignClient
from tests.interop.servers import MetaqNamesrv, MetaqServer, RocketmqServer, mqadmin
from tests.store.log.test_raw import raw_log
from tests.support import PATIENCE, eventually

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


def test_a_rocketmq_broker_is_replaced_under_load(java: ForeignClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A slave from a copy of its log, promoted when it has all; nothing is lost, and the group goes on where it was."""
    example = loaded("move_from_rocketmq", monkeypatch)
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

            def start_new() -> None:
                new.start()
                before = load.statuses["SEND_OK"]
                eventually(lambda: load.statuses["SEND_OK"] > before, what="sends have their copy")

            does: dict[str, Callable[[], object]] = {
                # A RocketMQ master sends a new slave its last file alone: the others are copied, while it writes.
                "copy": lambda: shutil.copytree(old.data / "commitlog", new.data / "commitlog"),
                "start": start_new,
                "stop_sends": lambda: mqadmin(tmp_path, old, "wipeWritePerm", "-b", "broker-a"),
                "stop_old": old.stop,
                "allow_sends": lambda: pytest.fail("it is given up"),
            }
            done: list[str] = []

            def shell(command: str) -> int:
                done.append(command)
                does[command]()
                return 0

            plan = {"broker": "broker-a", "quiet_seconds": 0.5, "commands": {name: name for name in does}}
            with Admin(names.namesrv) as admin:
                move, over = example.Move(plan, admin, PATIENCE, shell), threading.Event()
                measuring = threading.Thread(target=move.measure, args=(over,))
                measuring.start()

                def delivers(*, new: bool) -> None:
                    eventually(lambda: max(example.rates(move.moments, new=new)[2], default=0) > 0, what="deliveries")

                try:
                    delivers(new=False)  # a quick machine has moved before the second look
                    move.run()
                    load.wait_for(300)
                    # The consumer has found the new broker as well, before a look at the name server may be lost with that.
                    late = load.acknowledged[-1]
                    java.wait("reader", lambda events: any(event["body"] == late for event in events))
                    delivers(new=True)
                finally:
                    over.set()
                    measuring.join()
            assert done == list(example.STEPS)
            end = move.ended
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
        # Both have delivered what they stored, and the picture shows it.
        for ours in (False, True):
            assert max(example.rates(move.moments, new=ours)[1]) > 0
            assert max(example.rates(move.moments, new=ours)[2]) > 0
        example.draw(tmp_path / "moved.svg", move.moments, move.events)
        assert len((tmp_path / "moved.svg").read_bytes()) < PICTURE_BYTES_MAX
    finally:
        java.shutdown_all()
        for server in (new, old, names):
            server.kill()
        if started:
            successor.stop()
