"""MetaQ's Java client 1.4.6.2 at our broker: beside RocketMQ's client, and while brokers, ZooKeeper and files come and go."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.admin import Admin
from metaq.testing import FlakyNetwork
from tests.interop.driver import DriverError, Event, ForeignClient
from tests.interop.metaq1 import (
    Metaq1Client,
    Nodes,
    OurServer,
    TextConnection,
    Zookeeper,
    bodies,
    consumer,
    metaq1_client,
    sends,
)
from tests.interop.servers import MetaqNamesrv
from tests.support import eventually, run_metaq

pytestmark = pytest.mark.interop

MAX_SIZE = 1 << 20
_roots = (f"/ours-{number}" for number in itertools.count())


@pytest.fixture
def root() -> str:
    """A ZooKeeper root of the test's own; also for groups: the client knows ids in the whole JVM, by group."""
    return next(_roots)


@pytest.fixture
def nodes(zookeeper: Zookeeper) -> Iterator[Nodes]:
    with zookeeper.nodes() as found:
        yield found


def whole(nodes: Nodes, root: str, topic: str, broker_id: int = 0) -> bool:
    """Whether the broker and its topic are registered."""
    tree = nodes.tree(root)
    return {f"{root}/brokers/ids/{broker_id}/master", f"{root}/brokers/topics-sub/{topic}/{broker_id}-m"} <= tree.keys()


def test_clients_of_both_generations_share_a_topic(
    java1: Metaq1Client, java: ForeignClient, zookeeper: Zookeeper, root: str, tmp_path: Path
) -> None:
    """What either sends, both receive: tag and attribute are one, ids are there for both, large bodies arrive whole."""
    namesrv = MetaqNamesrv(tmp_path)
    namesrv.start()
    server = OurServer(tmp_path, zookeeper, {"shared": {"numPartitions": 2}}, registry={"zk.zkRoot": root})
    server.options = [f"namesrvAddr={namesrv.address}"]
    try:
        with server:
            java1.factory("f", zookeeper.address, root=root)
            java1.publisher("p1", "f", ["shared"])
            consumer(java1, "c1", root, {"shared": MAX_SIZE})
            java.producer("p4", namesrv.address)
            java.consumer("c4", namesrv.address, f"g4{root.replace('/', '-')}", {"shared": "red || blue"})
            java1.send("p1", "shared", ["one from 1.x", "two from 1.x"], attribute="red")
            java.send("p4", "shared", ["one from 4.9", "x" * 20_000], tag="blue")
            java1.send("p1", "shared", ["not for the tags"], attribute="green")
            both = {
                ("one from 1.x", "red"),
                ("two from 1.x", "red"),
                ("one from 4.9", "blue"),
                ("x" * 20_000, "blue"),
            }
            old, new = java1.wait("c1", 5), java.wait("c4", 4)
            assert {(one["body"], one["attribute"]) for one in old} == both | {("not for the tags", "green")}
            assert {(one["body"], one["tag"]) for one in new} == both
            ids = [one["id"] for one in old]
            assert len(set(ids)) == 5
            assert all(number > 0 for number in ids)
            java1.shutdown_all()
            java.shutdown_all()
    finally:
        namesrv.stop()


def test_the_log4j_appender_of_the_extension_sends_to_us(tmp_path: Path) -> None:
    """It knows no other root than /meta, and sends Hessian 1: a header, a length in characters, the text. In a JVM of its own,
    because it never ends."""
    hessian1 = pytest.importorskip("metaq.spark.decode.hessian1", exc_type=ImportError)
    with Zookeeper(tmp_path) as own, OurServer(tmp_path, own, {"logs": {}}), metaq1_client(tmp_path / "jvm") as java:
        java.call("log", topic="logs", zookeeper=own.address, lines=["hello", "wörld"])
        java.factory("f", own.address)
        consumer(java, "c", "/logs", {"logs": MAX_SIZE})
        got = sorted(bodies(java.wait("c", 2)))
        assert got == ["c\0\1S\0\5helloz", "c\0\1S\0\5wörldz"]
        assert [hessian1.string_of(body.encode()) for body in got] == ["hello", "wörld"]


FILTER = """
class Odd:
    def accept(self, group, message):
        return int(message.body.split(b" ")[0]) % 2 == 1
"""


