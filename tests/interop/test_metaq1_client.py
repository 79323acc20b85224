"""MetaQ's own Java client 1.4.6.2 with a real ZooKeeper, the same against the original server and against ours."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.interop.driver import DriverError, Event
from tests.interop.metaq1 import Metaq1Client, Nodes, OriginalServer, OurServer, TextConnection, TextServer, Zookeeper
from tests.support import eventually

pytestmark = pytest.mark.interop

TOPICS = {
    "test": {},
    "failing": {},
    "four": {"numPartitions": 4},
    "callbacks": {"numPartitions": 2},
    "browsed": {"numPartitions": 2},
    "committed": {},
    "behind": {},
    "local": {"numPartitions": 2},
    "branches": {"numPartitions": 2},
    "fixed": {"numPartitions": 2},
    "cast": {},
    "large": {},
    "w-*": {},
}
TRANSACTION_SECONDS = 60
"""The most that the server lets a transaction have."""
SERVERS = {"ours": OurServer, "original": OriginalServer}


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, zookeeper: Zookeeper
) -> Iterator[TextServer]:
    folder = tmp_path_factory.mktemp(request.param)
    with SERVERS[request.param](folder, zookeeper, TOPICS, registry={"zk.zkRoot": request.param}) as running:
        yield running


@pytest.fixture
def root(server: TextServer) -> str:
    """Where the server is registered; also a word for groups: the client counts ids in the whole JVM, by group."""
    return str(server.registry["zk.zkRoot"])


@pytest.fixture
def nodes(zookeeper: Zookeeper) -> Iterator[Nodes]:
    with zookeeper.nodes() as found:
        yield found


@pytest.fixture
def java(java1: Metaq1Client, root: str, zookeeper: Zookeeper) -> Metaq1Client:
    """The client with a factory `f` at the server's root."""
    java1.factory("f", zookeeper.address, root=root)
    return java1


def test_a_message_comes_back_with_id_and_attribute(java: Metaq1Client, server: TextServer) -> None:
    """publish, send and callback send, a consumer with a listener, and its get."""
    java.publisher("p", "f", ["test"])
    sent = java.send("p", "test", ["one", "two"], attribute="red")
    sent += java.send("p", "test", ["three"], mode="callback")
    assert [(one["ok"], one["partition"], one["error"]) for one in sent] == [(True, "0-0", None)] * 3
    first = sent[0]["offset"]
    assert [one["offset"] - first for one in sent] == [0, 30, 60]
    java.subscriber("c", "f", "comes-back", {"test": 1 << 20}, offset=first)
    got = java.wait("c", 3)
    assert [(one["body"], one["attribute"], one["id"]) for one in got] == [
        ("one", "red", sent[0]["id"]),
        ("two", "red", sent[1]["id"]),
        ("three", None, sent[2]["id"]),
    ]
    fetched = java.get("c", "test", "0-0", first)
    assert fetched is not None
    assert [one["body"] for one in fetched["messages"]] == ["one", "two", "three"]
    with TextConnection(server.text) as text:
        answer = text.ask(f"get test g 0 {first} 1024 -2147483648")
        assert answer is not None
        assert answer.code is None
        assert len(answer.body) == fetched["parsed"] == 30 + 30 + 25


def test_an_unknown_topic_is_refused_with_its_name(java: Metaq1Client, server: TextServer) -> None:
    """A producer finds no partition; over a raw connection the server says why."""
    java.publisher("p", "f", ["nobody-has-it"])
    with pytest.raises(DriverError, match="There is no aviable partition for topic nobody-has-it"):
        java.send("p", "nobody-has-it", ["x"])
    with TextConnection(server.text) as text:
        answer = text.ask("put nobody-has-it 0 1 0 5", b"x")
        assert answer is not None
        assert answer.code == 500
        assert answer.text.endswith("Detail:The server do not accept topic nobody-has-it")


def bodies(events: list[Event]) -> list[str]:
    return [event["body"] for event in events if event["event"] == "message"]


