"""RocketMQ's Java client, unchanged, and a group of replicas whose leader is killed or changed by command.

How long a producer got no acknowledgement is printed (`pytest -s`).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pytest

from metaq.admin import Admin
from metaq.testing import Cluster
from tests.interop.driver import DriverError, Event, ForeignClient
from tests.interop.metaq1 import Zookeeper
from tests.support import PATIENCE, eventually, run_metaq

pytestmark = pytest.mark.interop

NAME: Final = "broker-0"
TOPIC, QUEUES = "orders", 4
PACE_SECONDS = 0.02
POLL_MS, SEND_MS = 1000, 10_000
DEFAULT_POLL_MS, DEFAULT_SEND_MS = 30_000, 3000
"""The Java client's own."""
DELAY_LEVEL, DELAYS = 1, "3s 10s"
FAILOVER: Mapping[str, object] = {
    "failover": "zookeeper", "failoverSessionTimeout": 2000, "inSyncTimeout": 2000, "messageDelayLevel": DELAYS,
    "transactionTimeOut": 0, "transactionCheckInterval": 500, "transactionCheckMax": 1000,
}  # fmt: skip
ASKS_NOBODY: Mapping[str, object] = {"transactionCheckInterval": 3_600_000}
"""What the first broker of a group has: its half messages are ended by the other."""
_roots = (f"/failover-{number}" for number in itertools.count())


@contextlib.contextmanager
def groups(zookeeper: Zookeeper, names: int) -> Iterator[Cluster]:
    """Groups of two replicas at a place of their own in the tests' ZooKeeper, in sync, with the topic."""
    root = next(_roots)
    with zookeeper.nodes() as nodes:
        nodes.client.create(root)
    place = {"failoverZookeeper": f"{zookeeper.address}{root}"}
    with Cluster(
        brokers=names,
        replicas=2,
        zookeeper=zookeeper.address,
        options={**FAILOVER, **place},
        broker_options=[ASKS_NOBODY],
    ) as made:
        in_sync(made)
        with Admin(made.namesrv) as admin:
            for number in range(names):
                admin.create_topic(TOPIC, queues=QUEUES, broker=f"broker-{number}")
        yield made


@pytest.fixture(scope="module")
def group(zookeeper: Zookeeper) -> Iterator[Cluster]:
    """One broker name. Each test leaves it well."""
    with groups(zookeeper, 1) as made:
        yield made


def in_sync(cluster: Cluster) -> None:
    """Return when all members of all groups are registered and in the in-sync set."""
    everyone = tuple(range(1, cluster.replicas + 1))

    def is_so() -> bool:
        with Admin(cluster.namesrv) as admin:
            standings = admin.list_groups_of_replicas()
            return len(standings) * cluster.replicas == len(cluster.brokers) and all(
                one.in_sync == everyone and not one.out_of_sync and len(one.members) == len(everyone)
                for one in standings
            )

    eventually(is_so, what="all members are in sync")


def leader(cluster: Cluster, broker: int = 0) -> int:
    found: list[int] = []

    def is_one() -> bool:
        found[:] = [at for at in (cluster.leader(broker),) if at is not None]
        return bool(found)

    eventually(is_one, what="one leads")
    return found[0]


def kill_leader(cluster: Cluster, broker: int = 0) -> tuple[int, float]:
    """Returns which one, and when it was dead."""
    killed = leader(cluster, broker)
    cluster.brokers[killed].kill()
    return killed, time.monotonic()


def promote(cluster: Cluster) -> None:
    """Have the other member of the first group lead."""
    old = leader(cluster)
    done = run_metaq("broker", "promote", NAME, "--id", str(2 - old), "-n", cluster.namesrv)
    assert done.returncode == 0, done.stderr
    assert leader(cluster) == 1 - old
    in_sync(cluster)


