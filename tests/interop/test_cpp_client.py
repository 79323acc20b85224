"""The C++ client (librocketmq 2.x), from its PyPI wheel."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator

import pytest

from metaq.admin import Admin
from metaq.model.clients import GroupConfig
from metaq.wire import bodies
from metaq.wire.codes import RequestCode
from metaq.wire.command import request
from tests.interop.driver import ForeignClient, cpp_client
from tests.interop.servers import RocketmqServer, Server
from tests.support import eventually, exchange

pytestmark = pytest.mark.interop

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


def test_async_sends(cpp: ForeignClient, server: Server) -> None:
    """Sends under way together are each answered with the id and place of their own message."""
    topic = f"cpp-{next(_numbers)}"
    name = f"p-{topic}"
    cpp.producer(name, server.namesrv)
    cpp.send(name, topic, ["first"], "sync")  # makes the topic
    receipts = cpp.send(name, topic, [f"async-{i}" for i in range(32)], "async", tag="a", keys="k1")
    assert {receipt["status"] for receipt in receipts} == {"OK"}
    cpp.consumer(f"c-{topic}", server.namesrv, f"g-{topic}", {topic: "a"})
    events = {event["body"]: event for event in cpp.wait(f"c-{topic}", 32)}
    assert len(events) == 32
    for i, receipt in enumerate(receipts):
        event = events[f"async-{i}"]
        assert (event["tag"], event["keys"]) == ("a", "k1")
        assert (event["id"], event["queue_offset"]) == (receipt["id"], receipt["queue_offset"])


def test_batch_send(cpp: ForeignClient, server: Server) -> None:
    """A batch, which this client marks with `m=1` instead of `m=true`, arrives as its messages, in order, in one queue."""
    if isinstance(server, RocketmqServer):
        pytest.skip(
            "RocketMQ knows `m=true` only: it stores this client's batch as one message with an unreadable body"
        )
    topic = f"cpp-{next(_numbers)}"
    name = f"p-{topic}"
    cpp.producer(name, server.namesrv)
    options = {"tag": "a", "keys": "k1", "properties": {"colour": "blue"}}
    (receipt,) = cpp.send(name, topic, [f"batch-{i}" for i in range(8)], "batch", **options)
    assert receipt["status"] == "OK"
    cpp.consumer(f"c-{topic}", server.namesrv, f"g-{topic}", {topic: "a"})
    events = sorted(cpp.wait(f"c-{topic}", 8), key=lambda event: event["queue_offset"])
    assert [event["body"] for event in events] == [f"batch-{i}" for i in range(8)]
    first = receipt["queue_offset"]
    assert [event["queue_offset"] for event in events] == list(range(first, first + 8))
    assert len({event["queue_id"] for event in events}) == 1
    assert {(event["tag"], event["keys"], event["colour"]) for event in events} == {("a", "k1", "blue")}


def _create_group(server: Server, group: str, retry_max: int) -> None:
    """The client cannot say how often to retry: its group's setting at the broker counts."""
    body = json.dumps(bodies.group_tree(GroupConfig(group, retry_max=retry_max))).encode()
    (answer,) = exchange(server.broker, [request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)])
    assert answer.code == 0, answer


def test_failing_listener_retries_then_dead_letters(cpp: ForeignClient, server: Server) -> None:
    """What fails comes back with a growing count and ends in the dead-letter topic; what succeeds comes once."""
    topic = f"cpp-{next(_numbers)}"
    name, group = f"p-{topic}", f"g-{topic}"
    _create_group(server, group, retry_max=2)
    cpp.producer(name, server.namesrv)
    cpp.send(name, topic, ["unwanted"], "sync", tag="none")  # makes the topic
    cpp.consumer(f"warm-{topic}", server.namesrv, group, {topic: "none"})  # makes the retry topic
    cpp.shutdown(f"warm-{topic}")
    cpp.consumer(f"c-{topic}", server.namesrv, group, {topic: "bad || good"}, fail_tag="bad")
    cpp.send(name, topic, ["bad"], "sync", tag="bad", keys="k1", properties={"colour": "blue"})
    cpp.send(name, topic, ["good"], "sync", tag="good")
    events = cpp.wait(f"c-{topic}", lambda got: sum(event["body"] == "bad" for event in got) == 3)
    assert [event["reconsume_times"] for event in events if event["body"] == "bad"] == [0, 1, 2]

    dead_letters = f"%DLQ%{group}"
    with Admin(server.namesrv) as admin:  # a consumer that does not find its topic at its start looks again in 30 s
        eventually(lambda: dead_letters in admin.list_topics(system=True))
    cpp.consumer(f"d-{topic}", server.namesrv, f"undertaker-{topic}", {dead_letters: "*"})
    (dead,) = cpp.wait(f"d-{topic}", 1)
    assert (dead["body"], dead["tag"], dead["keys"], dead["colour"]) == ("bad", "bad", "k1", "blue")
    assert Counter(event["body"] for event in cpp.received(f"c-{topic}")) == {"bad": 3, "good": 1}