def test_callbacks_come_for_all_and_spread_over_partitions(java: Metaq1Client, root: str, server: TextServer) -> None:
    """Round robin over both partitions; at our broker each partition's messages come in the order in which they were sent."""
    java.publisher("p", "f", ["callbacks"])
    sent = java.send("p", "callbacks", [f"m{number}" for number in range(40)], mode="callback")
    assert all(one["ok"] for one in sent)
    assert [one["partition"] for one in sent] == ["0-1", "0-0"] * 20
    java.subscriber("c", "f", f"callbacks-{root}", {"callbacks": 1 << 20})
    got = java.wait("c", 40)
    for number in range(2):
        here = [one["body"] for one in got if one["partition"] == f"0-{number}"]
        wanted = [f"m{i}" for i in range(40) if i % 2 != number]
        assert (here if isinstance(server, OurServer) else sorted(here, key=wanted.index)) == wanted
    assert len({one["id"] for one in got}) == 40


def test_a_message_that_fails_comes_again_and_then_goes_to_the_reject_handler(java: Metaq1Client, root: str) -> None:
    """With maxFetchRetries 2 the first of its fetch comes three times; what is behind it is not lost."""
    java.publisher("p", "f", ["failing"])
    java.send("p", "failing", ["bad", "good"])
    retries = {"max_fetch_retries": 2, "max_delay_ms": 10}
    java.subscriber("c", "f", f"failing-{root}", {"failing": 1 << 20}, fail={"bad": 100}, **retries)
    got = java.wait("c", 5)
    assert [(one["event"], one["body"]) for one in got] == [
        *[("message", "bad")] * 3,
        ("rejected", "bad"),
        ("message", "good"),
    ]
    java.subscriber("c2", "f", f"failing-again-{root}", {"failing": 1 << 20}, fail={"bad": 1}, max_delay_ms=10)
    assert bodies(java.wait("c2", 3)) == ["bad", "bad", "good"]


def test_a_message_larger_than_the_buffer_comes_when_the_buffer_has_grown(java: Metaq1Client, root: str) -> None:
    """A get gives the beginning of a frame that is too large for it, and the client asks for twice as much, and again."""
    java.publisher("p", "f", ["large"])
    java.send("p", "large", ["small", "y" * 1000, "small too"])
    java.subscriber("c", "f", f"large-{root}", {"large": 200}, max_delay_ms=10, max_fetch_retries=1000)
    assert bodies(java.wait("c", 3)) == ["small", "y" * 1000, "small too"]


def owners(nodes: Nodes, root: str, group: str, topic: str) -> dict[str, str]:
    """Partition → the consumer that has it."""
    path = f"/{root.strip('/')}/consumers/{group}/owners/{topic}/"
    tree = nodes.tree(path[:-1]) if nodes.client.exists(path[:-1]) else {}
    return {name.removeprefix(path): node.text or "" for name, node in tree.items() if name.startswith(path)}


def test_two_consumers_share_the_partitions_and_one_takes_all_when_the_other_leaves(
    java: Metaq1Client, root: str, nodes: Nodes, zookeeper: Zookeeper
) -> None:
    """The default strategy gives each two of four; everything comes once; owners and ids go with a consumer."""
    group = f"shared-{root}"
    java.subscriber("a", "f", group, {"four": 1 << 20}, id="a")
    java.factory("f2", zookeeper.address, root=root)  # one factory would take the second for a mistake
    java.subscriber("b", "f2", group, {"four": 1 << 20}, id="b")
    halves = {"0-0": f"{group}_a", "0-1": f"{group}_a", "0-2": f"{group}_b", "0-3": f"{group}_b"}
    eventually(lambda: owners(nodes, root, group, "four") == halves or None)
    java.publisher("p", "f", ["four"])
    sent = java.send("p", "four", [f"m{number}" for number in range(20)])
    mine = {one["body"]: one["partition"] for one in java.wait("a", 10)}
    theirs = {one["body"]: one["partition"] for one in java.wait("b", 10)}
    assert {f"m{number}": one["partition"] for number, one in enumerate(sent)} == mine | theirs
    assert set(mine.values()) == {"0-0", "0-1"}
    java.shutdown("b")
    eventually(lambda: owners(nodes, root, group, "four") == dict.fromkeys(halves, f"{group}_a") or None)
    java.send("p", "four", [f"n{number}" for number in range(8)])
    assert sorted(bodies(java.wait("a", 18))[10:]) == [f"n{number}" for number in range(8)]
    java.shutdown("a")
    assert owners(nodes, root, group, "four") == {}
    assert nodes.client.get_children(f"/{root.strip('/')}/consumers/{group}/ids") == []


