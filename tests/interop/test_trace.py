"""Message traces of the unchanged Java and Go clients, read by `metaq message trace`; and ours, read by mqadmin."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import metaq
from metaq.admin import Admin, MessageTrace, TraceNotFound
from tests.interop import golang
from tests.interop.driver import ForeignClient
from tests.interop.servers import MetaqServer, Server, mqadmin
from tests.support import eventually

pytestmark = pytest.mark.interop

_numbers = itertools.count()


@pytest.fixture
def topic(server: Server) -> str:
    name = f"interop-trace-{next(_numbers)}"
    with Admin(server.namesrv) as admin:
        admin.create_topic(name, queues=2)
    return name


@pytest.fixture
def go(tmp_path: Path) -> Iterator[ForeignClient]:
    """A process for each test: the Go client shares one tracing client, and its name servers, in a whole process."""
    made = ForeignClient([str(golang.driver())], tmp_path)
    yield made
    made.shutdown_all()
    made.close()


def told(server: Server, message_id: str, deliveries: int, **arguments: str) -> MessageTrace:
    """The timeline, as soon as a send and so many ended deliveries are told."""
    with Admin(server.namesrv) as admin:

        def probe() -> MessageTrace | None:
            try:
                found = admin.message_trace(message_id, **arguments)
            except TraceNotFound:
                return None
            ended = [event for event in found.events if event.what == "delivered" and event.cost_ms is not None]
            return found if len(ended) == deliveries and any(event.what == "sent" for event in found.events) else None

        found = eventually(probe, what=f"the trace of {message_id}")
        assert found is not None
        return found


def test_java_traces_are_a_timeline(java: ForeignClient, server: Server, topic: str) -> None:
    """Sent, stored, a delivery that failed and its retry, of two groups."""
    java.producer("p", server.namesrv, f"{topic}-producers", trace=True)
    java.consumer("c", server.namesrv, f"{topic}-group", {topic: "*"}, trace=True)
    options = {"trace": True, "fail_tag": "bad", "max_reconsume_times": 1}
    java.consumer("d", server.namesrv, f"{topic}-failing", {topic: "*"}, **options)
    [receipt] = java.send("p", topic, ["hello"], tag="bad", keys="k1")
    java.wait("c", 1)
    java.wait("d", 2)
    found = told(server, receipt["id"], 3)
    shown = sorted((event.what, event.group, event.result, event.attempt) for event in found.events)
    assert shown == [
        ("delivered", f"{topic}-failing", "failed", 1),
        ("delivered", f"{topic}-failing", "failed", 2),
        ("delivered", f"{topic}-group", "ok", 1),
        ("sent", f"{topic}-producers", "ok", 0),
        ("stored", "", "ok", 0),
    ]
    assert found.events[0].what == "sent"


def test_java_traces_to_a_topic_of_its_own(java: ForeignClient, server: Server, topic: str) -> None:
    """`customizedTraceTopic`."""
    with Admin(server.namesrv) as admin:
        admin.create_topic(f"{topic}-traces", queues=1)
    java.producer("p", server.namesrv, f"{topic}-producers", trace=True, trace_topic=f"{topic}-traces")
    [receipt] = java.send("p", topic, ["hello"])
    assert [event.what for event in told(server, receipt["id"], 0, trace_topic=f"{topic}-traces").events] == [
        "sent", "stored",
    ]  # fmt: skip


def test_ours_are_read_by_rocketmqs_own_tool(server: Server, topic: str, tmp_path: Path) -> None:
    """`mqadmin queryMsgTraceById` shows our send and our delivery."""
    with metaq.Producer(server.namesrv, group=f"{topic}-producers", trace=True) as producer:
        receipt = producer.send(topic, b"hello", keys=["k1"])
    with metaq.Consumer(server.namesrv, group=f"{topic}-group", topics=topic, start="earliest", trace=True) as consumer:
        message = consumer.receive()
        assert message is not None
        with message:
            pass
    told(server, receipt.message_id, 1)
    shown = mqadmin(tmp_path, server, "queryMsgTraceById", "-i", receipt.message_id)
    assert re.search(rf"Pub\s+{topic}-producers\s.*success", shown), shown
    assert re.search(rf"Sub\s+{topic}-group\s.*success", shown), shown


def test_go_traces_are_a_timeline(go: ForeignClient, server: Server, topic: str) -> None:
    """Sent, stored and delivered, with the client's address in the records; to a topic that must be there before."""
    traces = f"{topic}-traces"
    with Admin(server.namesrv) as admin:
        admin.create_topic(traces, queues=1)
    go.producer("gp", server.namesrv, f"{topic}-producers", trace=True, trace_topic=traces)
    go.consumer("gc", server.namesrv, f"{topic}-group", {topic: "*"}, trace=True, trace_topic=traces)
    [receipt] = go.send("gp", topic, ["hello"])
    go.wait("gc", 1)
    found = told(server, receipt["id"], 1, trace_topic=traces)
    assert {(event.what, event.group, event.result) for event in found.events} == {
        ("sent", f"{topic}-producers", "ok"), ("stored", "", "ok"), ("delivered", f"{topic}-group", "ok"),
    }  # fmt: skip


@pytest.mark.parametrize("named", [False, True])
def test_go_traces_where_brokers_have_the_trace_topic(go: ForeignClient, tmp_path: Path, named: bool) -> None:
    """`traceTopicEnable`, and `msgTraceTopicName`: Go's client writes nothing to a topic that is not there, and makes none."""
    traces = "our-traces" if named else "RMQ_SYS_TRACE_TOPIC"
    options = ["traceTopicEnable=true", *(["msgTraceTopicName=our-traces"] if named else [])]
    server = MetaqServer(tmp_path / "server", options=options)
    (tmp_path / "server").mkdir()
    server.start()
    try:
        with Admin(server.namesrv) as admin:
            admin.create_topic("traced", queues=2)
        where = {"trace": True, "trace_topic": traces if named else ""}
        go.producer("gp", server.namesrv, "trace-producers", **where)
        go.consumer("gc", server.namesrv, "trace-group", {"traced": "*"}, **where)
        [receipt] = go.send("gp", "traced", ["hello"])
        go.wait("gc", 1)
        found = told(server, receipt["id"], 1, trace_topic=traces)
        assert {event.what for event in found.events} == {"sent", "stored", "delivered"}
    finally:
        server.stop()
