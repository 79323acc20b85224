"""Clients through changes of leaders: no send fails, consumers go on, and all find the new leader without waiting for a poll.

The clients here poll their routes and send heartbeats every hour: whoever goes on has asked at once. How long each of them took is
printed (`pytest -s`).
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import metaq
from metaq import aio
from metaq.admin import Admin
from metaq.model import SendStatus
from tests.support import PATIENCE, eventually
from tests.system.test_promotion import Pair

pytestmark = pytest.mark.slow

HOUR = 3600.0
TOPIC = "orders"
QUIET: dict[str, Any] = {"poll_name_server_interval": HOUR, "heartbeat_broker_interval": HOUR}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("failover"))
    servers = [pair.names, *pair.brokers.values()]
    try:
        for server in servers:
            server.start()
        with Admin(pair.namesrv) as admin:
            admin.create_topic(TOPIC)
            eventually(pair.is_even, what="the slave has all")
        yield pair
    finally:
        for server in reversed(servers):
            if server.alive:
                server.kill()


class Worker(threading.Thread):
    """Calls `work` again and again until told to stop; notes when it has come through, and what it has raised."""

    def __init__(self, name: str, work: Callable[[int], object]) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._ended = work, threading.Event()
        self.done_at: list[float] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for number in itertools.count():
                if self._ended.is_set():
                    return
                self._work(number)
                self.done_at.append(time.monotonic())
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._ended.set()
        self.join(PATIENCE)

    def went_on(self, since: float) -> bool:
        if self.error is not None:
            raise self.error
        return bool(self.done_at) and self.done_at[-1] > since

    def pause(self, since: float) -> float:
        """Seconds from then until it came through the first time."""
        return next(at for at in self.done_at if at > since) - since


class Clients:
    """Clients of every kind at the pair, each with connections of its own."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self.acked: set[bytes] = set()
        self._closing: list[Any] = []
        self.workers = [
            Worker("send", self._sends("send", lambda one, body: one.send(TOPIC, body))),
            Worker("submit", self._sends("submit", self._submitted)),
            Worker("ordered", self._sends("ordered", lambda one, body: one.send(TOPIC, body, ordering_key="k"))),
            Worker("large", self._sends("large", lambda one, body: one.send(TOPIC, body + b"-" * 70_000))),
            Worker("aio", self._aio()),
            Worker("atomic", self._sends("atomic", self._atomic)),
            Worker("transaction", self._transactions()),
            Worker("arrow", self._sends("arrow", self._arrow)),
        ]

    def _opened(self, client: Any) -> Any:
        self._closing.append(client)
        return client

    def _sends(self, name: str, send: Callable[[metaq.Producer, bytes], Any]) -> Callable[[int], object]:
        producer = self._opened(metaq.Producer(self._namesrv, timeout=PATIENCE, instance_name=name, **QUIET))

        def work(number: int) -> None:
            body = b"%s-%d" % (name.encode(), number)
            receipt = send(producer, body)
            assert receipt is None or receipt.status is SendStatus.SEND_OK, receipt
            self.acked.add(body)

        return work

    @staticmethod
    def _submitted(producer: metaq.Producer, body: bytes) -> metaq.SendReceipt:
        futures = [producer.submit(TOPIC, body if not at else b"filler") for at in range(20)]
        receipts = [future.result(PATIENCE) for future in futures]
        return receipts[0]

    @staticmethod
    def _atomic(producer: metaq.Producer, body: bytes) -> None:
        with producer.atomic(timeout=PATIENCE) as tx:
            tx.send(TOPIC, body)
            tx.send(TOPIC, b"filler")

    @staticmethod
    def _arrow(producer: metaq.Producer, body: bytes) -> None:
        pa = pytest.importorskip("pyarrow")
        producer.send_arrow(pa.table({"body": [body, b"filler"]}), TOPIC, timeout=PATIENCE)

    def _transactions(self) -> Callable[[int], object]:
        producer = self._opened(
            metaq.TransactionProducer(
                self._namesrv, group="failover", check=lambda _: True, timeout=PATIENCE, confirm=True,
                instance_name="transaction", **QUIET,
            )
        )  # fmt: skip

        def work(number: int) -> None:
            body = b"transaction-%d" % number
            with producer.transaction(TOPIC, body):
                pass
            self.acked.add(body)

        return work

    def _aio(self) -> Callable[[int], object]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()

        async def opened() -> aio.Producer:
            return aio.Producer(self._namesrv, timeout=PATIENCE, instance_name="aio", **QUIET)

        producer = asyncio.run_coroutine_threadsafe(opened(), loop).result(PATIENCE)

        def close() -> None:
            asyncio.run_coroutine_threadsafe(producer.close(), loop).result(PATIENCE)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(PATIENCE)

        self._closing.append(close)

        async def send(bodies: list[bytes]) -> list[metaq.SendReceipt]:
            return list(await asyncio.gather(*(producer.send(TOPIC, body) for body in bodies)))

        def work(number: int) -> None:
            bodies = [b"aio-%d-%d" % (number, at) for at in range(10)]
            asyncio.run_coroutine_threadsafe(send(bodies), loop).result(PATIENCE)
            self.acked.update(bodies)

        return work

    def close(self) -> None:
        for client in self._closing:
            client() if callable(client) else client.close()