def test_a_group_with_a_filter_gets_what_it_accepts_and_is_never_stuck(
    java1: Metaq1Client, zookeeper: Zookeeper, root: str, tmp_path: Path
) -> None:
    """Bodies of different lengths, every other one rejected: where the original leaves its consumer stuck for ever. Others of
    the topic get all."""
    group = f"g{root.replace('/', '-')}"
    (tmp_path / "provided").mkdir()
    (tmp_path / "provided" / "odd_filter.py").write_text(FILTER)
    topics = {"test": {f"group.{group}": "odd_filter:Odd"}}
    system = {"appClassPath": tmp_path / "provided"}
    with OurServer(tmp_path, zookeeper, topics, system, registry={"zk.zkRoot": root}):
        java1.factory("f", zookeeper.address, root=root)
        java1.publisher("p", "f", ["test"])
        texts = [f"{number} {'x' * (number * 7 % 50)}" for number in range(60)]
        java1.send("p", "test", texts[:30])
        consumer(java1, "c", root, {"test": 1024})
        java1.subscriber("all", "f", f"{group}-all", {"test": MAX_SIZE})
        assert bodies(java1.wait("c", 15)) == texts[1:30:2]
        java1.send("p", "test", texts[30:])
        assert bodies(java1.wait("c", 30)) == texts[1::2]
        assert bodies(java1.wait("all", 60)) == texts
        java1.shutdown_all()


def test_a_broker_that_is_killed_comes_back_to_its_clients(
    java1: Metaq1Client, zookeeper: Zookeeper, nodes: Nodes, root: str, tmp_path: Path
) -> None:
    """Restarted at once, while its old session lives: nothing acknowledged is lost, nothing comes twice, ids stay."""
    with OurServer(tmp_path, zookeeper, {"test": {}}, registry={"zk.zkRoot": root}) as server:
        java1.factory("f", zookeeper.address, root=root)
        java1.publisher("p", "f", ["test"])
        consumer(java1, "c", root, {"test": MAX_SIZE})
        first = java1.send("p", "test", ["one", "two"])
        java1.wait("c", 2)
        server.kill()
        server.start()
        eventually(lambda: whole(nodes, root, "test") or None)
        second = sends(java1, "p", "test", ["three", "four"])
        got = java1.wait("c", 4)
        assert bodies(got) == ["one", "two", "three", "four"]
        assert [one["id"] for one in got] == [one["id"] for one in first + second]
        assert [one["offset"] for one in first + second] == [0, 23, 46, 71]
        java1.shutdown_all()


def test_a_prepared_branch_outlives_a_kill(
    java1: Metaq1Client, zookeeper: Zookeeper, nodes: Nodes, root: str, tmp_path: Path
) -> None:
    """Killed with a prepared branch, a begun one and an open local transaction: the first alone is there, unseen, and another
    client commits it; both partitions have all of it."""
    topics = {"test": {"numPartitions": 2}}
    with OurServer(tmp_path, zookeeper, topics, registry={"zk.zkRoot": root}) as server:
        java1.factory("f", zookeeper.address, root=root)
        java1.factory("x", zookeeper.address, root=root, kind="xa")
        java1.publisher("xp", "x", ["test"], qualifier="kill")
        java1.publisher("p", "f", ["test"])
        consumer(java1, "c", root, {"test": MAX_SIZE})
        java1.xa("xp", "start", "prepared")
        java1.send("xp", "test", ["p1", "p2", "p3"])
        java1.xa("xp", "end", "prepared")
        assert java1.xa("xp", "prepare", "prepared") == 0
        java1.call("begin", producer="p")
        java1.send("p", "test", ["local"])
        server.kill()
        server.start()
        eventually(lambda: whole(nodes, root, "test") or None)
        with pytest.raises(DriverError):
            java1.call("commit", producer="p")
        java1.factory("x2", zookeeper.address, root=root, kind="xa")
        java1.publisher("xp2", "x2", ["test"], qualifier="kill")
        assert java1.xa("xp2", "recover") == ["7:g:prepared"]
        sends(java1, "p", "test", ["between", "between too"])
        assert sorted(bodies(java1.wait("c", 2))) == ["between", "between too"]
        java1.xa("xp2", "commit", "prepared")
        assert sorted(bodies(java1.wait("c", 5))[2:]) == ["p1", "p2", "p3"]
        assert java1.xa("xp2", "recover") == []
        java1.shutdown_all()


