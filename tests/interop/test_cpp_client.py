"""The C++ client (librocketmq 2.x), from its PyPI wheel."""

import itertools
from collections.abc import Iterator

import pytest

from tests.interop.driver import ForeignClient, cpp_client
from tests.interop.servers import Server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignClient]:
    client = cpp_client(tmp_path_factory.mktemp("cpp"))
    yield client
    client.close()


@pytest.fixture
def cpp(process: ForeignClient) -> Iterator[ForeignClient]:
    """The C++ client, with what a test started in it shut down behind the test."""
    yield process
    process.shutdown_all()


def test_sends_and_tags(cpp: ForeignClient, server: Server) -> None:
    """Sync, oneway and ordered sends arrive once each; a push consumer gets the tags that it asked for."""
    topic = f"cpp-{next(_numbers)}"
    name = f"p-{topic}"
    cpp.producer(name, server.namesrv)
    (first,) = cpp.send(name, topic, ["sync-0"], "sync", tag="a", keys="k1", properties={"colour": "blue"})
    sent = cpp.send(name, topic, [f"sync-{i}" for i in range(1, 8)], "sync", tag="a")
    assert {receipt["status"] for receipt in [first, *sent]} == {"OK"}
    cpp.send(name, topic, [f"oneway-{i}" for i in range(8)], "oneway", tag="b")
    ordered = cpp.send(name, topic, [f"ordered-{i}" for i in range(8)], "ordered", ordering_key="42", tag="a")
    offsets = [receipt["queue_offset"] for receipt in ordered]
    assert offsets == list(range(offsets[0], offsets[0] + 8))
    cpp.send(name, topic, ["unwanted"], "sync", tag="c")

    cpp.consumer(f"c-{topic}", server.namesrv, f"g-{topic}", {topic: "a || b"})
    events = cpp.wait(f"c-{topic}", 24)
    assert sorted(event["body"] for event in events) == sorted(
        f"{mode}-{i}" for mode in ("sync", "oneway", "ordered") for i in range(8)
    )
    assert len({event["queue_id"] for event in events if event["body"].startswith("ordered")}) == 1
    (event,) = [event for event in events if event["body"] == "sync-0"]
    assert (event["tag"], event["keys"], event["colour"]) == ("a", "k1", "blue")


def test_failing_listener_is_retried(cpp: ForeignClient, server: Server) -> None:
    """A message whose listener fails comes back with a count."""
    topic = f"cpp-{next(_numbers)}"
    name = f"p-{topic}"
    cpp.producer(name, server.namesrv)
    cpp.send(name, topic, ["bad"], "sync", tag="bad")
    cpp.consumer(f"warm-{topic}", server.namesrv, f"g-{topic}", {topic: "none"})  # makes the retry topic
    cpp.shutdown(f"warm-{topic}")
    cpp.consumer(f"c-{topic}", server.namesrv, f"g-{topic}", {topic: "*"}, fail_tag="bad")
    cpp.send(name, topic, ["bad"], "sync", tag="bad")
    events = cpp.wait(f"c-{topic}", lambda got: any(event["reconsume_times"] == 1 for event in got), 60)
    assert {event["body"] for event in events} == {"bad"}