class Takers:
    """Consumers of every kind, each of which reads everything."""

    def __init__(self, namesrv: str) -> None:
        self.seen: dict[str, dict[bytes, float]] = {name: {} for name in ("push", "orderly", "pull", "reader")}
        common: dict[str, Any] = QUIET
        self._ended = threading.Event()
        self._clients: dict[str, Any] = {
            "push": metaq.Consumer(
                namesrv, group="push", topics=TOPIC, start="earliest", instance_name="push", **common
            ),
            "orderly": metaq.Consumer(
                namesrv,
                group="orderly",
                topics=TOPIC,
                start="earliest",
                orderly=True,
                instance_name="orderly",
                **common,
            ),
            "pull": metaq.PullConsumer(namesrv, group="pull", start="earliest", instance_name="pull", **common),
            "reader": metaq.Reader(namesrv, TOPIC, instance_name="reader", **common),
        }
        self._clients["pull"].register_topics(TOPIC)
        self._threads = [
            threading.Thread(target=self._push, args=("push",), daemon=True),
            threading.Thread(target=self._push, args=("orderly",), daemon=True),
            threading.Thread(target=self._poll, daemon=True),
            threading.Thread(target=self._read, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _note(self, name: str, body: bytes) -> None:
        self.seen[name].setdefault(body.rstrip(b"-"), time.monotonic())

    def _push(self, name: str) -> None:
        for message in self._clients[name]:
            with message:
                self._note(name, message.body)

    def _poll(self) -> None:
        while not self._ended.is_set():
            for message in self._clients["pull"].poll(0.2):
                self._note("pull", message.body)

    def _read(self) -> None:
        for message in self._clients["reader"]:
            self._note("reader", message.body)

    def have(self, wanted: set[bytes]) -> bool:
        return all(wanted <= seen.keys() for seen in self.seen.values())

    def pause(self, name: str, bodies: set[bytes], since: float) -> float:
        """Seconds from then until the first of those messages was seen."""
        return min(self.seen[name][body] for body in bodies) - since

    def close(self) -> None:
        self._ended.set()
        for client in self._clients.values():
            client.close()
        for thread in self._threads:
            thread.join(PATIENCE)


def change(pair: Pair, leader: str, how: str) -> float:
    """Have the other one lead. Returns when it did."""
    with Admin(pair.namesrv) as admin:
        if how == "killed":
            pair.brokers[leader].kill()
        elif how == "asleep":
            pair.brokers[leader].pause()
        # By its address: the sleeper would be asked first, for a minute.
        admin.promote(pair.address(pair.other(leader)), force=how != "handed over")
        return time.monotonic()


@pytest.mark.parametrize("how", ["killed", "handed over", "asleep"])
def test_no_send_fails_and_consumers_go_on_when_another_broker_leads(pair, how):
    """The leader is killed and its slave promoted; then both are well; then the leader sleeps."""
    eventually(pair.is_even, what="both are there")
    leader = pair.leader()
    clients, takers = Clients(pair.namesrv), Takers(pair.namesrv)
    try:
        for worker in clients.workers:
            worker.start()
        started = time.monotonic()
        eventually(lambda: all(worker.went_on(started) for worker in clients.workers), what="all send")
        # Twelve sends of a thread, and the next goes on a direct link.
        eventually(lambda: all(len(worker.done_at) > 12 for worker in clients.workers), what="direct links are there")
        eventually(lambda: takers.have(set(list(clients.acked)[:100])), what="all consume")
        since = change(pair, leader, how)
        eventually(lambda: all(worker.went_on(since) for worker in clients.workers), what="all send to the new leader")
        paused = {worker.name: round(worker.pause(since), 2) for worker in clients.workers}
        with metaq.Producer(pair.namesrv, timeout=PATIENCE, instance_name="marker") as producer:
            marks = {b"mark-%s-%d" % (how.encode(), at) for at in range(8)}
            marked = time.monotonic()
            for mark in marks:
                producer.send(TOPIC, mark)
        eventually(lambda: takers.have(marks), what="all consume from the new leader")
        paused |= {name: round(takers.pause(name, marks, marked), 2) for name in takers.seen}
        print(f"\n{how}: seconds from the promotion to the first answer, from a send to its arrival: {paused}")
        for worker in clients.workers:
            worker.end()
            assert worker.error is None, (worker.name, worker.error)
        if how == "asleep":
            pair.brokers[leader].resume()
        elif how == "killed":
            pair.brokers[leader].start()
        eventually(pair.is_even, what="the old leader follows")
        # The pair is asynchronous: what only the dead or sleeping leader had is gone.
        if how == "handed over":
            eventually(lambda: takers.have(clients.acked), what="all that was acknowledged is consumed")
    finally:
        clients.close()
        takers.close()
