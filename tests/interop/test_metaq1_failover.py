"""MetaQ 1.x's Java client, unchanged, and a group of replicas that serves it: the leader is killed, and all go on at the next one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from metaq.admin import Admin
from tests.interop.driver import DriverError
from tests.interop.metaq1 import Metaq1Client, OurServer, TextConnection, Zookeeper, bodies, consumer, sends
from tests.interop.servers import MetaqNamesrv
from tests.support import eventually

pytestmark = pytest.mark.interop

MAX_SIZE = 1 << 20
NOTA = -4
PARTITIONS = 2
_roots = (f"/failover1-{number}" for number in itertools.count())


class Group:
    """Two replicas of one name. Each has a server.ini of its own with the same broker id; clients find the leader in ZooKeeper."""

    def __init__(self, folder: Path, zookeeper: Zookeeper) -> None:
        self.root, self._zookeeper = next(_roots), zookeeper
        self.names = MetaqNamesrv(folder)
        self.names.start()
        with zookeeper.nodes() as nodes:
            nodes.client.create(f"{self.root}-group")
        registry = {"zk.zkRoot": self.root, "zk.zkSessionTimeoutMs": 2000}
        self.brokers = [
            OurServer(folder / name, zookeeper, {"test": {"numPartitions": PARTITIONS}}, registry=registry)
            for name in "ab"
        ]
        for number, broker in enumerate(self.brokers, 1):
            broker.options = [
                f"namesrvAddr={self.names.address}", "brokerName=group", "registerNameServerPeriod=1000", "failover=zookeeper",
                f"failoverZookeeper={zookeeper.address}{self.root}-group", "failoverSessionTimeout=2000", "inSyncTimeout=5000",
                f"broker.brokerId={number}",
            ]  # fmt: skip

    def __enter__(self) -> Self:
        for broker in self.brokers:
            broker.start()
        self.in_sync()
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers:
            broker.kill()
        self.names.stop()

    def in_sync(self) -> None:
        def is_so() -> bool:
            with Admin(self.names.address) as admin:
                return [one.in_sync for one in admin.list_groups_of_replicas()] == [(1, 2)]

        eventually(is_so, what="both are in sync")

    def registered(self) -> str | None:
        """Where clients find the leader."""
        with self._zookeeper.nodes() as nodes:
            return nodes.text(f"{self.root}/brokers/ids/0/master")

    def leader(self) -> OurServer:
        def found() -> list[OurServer]:
            return [one for one in self.brokers if self.registered() == f"meta://{one.text}"]

        return eventually(found, what="the leader is in ZooKeeper")[0]

    def kill_leader(self) -> tuple[OurServer, OurServer]:
        """Returns the one that is dead, and the one that leads."""
        killed = self.leader()
        (other,) = (one for one in self.brokers if one is not killed)
        killed.kill()
        eventually(lambda: self.leader() is other, what="the other one leads")
        return killed, other


def asked(java: Metaq1Client, verb: str, branch: str = "") -> object:
    """What the new resource says, as a list; None: it has no answer yet, since the client still asks the dead broker."""
    try:
        answer = java.xa("after", verb, branch)
    except DriverError as error:
        if error.code == NOTA and verb != "recover":  # a first try, whose answer did not come, has ended it
            return []
        return None
    return sorted(answer) if isinstance(answer, list) else []


def lines(server: OurServer) -> list[str]:
    """What it says of its partitions: their first and last positions."""
    with TextConnection(server.text) as text:
        answer = text.ask("stats offsets")
        assert answer is not None
        return [line for line in answer.text.splitlines() if line.startswith("test")]


def frames(server: OurServer) -> bytes:
    """All that it has of the topic."""
    found = b""
    with TextConnection(server.text) as text:
        for number in range(PARTITIONS):
            answer = text.ask(f"get test other {number} 0 {MAX_SIZE} 7")
            assert answer is not None
            found += answer.body if answer.code is None else b""
    return found


@pytest.fixture
def group(zookeeper: Zookeeper, tmp_path: Path) -> Iterator[Group]:
    with Group(tmp_path, zookeeper) as made:
        yield made


def test_a_java_consumer_and_a_producer_go_on_at_the_next_leader(
    group: Group, java1: Metaq1Client, zookeeper: Zookeeper
) -> None:
    """The consumer's byte offsets are in ZooKeeper, and mean the same there: nothing is missed, nothing read anew."""
    java = java1
    java.factory("f", zookeeper.address, root=group.root)
    java.publisher("p", "f", ["test"])
    first = [f"a{number}" for number in range(20)]
    sends(java, "p", "test", first)
    consumer(java, "c", group.root, {"test": MAX_SIZE})
    java.wait("c", len(first))
    java.shutdown("c")
    unread = [f"b{number}" for number in range(10)]
    sends(java, "p", "test", unread)
    stored, positions = frames(group.leader()), lines(group.leader())
    consumer(java, "meanwhile", group.root, {"test": MAX_SIZE})
    java.wait("meanwhile", len(unread))
    killed, leader = group.kill_leader()
    assert frames(leader) == stored
    assert lines(leader) == positions
    later = [f"c{number}" for number in range(10)]
    sends(java, "p", "test", later)
    arrived = java.wait("meanwhile", lambda events: set(later) <= set(bodies(events)))
    assert set(bodies(arrived)) == {*unread, *later}
    killed.start()
    group.in_sync()
    assert group.leader() is leader
    sends(java, "p", "test", ["d0"])
    java.wait("meanwhile", lambda events: "d0" in bodies(events))


def test_a_prepared_branch_of_java_is_ended_once_at_the_next_leader(
    group: Group, java1: Metaq1Client, zookeeper: Zookeeper
) -> None:
    """One is committed there and one rolled back, each by a transaction manager that recovers; its resource is a new one."""
    java = java1
    java.factory("x", zookeeper.address, root=group.root, kind="xa")
    java.publisher("before", "x", ["test"])
    for branch in ("b1", "b2"):
        java.xa("before", "start", branch)
        receipts = java.send("before", "test", [f"{branch}-{number}" for number in range(3)])
        assert [one["error"] for one in receipts if not one["ok"]] == []
        java.xa("before", "end", branch)
        assert java.xa("before", "prepare", branch) == 0
    killed, leader = group.kill_leader()
    # A producer that is made while its factory learns of other brokers may keep the old ones: this factory is a new one, too.
    java.factory("y", zookeeper.address, root=group.root, kind="xa")
    java.publisher("after", "y", ["test"])

    def both_are_known() -> bool:
        known = asked(java, "recover")
        assert known == ["7:g:b1", "7:g:b2"]
        return True

    eventually(both_are_known, what="both are known there")
    eventually(lambda: asked(java, "commit", "b1") is not None, what="one is committed")
    eventually(lambda: asked(java, "rollback", "b2") is not None, what="one is rolled back")

    def counts(server: OurServer) -> list[int]:
        found = frames(server)
        return [found.count(f"{branch}-{number}".encode()) for branch in ("b1", "b2") for number in range(3)]

    # Consumers read what the in-sync set has, which is told a moment behind the answer to the commit.
    eventually(lambda: counts(leader) == [1, 1, 1, 0, 0, 0], what="the committed branch is there once")
    assert java.xa("after", "recover") == []
    for branch in ("b1", "b2"):
        with pytest.raises(DriverError) as caught:
            java.xa("after", "commit", branch)
        assert caught.value.code == NOTA
    killed.start()
    group.in_sync()
    assert counts(leader) == [1, 1, 1, 0, 0, 0]
