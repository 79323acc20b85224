"""The unchanged Go client v2: its heartbeats hold the hashes of tags as texts."""

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from metaq.admin import Admin
from tests.interop import golang
from tests.interop.driver import ForeignClient
from tests.interop.servers import Server

pytestmark = pytest.mark.interop

_numbers = itertools.count()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignClient]:
    made = ForeignClient([str(golang.driver())], tmp_path_factory.mktemp("go"))
    yield made
    made.close()


@pytest.fixture
def go(client: ForeignClient) -> Iterator[ForeignClient]:
    """The Go client, with what a test started in it shut down behind the test."""
    yield client
    client.shutdown_all()


@pytest.fixture
def topic(go: ForeignClient, server: Server) -> str:
    """A new topic of four queues, and a producer `p`."""
    name = f"interop-go-{next(_numbers)}"
    with Admin(server.namesrv) as admin:
        admin.create_topic(name, queues=4)
    go.producer("p", server.namesrv, "interop-producers")
    return name


def test_a_consumer_with_tags_receives_what_it_asked_for(go: ForeignClient, server: Server, topic: str) -> None:
    """Two tags of three, each message once."""
    for tag in ("paid", "open", "closed"):
        go.send("p", topic, [f"{tag}-{number}" for number in range(10)], tag=tag)
    go.consumer("c", server.namesrv, f"{topic}-group", {topic: "paid || closed"})
    wanted = {f"{tag}-{number}": 1 for tag in ("paid", "closed") for number in range(10)}
    assert Counter(event["body"] for event in go.wait("c", 20)) == wanted
    go.send("p", topic, ["late"], tag="paid")
    assert Counter(event["body"] for event in go.wait("c", 21)) == wanted | {"late": 1}


def test_a_consumer_of_all_receives_all_and_what_it_gave_back(go: ForeignClient, server: Server, topic: str) -> None:
    """`*` has no hashes; a message that failed once comes again."""
    go.consumer("c", server.namesrv, f"{topic}-group", {topic: "*"}, fail_tag="bad")
    go.send("p", topic, [f"m{number}" for number in range(20)])
    go.send("p", topic, ["again"], tag="bad")
    # A Go client learns of its retry topic's queues at its next look for routes, up to 30 s later.
    events = go.wait("c", 22)
    assert Counter(event["body"] for event in events) == {**{f"m{number}": 1 for number in range(20)}, "again": 2}
