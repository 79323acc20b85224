"""One group with members in Java and Python, at the original server and at ours; offsets that both keep in one file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.metaq1 import ConsumerConfig, Partition
from metaq.metaq1.rebalance.strategies import strategy_of
from metaq.metaq1.storages.local_file import LocalFileOffsetStorage
from metaq.metaq1.storages.storage import StoredOffset
from metaq.metaq1.storages.zookeeper import ZookeeperOffsetStorage
from tests.interop.metaq1 import (
    Metaq1Client,
    OriginalServer,
    OurServer,
    TextConnection,
    TextServer,
    Zookeeper,
    metaq1_client,
)
from tests.metaq1.rebalance.members import Group, Member, group
from tests.metaq1.rebalance.test_fixed import Fixed
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop

SERVERS = {"original": OriginalServer, "ours": OurServer}
PARTITIONS = 10
GROUP = "g"
TOPICS = [f"t{number}" for number in range(10)]


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, zookeeper: Zookeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TextServer]:
    topics = {topic: {"numPartitions": PARTITIONS} for topic in TOPICS}
    registry = {"zk.zkRoot": f"/rebalance-{request.param}"}
    system = {"brokerId": 3}
    made = SERVERS[request.param](tmp_path_factory.mktemp(request.param), zookeeper, topics, system, registry=registry)
    with made as running:
        yield running


@pytest.fixture
def root(server: TextServer) -> str:
    return str(server.registry["zk.zkRoot"])


_names = itertools.cycle(TOPICS)


@pytest.fixture
def topic() -> str:
    return next(_names)


def java_member(java: Metaq1Client, name: str, topic: str, **options: object) -> None:
    java.subscriber(name, "f", GROUP, {topic: 1 << 20}, id=name, max_delay_ms=200, **options)


def python_member(members: Group, name: str, topic: str, strategy: str) -> Member:
    member = members.member(name, topics=(topic,), load_balance_strategy_type=strategy)
    member.begin()
    return member


def settled(members: Group, topic: str, strategy: str, *names: str) -> None:
    """Wait until owners are those that the strategy says, and Python's members fetch what is theirs."""
    consumers = [f"{GROUP}_{name}" for name in sorted(names)]
    partitions = sorted(f"3-{number}" for number in range(PARTITIONS))
    share = strategy_of(strategy)
    wanted = {text: me for me in consumers for text in share(topic, me, consumers, partitions)}

    def as_wanted() -> bool:
        fetched = {
            str(held.partition): member.balance.name
            for member in members.members
            for held in dict(member.fetching.servers)
        }
        ours = {member.balance.name for member in members.members}
        return members.owners(topic) == wanted and fetched == {text: me for text, me in wanted.items() if me in ours}

    eventually(as_wanted, PATIENCE, what=f"the owners are {wanted}")


@pytest.mark.parametrize("strategy", ["DEFAULT", "CONSIST"])
def test_java_and_python_share_a_group(
    zookeeper: Zookeeper, server: TextServer, root: str, topic: str, java1: Metaq1Client, strategy: str
) -> None:
    """Each partition has one owner, whoever joins and leaves; both sides compute the same shares."""
    java1.factory("f", zookeeper.address, root=root)
    with group(zookeeper, root) as members:
        java_member(java1, "b", topic, strategy=strategy)
        settled(members, topic, strategy, "b")
        first = python_member(members, "a", topic, strategy)
        settled(members, topic, strategy, "a", "b")
        python_member(members, "c", topic, strategy)
        settled(members, topic, strategy, "a", "b", "c")
        java1.shutdown("b")
        settled(members, topic, strategy, "a", "c")
        java_member(java1, "d", topic, strategy=strategy)
        settled(members, topic, strategy, "a", "c", "d")
        assert set(first.fetching.servers.values()) == {server.text}
        for member in members.members:
            member.end()
        settled(members, topic, strategy, "d")
        java1.shutdown("d")