class Load(threading.Thread):
    """A Java producer that sends numbers to each queue, all the time. A send that fails is made again, until it is acknowledged.

    `acked`: queue → numbers in their order; `failed`: what sends have thrown; `times`: when the last acknowledgements came.
    """

    def __init__(self, java: ForeignClient, producer: str) -> None:
        super().__init__(name="load")
        self._java, self._producer, self._over = java, producer, threading.Event()
        self.acked: dict[int, list[int]] = {queue_id: [] for queue_id in range(QUEUES)}
        self.failed: list[str] = []
        self.times: list[float] = []
        self.longest = 0.0
        self.start()

    def run(self) -> None:
        while not self._over.wait(PACE_SECONDS):
            for queue_id, numbers in self.acked.items():
                self._send(queue_id, len(numbers))
                numbers.append(len(numbers))

    def _send(self, queue_id: int, number: int) -> None:
        while True:
            began = time.monotonic()
            try:
                (receipt,) = self._java.send(
                    self._producer, TOPIC, [str(number)], mode="ordered", ordering_key=queue_id
                )
            except DriverError as error:
                self.failed.append(str(error))
                self._over.wait(PACE_SECONDS)
            else:
                assert (receipt["status"], receipt["queue_id"]) == ("SEND_OK", queue_id)
                self.times.append(time.monotonic())
                self.longest = max(self.longest, self.times[-1] - began)
                return

    def since(self, moment: float) -> float:
        """Seconds from `moment` to the first acknowledgement behind it, as soon as that is there, and more."""
        count = len(self.times)
        eventually(lambda: len(self.times) > count + 4 * QUEUES, what="the Java producer sends on")
        return next(one for one in self.times if one > moment) - moment

    def stop(self) -> dict[int, list[int]]:
        self._over.set()
        self.join(PATIENCE)
        return self.acked


def numbers(events: list[Event]) -> dict[int, list[int]]:
    """Queue → numbers in the order in which they came."""
    found: dict[int, list[int]] = defaultdict(list)
    for event in events:
        found[event["queue_id"]].append(int(event["body"]))
    return found


def has_all(wanted: Mapping[int, list[int]]) -> Callable[[list[Event]], bool]:
    def check(events: list[Event]) -> bool:
        came = numbers(events)
        return all(set(sent) <= set(came[queue_id]) for queue_id, sent in wanted.items())

    return check


def test_java_clients_go_on_when_the_leader_is_killed(group: Cluster, java: ForeignClient, capsys) -> None:
    """Nothing that was acknowledged is lost. A consumer that locks its queues gets them in their order; half messages of the old
    leader are checked back and ended by the next one, delayed ones delivered by it, each once.

    A pull that waited at the dead leader is given up by the Java client itself only after 30 s.
    """
    names, count = group.namesrv, 6
    half = {"commit": [f"c{at}" for at in range(count)], "rollback": [f"r{at}" for at in range(count)]}
    later = [f"d{at}" for at in range(count)]
    with Admin(names) as admin:
        for topic in ("halves", "later"):
            admin.create_topic(topic, queues=2, broker=NAME)
    if leader(group) != 0:
        promote(group)
    java.producer("load", names, poll_ms=POLL_MS, send_ms=SEND_MS)
    java.producer("tx", names, poll_ms=POLL_MS, send_ms=SEND_MS, heartbeat_ms=POLL_MS, transactional=True)
    for name, topic, orderly in (
        ("push", TOPIC, False),
        ("orderly", TOPIC, True),
        ("halves", "halves", False),
        ("later", "later", False),
    ):
        java.consumer(name, names, name, {topic: "*"}, poll_ms=POLL_MS, orderly=orderly)
    load = Load(java, "load")
    try:
        load.since(time.monotonic())
        for name in ("push", "orderly"):
            java.wait(name, 4 * QUEUES)
        receipts = java.send("load", "later", later, delay_level=DELAY_LEVEL)
        for tag, texts in half.items():
            receipts += java.send("tx", "halves", texts, mode="transaction", tag=tag)
        assert {one["status"] for one in receipts} == {"SEND_OK"}
        assert not java.received("tx"), "the old leader asks nobody"
        killed, at = kill_leader(group)
        pause = load.since(at)
        sent = {queue_id: list(numbers) for queue_id, numbers in load.acked.items()}
        for name in ("push", "orderly"):
            java.wait(name, has_all(sent))
        for name in ("halves", "later"):
            java.wait(name, count)
        group.brokers[killed].start()
        in_sync(group)
    finally:
        acked = load.stop()
    # Behind all others: what would come a second time has come by then.
    java.send("load", "later", ["last"], delay_level=DELAY_LEVEL)
    java.send("tx", "halves", ["last"], mode="transaction", tag="commit")
    for name, wanted in (("halves", half["commit"]), ("later", later)):
        arrived = java.wait(name, lambda events: any(one["body"] == "last" for one in events))
        assert sorted(one["body"] for one in arrived) == [*wanted, "last"]
    told = {one["body"]: one["state"] for one in java.received("tx")}
    assert {body for body, state in told.items() if state == "ROLLBACK_MESSAGE"} == set(half["rollback"])
    java.wait("push", has_all(acked))
    for queue_id, came in numbers(java.wait("orderly", has_all(acked))).items():
        # What was under way when the leader died comes again, and what was sent anew is there twice: behind its first time.
        assert list(dict.fromkeys(came)) == acked[queue_id]
    with capsys.disabled():
        print(
            f"\nJava, kill -9 of the leader: first acknowledgement after {pause:.2f} s, {len(load.failed)} sends failed"
        )