def test_offsets_are_committed_in_bytes_and_consumed_from(java: Metaq1Client, root: str, nodes: Nodes) -> None:
    """The node says the last message's id and the position behind it; the next consumer of the group begins there."""
    group = f"commits-{root}"
    java.publisher("p", "f", ["committed"])
    sent = java.send("p", "committed", ["one", "two"])
    java.subscriber("c", "f", group, {"committed": 1 << 20})
    java.wait("c", 2)
    path = f"/{root.strip('/')}/consumers/{group}/offsets/committed/0-0"
    wanted = f"{sent[1]['id']}-{sent[1]['offset'] + 23}"
    eventually(lambda: nodes.text(path) == wanted or None)
    java.shutdown("c")
    java.send("p", "committed", ["three"])
    java.subscriber("d", "f", group, {"committed": 1 << 20})
    assert bodies(java.wait("d", 1)) == ["three"]


def test_a_consumer_from_the_end_is_moved_there(java: Metaq1Client, root: str) -> None:
    """setConsumeFromMaxOffset asks for the largest long: 301 with the end, as updateConsumerOffsets is on."""
    java.publisher("p", "f", ["behind"])
    java.send("p", "behind", ["old"])
    java.subscriber("c", "f", f"end-{root}", {"behind": 1 << 20}, from_max=True, max_delay_ms=10)
    # Only what is sent once it has been moved is sure to come.
    eventually(lambda: java.send("p", "behind", ["new"]) and java.received("c"))
    assert set(bodies(java.received("c"))) == {"new"}


def test_browser_partitions_and_stats(java: Metaq1Client, server: TextServer) -> None:
    """What the session factory offers beside producers and consumers."""
    java.publisher("p", "f", ["browsed"])
    java.send("p", "browsed", ["a", "b", "c"])
    assert java.call("partitions", factory="f", topic="browsed") == ["0-0", "0-1"]
    assert sorted(one["body"] for one in java.call("browse", factory="f", topic="browsed")) == ["a", "b", "c"]
    (stats,) = java.call("stats", factory="f", item=None).values()
    assert stats["broker_id"] == "0"
    assert stats["port"] == str(server.port)
    assert int(stats["cmd_put"]) >= 3
    assert {"STATS", "END"} <= stats.keys()
    (topics,) = java.call("stats", factory="f", item="topics").values()
    assert topics["browsed"].startswith("partitions 2 message_count 3 message_bytes 63 accept_publish true")


def test_a_topic_of_a_wildcard_is_registered_by_its_first_put(
    java: Metaq1Client, server: TextServer, root: str
) -> None:
    """Producers find it then, and it has the partitions of [system]."""
    with TextConnection(server.text) as text:
        answer = text.ask("put w-new 0 5 0 1", b"first")
        assert answer is not None
        assert answer.code == 200

    def found() -> list[str]:
        with contextlib.suppress(DriverError):  # no such node
            return java.call("partitions", factory="f", topic="w-new")
        return []

    assert eventually(found) == ["0-0"]
    java.publisher("p", "f", ["w-new"])
    assert java.send("p", "w-new", ["second"])[0]["ok"]
    java.subscriber("c", "f", f"wild-{root}", {"w-new": 1 << 20})
    assert bodies(java.wait("c", 2)) == ["first", "second"]