def test_java_begins_where_python_has_committed(
    zookeeper: Zookeeper, server: TextServer, root: str, topic: str, java1: Metaq1Client
) -> None:
    """And Python reads what Java has committed, id included."""
    java1.factory("f", zookeeper.address, root=root)
    java1.publisher("p", "f", [topic])
    sent = eventually(lambda: [java1.send("p", topic, [f"m{number:02}"])[0] for number in range(PARTITIONS + 1)])
    twice = next(one for one in sent if one["offset"] > 0)
    partition = Partition.parse(twice["partition"])
    with group(zookeeper, root) as members:
        member = members.member()
        storage = ZookeeperOffsetStorage(member.core)
        first = next(one for one in sent if one["partition"] == twice["partition"] and one["offset"] == 0)
        storage.commit_offset("h", [StoredOffset(topic, partition, twice["offset"], first["id"])])
        java1.subscriber("c", "f", "h", {topic: 1 << 20}, max_delay_ms=50)
        java1.wait("c", PARTITIONS)
        end = twice["offset"] * 2
        wanted = StoredOffset(topic, partition, end, twice["id"])
        eventually(lambda: storage.load(topic, "h", partition) == wanted, PATIENCE)
        java1.shutdown("c")
        assert first["id"] not in [one["id"] for one in java1.received("c")]


def test_partitions_of_a_fixed_server(server: TextServer, topic: str) -> None:
    """Those that were written to, with the id of the broker."""
    one = Fixed(server.text, ConsumerConfig("g"))
    try:
        one.begin(topic)
        assert one.partitions == []
        one.put(topic, 7)
        eventually(lambda: one.partitions == [f"{topic} 3-7"], PATIENCE)
        one.put(topic, 2)
        eventually(lambda: one.partitions == [f"{topic} 3-2", f"{topic} 3-7"], PATIENCE)
        with TextConnection(server.text) as text:
            answer = text.ask(f"get {topic} g 7 0 1024 1")
        assert answer is not None
        assert answer.code is None
        one.end()
    finally:
        one.factory.shutdown()


def test_offsets_in_a_file_of_javas(
    tmp_path: Path, zookeeper: Zookeeper, server: TextServer, root: str, topic: str
) -> None:
    """A broadcast consumer in Java writes its file, Python reads and writes it, and Java goes on from there."""
    with metaq1_client(tmp_path) as java:
        java.factory("f", zookeeper.address, root=root, kind="extension")
        java.publisher("p", "f", [topic])
        sent = eventually(lambda: java.send("p", topic, ["one"]))[0]
        java.subscriber("c", "f", "wide", {topic: 1 << 20}, broadcast=True, max_delay_ms=50)
        java.wait("c", 1)
        path = tmp_path / ".meta_offsets"
        storage = LocalFileOffsetStorage(path)
        partition = Partition.parse(sent["partition"])

        def name() -> str | None:
            """Of the group, which has the address in it."""
            return next((found for found in storage._read() if found.startswith("wide")), None)

        full = eventually(name)
        assert full is not None
        stored = eventually(lambda: _further(storage, topic, full, partition), PATIENCE)
        assert stored is not None
        assert (stored.offset, stored.message_id) == (23, sent["id"])
        java.shutdown("c")
        again = [java.send("p", topic, [f"{number}"])[0] for number in range(2 * PARTITIONS)]
        skipped = [one for one in again if one["partition"] == sent["partition"]]
        storage.commit_offset(full, [StoredOffset(topic, partition, skipped[-1]["offset"], skipped[-1]["id"])])
        java.subscriber("c", "f", "wide", {topic: 1 << 20}, broadcast=True, max_delay_ms=50)
        found = java.wait("c", 2 * PARTITIONS - len(skipped) + 1)
        assert {one["id"] for one in found} == {one["id"] for one in again} - {one["id"] for one in skipped[:-1]}


def _further(storage: LocalFileOffsetStorage, topic: str, name: str, partition: Partition) -> StoredOffset | None:
    stored = storage.load(topic, name, partition)
    return stored if stored is not None and stored.offset > 0 else None