def test_a_leader_is_promoted_and_java_notices_nothing(group: Cluster, java: ForeignClient, capsys) -> None:
    """It asks for routes every 30 s, as by default: the former leader relays to the next one meanwhile."""
    java.producer("load", group.namesrv, poll_ms=DEFAULT_POLL_MS, send_ms=SEND_MS)
    load = Load(java, "load")
    try:
        load.since(time.monotonic())
        promote(group)
        load.since(time.monotonic())
    finally:
        load.stop()
    assert not load.failed
    with capsys.disabled():
        print(f"\nJava with its default poll, a change by command: the longest send took {load.longest:.2f} s")


@pytest.mark.all
@pytest.mark.long
def test_a_rolling_restart_and_java_notices_nothing(group: Cluster, java: ForeignClient, capsys) -> None:
    """By one command, which waits until the producer, which asks for routes every 30 s, has gone over."""
    java.producer("load", group.namesrv, poll_ms=DEFAULT_POLL_MS, send_ms=SEND_MS)
    load = Load(java, "load")
    try:
        load.since(time.monotonic())
        done = run_metaq("cluster", "restart", "-n", group.namesrv)
        assert done.returncode == 0, done.stderr
        load.since(time.monotonic())
    finally:
        load.stop()
    assert not load.failed
    with capsys.disabled():
        print(f"\nJava with its default poll, a rolling restart: the longest send took {load.longest:.2f} s")


def test_with_two_names_a_java_producer_as_it_comes_sees_no_error(zookeeper: Zookeeper, java: ForeignClient) -> None:
    """It asks for routes every 30 s and gives a send 3 s: its retries go to the other name."""
    sent: list[str] = []
    failed: list[str] = []
    over = threading.Event()

    def run() -> None:
        while not over.wait(PACE_SECONDS) and not failed:
            try:
                java.send("plain", TOPIC, [str(len(sent))])
            except DriverError as error:
                failed.append(str(error))
            else:
                sent.append(str(len(sent)))

    with groups(zookeeper, 2) as both:
        java.producer("plain", both.namesrv, poll_ms=DEFAULT_POLL_MS, send_ms=DEFAULT_SEND_MS)
        java.consumer("all", both.namesrv, "all", {TOPIC: "*"}, poll_ms=POLL_MS)
        thread = threading.Thread(target=run)
        thread.start()
        try:
            eventually(lambda: failed or len(sent) > 20, what="the Java producer sends")
            killed, _ = kill_leader(both)
            leader(both)
            count = len(sent)
            eventually(lambda: failed or len(sent) > count + 50, what="the Java producer sends on")
            # It follows at the old address, to which the producer still sends.
            both.brokers[killed].start()
            in_sync(both)
            count = len(sent)
            eventually(lambda: failed or len(sent) > count + 50, what="the Java producer sends on")
        finally:
            over.set()
            thread.join(PATIENCE)
        assert not failed
        java.wait("all", lambda events: set(sent) <= {one["body"] for one in events})
        java.shutdown_all()
