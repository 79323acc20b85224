"""MetaQ's own Java client 1.4.6.2 with a real ZooKeeper, the same against the original server and against ours."""

from collections.abc import Iterator

import pytest

from tests.interop.driver import DriverError
from tests.interop.metaq1 import Metaq1Client, OriginalServer, TextConnection, TextServer, Zookeeper

pytestmark = pytest.mark.interop

TOPICS = {"test": {}, "three": {"numPartitions": 3}, "batch": {"numPartitions": 2}}
SERVERS = {"original": OriginalServer}


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, zookeeper: Zookeeper
) -> Iterator[TextServer]:
    folder = tmp_path_factory.mktemp(request.param)
    with SERVERS[request.param](folder, zookeeper, TOPICS, registry={"zk.zkRoot": request.param}) as running:
        yield running


@pytest.fixture
def java(java1: Metaq1Client, server: TextServer, zookeeper: Zookeeper) -> Metaq1Client:
    """The client with a factory `f` at the server's root."""
    java1.factory("f", zookeeper.address, root=server.registry["zk.zkRoot"])
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