def test_a_deleted_topic_is_registered_no_more(
    java1: Metaq1Client, zookeeper: Zookeeper, nodes: Nodes, root: str, tmp_path: Path
) -> None:
    """Of a topic that a wildcard admitted; a put makes it anew. A consumer whose offset in ZooKeeper is of the one before gets the
    first message: positions begin behind those of before."""
    namesrv = MetaqNamesrv(tmp_path)
    namesrv.start()
    server = OurServer(tmp_path, zookeeper, {"w-*": {}}, registry={"zk.zkRoot": root})
    server.options = [f"namesrvAddr={namesrv.address}"]
    try:
        with server, TextConnection(server.text) as text:
            for number in range(3):
                assert (text.ask(f"put w-gone 0 3 0 {number}", b"one") or None) is not None
            eventually(lambda: whole(nodes, root, "w-gone") or None)
            java1.factory("f", zookeeper.address, root=root)
            consumer(java1, "c", root, {"w-gone": 4096})
            assert bodies(java1.wait("c", 3)) == ["one"] * 3
            java1.shutdown("c")
            with Admin(namesrv.address) as admin:
                admin.delete_topic("w-gone")
            eventually(lambda: not whole(nodes, root, "w-gone") or None)
            again = text.ask("put w-gone 0 3 0 9", b"new")
            assert again is not None
            begin = int(again.text.split()[-1])
            assert begin > 3 * (20 + 3)
            eventually(lambda: whole(nodes, root, "w-gone") or None)
            moved = text.ask("get w-gone other 0 69 1000 7")
            assert (moved.code, int(moved.text)) == (301, begin)
            consumer(java1, "d", root, {"w-gone": 4096})
            assert bodies(java1.wait("d", 1)) == ["new"]
    finally:
        namesrv.stop()


def test_a_broker_that_zookeeper_lost_is_found_again(
    java1: Metaq1Client, zookeeper: Zookeeper, nodes: Nodes, root: str, tmp_path: Path
) -> None:
    """Its session expires behind a network that drops everything; running clients go on when it heals."""
    with FlakyNetwork(zookeeper.address) as network:
        registry = {"zk.zkRoot": root, "zk.zkConnect": network.address, "zk.zkSessionTimeoutMs": 1000}
        with OurServer(tmp_path, zookeeper, {"test": {}}, registry=registry):
            java1.factory("f", zookeeper.address, root=root)
            java1.publisher("p", "f", ["test"])
            consumer(java1, "c", root, {"test": MAX_SIZE})
            java1.send("p", "test", ["one"])
            java1.wait("c", 1)
            network.stall()
            eventually(lambda: not whole(nodes, root, "test") or None)
            network.mend()
            eventually(lambda: whole(nodes, root, "test") or None)
            sends(java1, "p", "test", ["two"])
            assert bodies(java1.wait("c", 2)) == ["one", "two"]
            java1.shutdown_all()


def test_a_broker_starts_without_zookeeper_and_is_found_when_it_comes(
    java1: Metaq1Client, root: str, tmp_path: Path
) -> None:
    """Who knows its address is served at once; the log says what is missing; later it goes and comes again."""
    late = Zookeeper(tmp_path / "late")
    with OurServer(tmp_path, late, {"test": {}}, registry={"zk.zkRoot": root}) as server:
        with TextConnection(server.text) as text:
            answer = text.ask("put test 0 3 0 1", b"one")
            assert answer is not None
            assert answer.code == 200
        assert f"ZooKeeper {late.address} cannot be reached" in server.log.read_text()
        with late:
            with late.nodes() as nodes:
                eventually(lambda: whole(nodes, root, "test") or None)
            java1.factory("f", late.address, root=root)
            java1.publisher("p", "f", ["test"])
            consumer(java1, "c", root, {"test": MAX_SIZE})
            assert bodies(java1.wait("c", 1)) == ["one"]
            late.kill()
            assert java1.send("p", "test", ["two"])[0]["ok"]  # what clients know goes on
            late.start()
            with late.nodes() as nodes:
                eventually(lambda: whole(nodes, root, "test") or None)
            sends(java1, "p", "test", ["three"])
            assert bodies(java1.wait("c", 3)) == ["one", "two", "three"]
            java1.shutdown_all()