def test_broadcasting_and_delay(cpp: ForeignClient, server: Server) -> None:
    """Each broadcasting consumer gets every message; a delay level is kept."""
    topic = f"cpp-{next(_numbers)}"
    name = f"p-{topic}"
    cpp.producer(name, server.namesrv)
    cpp.send(name, topic, ["first"], "sync", tag="a")  # makes the topic
    consumers = (f"b1-{topic}", f"b2-{topic}")
    for consumer in consumers:
        cpp.consumer(consumer, server.namesrv, f"g-{topic}", {topic: "a"}, broadcasting=True)

    def both_listen() -> bool:  # they begin at the end of the queues, whenever they know it
        cpp.send(name, topic, ["ping"], "sync", tag="a")
        return all(cpp.received(consumer) for consumer in consumers)

    eventually(both_listen)
    cpp.send(name, topic, ["later"], "sync", tag="a", delay_level=2)
    for consumer in consumers:
        events = cpp.wait(consumer, lambda got: any(event["body"] == "later" for event in got))
        (event,) = [event for event in events if event["body"] == "later"]
        assert event["store_ms"] - event["born_ms"] >= 1900


def test_members_share_and_take_over(cpp: ForeignClient, server: Server) -> None:
    """A second consumer takes over some of the queues, and gives them back when it leaves."""
    topic = f"cpp-{next(_numbers)}"
    name, group, first, second = f"p-{topic}", f"g-{topic}", f"c1-{topic}", f"c2-{topic}"
    cpp.producer(name, server.namesrv)
    cpp.send(name, topic, ["alone"], "sync", tag="a")
    cpp.consumer(first, server.namesrv, group, {topic: "*"})
    cpp.wait(first, 1)
    cpp.consumer(second, server.namesrv, group, {topic: "*"})
    sent = 1

    def both_are_served() -> bool:
        nonlocal sent
        cpp.send(name, topic, [f"shared-{sent + i}" for i in range(8)], "sync", tag="a")
        sent += 8
        eventually(lambda: len(cpp.received(first)) + len(cpp.received(second)) >= sent)
        return bool(cpp.received(second))

    eventually(both_are_served)
    cpp.shutdown(second)
    cpp.send(name, topic, [f"back-{i}" for i in range(8)], "sync", tag="a")
    events = cpp.wait(first, lambda got: sum(event["body"].startswith("back-") for event in got) >= 8)
    assert len({event["queue_id"] for event in events if event["body"].startswith("back-")}) > 1


def test_offsets_outlive_restarts(cpp: ForeignClient, server: Server) -> None:
    """A group goes on where it stopped, after its consumer restarted and after the broker restarted."""
    topic = f"cpp-{next(_numbers)}"
    producer = f"p-{topic}"
    cpp.producer(producer, server.namesrv)
    for round_ in range(3):
        cpp.send(producer, topic, [f"{round_}-{i}" for i in range(4)], "sync", tag="a")
        consumer = f"c{round_}-{topic}"
        cpp.consumer(consumer, server.namesrv, f"g-{topic}", {topic: "a"})
        assert sorted(event["body"] for event in cpp.wait(consumer, 4)) == [f"{round_}-{i}" for i in range(4)]
        cpp.shutdown(consumer)
        if round_ == 1:
            cpp.shutdown(producer)
            server.stop()
            server.start()
            producer = f"again-{topic}"
            cpp.producer(producer, server.namesrv)