def test_a_broadcast_consumer_and_one_of_the_extension(java1: Metaq1Client, root: str, zookeeper: Zookeeper) -> None:
    """Both of client-extension's consumers get everything; the broadcast one keeps its offsets in a file."""
    java1.factory("e", zookeeper.address, root=root, kind="extension")
    java1.publisher("p", "e", ["cast"])
    java1.send("p", "cast", ["one", "two"])
    group = f"cast-{root}"
    java1.subscriber("all", "e", group, {"cast": 1 << 20}, broadcast=True)
    java1.subscriber("one", "e", f"{group}-one", {"cast": 1 << 20}, recover="DEFAULT")
    assert bodies(java1.wait("all", 2)) == bodies(java1.wait("one", 2)) == ["one", "two"]


def test_a_fixed_server_needs_no_zookeeper_to_send_to(java1: Metaq1Client, server: TextServer) -> None:
    """The client leaves the partition to the server; send, callback, get and stats work so."""
    java1.factory("s", url=f"meta://{server.text}")
    java1.publisher("p", "s", ["fixed"])
    sent = java1.send("p", "fixed", ["one"]) + java1.send("p", "fixed", ["two"], mode="callback")
    assert [one["ok"] for one in sent] == [True, True]
    assert {one["partition"].split("-")[-1] for one in sent} <= {"0", "1"}
    assert "--" not in "".join(one["partition"] for one in sent[:0])
    java1._names.clear()  # its shutdown throws in fixed mode, as the original's does


def test_a_local_transaction_is_seen_whole_or_not_at_all(java: Metaq1Client, root: str) -> None:
    """Offsets are -1 until the commit; a rollback leaves nothing."""
    java.publisher("p", "f", ["local"])
    java.call("begin", producer="p")
    sent = java.send("p", "local", ["t1", "t2", "t3"])
    assert [(one["ok"], one["offset"]) for one in sent] == [(True, -1)] * 3
    java.subscriber("c", "f", f"local-{root}", {"local": 1 << 20}, max_delay_ms=10)
    java.call("rollback", producer="p")
    java.call("begin", producer="p", timeout=TRANSACTION_SECONDS)
    again = java.send("p", "local", ["u1", "u2", "u3"])
    java.call("commit", producer="p")
    got = java.wait("c", 3)
    assert sorted(bodies(got)) == ["u1", "u2", "u3"]
    assert {one["id"] for one in got} == {one["id"] for one in again}
    with pytest.raises(DriverError, match="There is no transaction begun"):
        java.call("commit", producer="p")


def test_a_branch_is_prepared_recovered_and_committed(java1: Metaq1Client, root: str, zookeeper: Zookeeper) -> None:
    """XA by the client's own resource; what a second factory recovers it may commit; unknown branches are -4."""
    java1.factory("x", zookeeper.address, root=root, kind="xa")
    java1.publisher("p", "x", ["branches"], qualifier="interop")
    java1.xa("p", "start", "b1")
    assert [one["offset"] for one in java1.send("p", "branches", ["x1", "x2"])] == [-1, -1]
    java1.xa("p", "end", "b1")
    assert java1.xa("p", "prepare", "b1") == 0
    java1.factory("x2", zookeeper.address, root=root, kind="xa")
    java1.publisher("p2", "x2", ["branches"], qualifier="interop")
    assert java1.xa("p2", "recover") == ["7:g:b1"]
    java1.subscriber("c", "x2", f"branches-{root}", {"branches": 1 << 20}, max_delay_ms=10)
    java1.xa("p2", "commit", "b1")
    assert sorted(bodies(java1.wait("c", 2))) == ["x1", "x2"]
    assert java1.xa("p2", "recover") == []
    with pytest.raises(DriverError) as unknown:
        java1.xa("p", "commit", "b1")
    assert unknown.value.code == -4
    java1.xa("p", "start", "b2")
    java1.xa("p", "end", "b2")
    assert java1.xa("p", "prepare", "b2") == 3  # XA_RDONLY: nothing was put
    java1.xa("p", "start", "b3")
    java1.send("p", "branches", ["gone"])
    java1.xa("p", "end", "b3")
    java1.xa("p", "rollback", "b3")
    java1.xa("p", "start", "b4")
    java1.send("p", "branches", ["x3"])
    java1.xa("p", "end", "b4")
    java1.xa("p", "commit", "b4", one_phase=True)
    assert bodies(java1.wait("c", 3))[2:] == ["x3"]