def test_nothing_is_registered_where_it_is_switched_off(
    zookeeper: Zookeeper, nodes: Nodes, root: str, tmp_path: Path
) -> None:
    """zk.zkEnable=false works alone, with or without a ZooKeeper."""
    registry = {"zk.zkRoot": root, "zk.zkEnable": "false"}
    with OurServer(tmp_path, zookeeper, {"test": {}}, registry=registry) as server, TextConnection(server.text) as text:
        answer = text.ask("put test 0 3 0 1", b"one")
        assert answer is not None
        assert answer.code == 200
        assert nodes.client.exists(root) is None


def test_two_brokers_with_one_id_do_not_mix(
    java1: Metaq1Client, zookeeper: Zookeeper, nodes: Nodes, root: str, tmp_path: Path
) -> None:
    """The second says who has the id, and is told to nobody until the first has left."""
    first = OurServer(tmp_path / "first", zookeeper, {"test": {}}, registry={"zk.zkRoot": root})
    second = OurServer(tmp_path / "second", zookeeper, {"test": {"numPartitions": 3}}, registry={"zk.zkRoot": root})
    with first, second:
        assert f"brokerId 0 ('meta://{first.text}')" in second.log.read_text()
        java1.factory("f", zookeeper.address, root=root)
        assert java1.call("partitions", factory="f", topic="test") == ["0-0"]
        first.stop()
        eventually(lambda: nodes.text(f"{root}/brokers/ids/0/master") == f"meta://{second.text}" or None)
        eventually(lambda: java1.call("partitions", factory="f", topic="test") == ["0-0", "0-1", "0-2"] or None)
        java1.shutdown_all()


def test_partitions_topics_and_brokers_that_come_are_followed(
    java1: Metaq1Client, zookeeper: Zookeeper, nodes: Nodes, root: str, tmp_path: Path
) -> None:
    """A reload gives the topic more partitions, a second broker more still: running clients use all, each message comes once."""
    numbers = itertools.count()
    sent: list[Event] = []

    def more(count: int) -> None:
        sent.extend(sends(java1, "p", "grows", [f"m{next(numbers)}" for _ in range(count)]))

    def used(wanted: set[str]) -> bool:
        """Whether what is sent now goes to these partitions and what is received has come from them."""
        more(len(wanted))
        latest = {one["partition"] for one in sent[-len(wanted) :]}
        return latest == wanted and wanted <= {one["partition"] for one in java1.received("c")}

    with OurServer(tmp_path / "a", zookeeper, {"grows": {"numPartitions": 2}}, registry={"zk.zkRoot": root}) as server:
        java1.factory("f", zookeeper.address, root=root)
        java1.publisher("p", "f", ["grows"])
        consumer(java1, "c", root, {"grows": MAX_SIZE})
        eventually(lambda: used({"0-0", "0-1"}) or None)
        server.configure({"grows": {"numPartitions": 4}, "new": {}})
        reloaded = run_metaq("meta1", "reload", server.broker, "--json")
        assert reloaded.returncode == 0, reloaded.stderr
        assert json.loads(reloaded.stdout)["needs_restart"] == []
        eventually(lambda: used({f"0-{number}" for number in range(4)}) or None)
        eventually(lambda: java1.call("partitions", factory="f", topic="new") == ["0-0"] or None)
        second = OurServer(
            tmp_path / "b", zookeeper, {"grows": {"numPartitions": 2}}, {"brokerId": 1}, registry={"zk.zkRoot": root}
        )
        with second:
            eventually(lambda: used({*(f"0-{number}" for number in range(4)), "1-0", "1-1"}) or None)
            second.stop()
            eventually(lambda: used({f"0-{number}" for number in range(4)}) or None)
        # What went to the second broker stays there; all else has come, once.
        wanted = [f"m{place}" for place, one in enumerate(sent) if one["partition"].startswith("0-")]
        eventually(lambda: set(wanted) <= set(bodies(java1.received("c"))) or None)
        got = bodies(java1.received("c"))
        assert len(got) == len(set(got))
        java1.shutdown_all()
