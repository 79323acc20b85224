"""Changes of leaders by hand under clients of both languages that learn of them late: none of their sends fails."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from metaq import Consumer
from metaq.app.role import stepping_down
from metaq.model import TopicConfig
from tests.app.test_promotion import Brokers
from tests.app.test_promotion_in_place import numbers_of, promote
from tests.interop.driver import DriverError, Event, ForeignClient
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop

T = TypeVar("T")
TOPIC, QUEUES = "orders", 4
AT_ONCE = 1
PACE_SECONDS = 0.01
"""Each message is an event of the Java consumer, and more of them prove no more."""
LOCAL = {"bind_address": "127.0.0.1", "broker_ip1": "127.0.0.1", "vip_port_enable": False}


class Loop:
    """An event loop in a thread: Java's driver is asked by blocking calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brokers")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class JavaLoad:
    """A Java producer that sends numbers to each queue all the time, and tries none again (a send with a selector never does)."""

    def __init__(self, java: ForeignClient) -> None:
        self._java, self._over = java, threading.Event()
        self.sent: dict[int, list[int]] = {queue_id: [] for queue_id in range(QUEUES)}
        self.longest = 0.0
        self.failed: DriverError | None = None
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._over.wait(PACE_SECONDS):
                for queue_id, numbers in self.sent.items():
                    bodies = [str(len(numbers) + place) for place in range(AT_ONCE)]
                    began = time.monotonic()
                    receipts = self._java.send("load", TOPIC, bodies, mode="ordered", ordering_key=queue_id)
                    self.longest = max(self.longest, time.monotonic() - began)
                    assert {one["status"] for one in receipts} == {"SEND_OK"}
                    numbers += map(int, bodies)
        except DriverError as error:
            self.failed = error

    def more(self) -> None:
        wanted = len(self.sent[QUEUES - 1]) + 4 * AT_ONCE

        def grown() -> bool:
            assert self.failed is None, self.failed
            return len(self.sent[QUEUES - 1]) >= wanted

        eventually(grown, what="the Java producer sends on")

    def stop(self) -> dict[int, list[int]]:
        self._over.set()
        self._thread.join()
        assert self.failed is None
        return self.sent


class Orderly:
    """A consumer in Python that locks its queues."""

    def __init__(self, namesrv: str, poll_seconds: float) -> None:
        self._consumer = Consumer(
            namesrv,
            group="orderly",
            topics=TOPIC,
            start="earliest",
            orderly=True,
            poll_name_server_interval=poll_seconds,
        )
        self.got: dict[int, list[int]] = defaultdict(list)
        self._thread = threading.Thread(target=self._run, name="orderly")
        self._thread.start()

    def _run(self) -> None:
        for message in self._consumer:
            with message:
                self.got[message.queue_id].append(int(message.body))

    def stop(self) -> None:
        self._consumer.close()
        self._thread.join()


def of_java(events: list[Event]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {queue_id: [] for queue_id in range(QUEUES)}
    for event in events:
        found[event["queue_id"]].append(int(event["body"]))
    return found


@pytest.mark.parametrize(
    ("poll_seconds", "changes"),
    [(0.5, "babab"), pytest.param(30.0, "ba", marks=pytest.mark.all)],
    ids=["", "as by default"],
)
def test_clients_notice_nothing_of_changes_of_leaders(
    java: ForeignClient, tmp_path, monkeypatch, capsys, poll_seconds, changes
):
    """What was sent is there once and in its order; the consumers, a Java one and one that locks its queues, get all of it."""
    if poll_seconds < 1:
        monkeypatch.setattr(stepping_down, "QUIET_SECONDS", 3 * poll_seconds)
    loop, brokers = Loop(), Brokers(tmp_path, {})
    brokers.both = LOCAL

    async def begin() -> None:
        await brokers.open()
        brokers.broker("a").topics.saved.change(TOPIC, TopicConfig(TOPIC, QUEUES, QUEUES))

    async def change(old: str, new: str) -> None:
        await promote(brokers, new)
        assert brokers.running[old]._tasks.role.must_start_again

    try:
        loop.run(begin())
        eventually(lambda: brokers.broker("b").topics.get(TOPIC), what="the slave has the topic")
        names, poll_ms = brokers.namesrv.address, int(poll_seconds * 1000)
        java.producer("load", names, poll_ms=poll_ms)
        java.consumer("push", names, "push", {TOPIC: "*"}, poll_ms=poll_ms)
        load, orderly = JavaLoad(java), Orderly(names, poll_seconds)
        try:
            load.more()
            for new in changes:
                old = "b" if new == "a" else "a"
                loop.run(change(old, new))
                load.more()
                loop.run(brokers.restart_when_it_asks(old))
                load.more()
            sent = load.stop()
            java.wait("push", lambda events: all(set(sent[one]) == set(of_java(events)[one]) for one in sent))
            eventually(lambda: all(set(sent[one]) == set(orderly.got[one]) for one in sent), what="all is consumed")
        finally:
            load.stop()
            orderly.stop()
            java.shutdown_all()
        loop.run(brokers.same())
        assert numbers_of(brokers, changes[-1]) == sent
        for queue_id, numbers in sent.items():
            assert list(dict.fromkeys(orderly.got[queue_id])) == numbers
        with capsys.disabled():
            count = sum(map(len, sent.values()))
            print(f"\nJava, {len(changes)} changes of leaders: {count} sends, the longest took {load.longest:.3f} s")
    finally:
        loop.run(brokers.close())
        loop.stop()
