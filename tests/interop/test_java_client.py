"""The unchanged Java client 4.9.8, from start to shutdown."""

import itertools
from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import metaq
from tests.interop.driver import DriverError, Event, ForeignClient, java_client
from tests.interop.servers import CLUSTER, Server
from tests.support import eventually

pytestmark = pytest.mark.interop

_numbers = itertools.count()


@pytest.fixture
def topic(java: ForeignClient, server: Server) -> str:
    """A new topic of four queues, and a producer `p` that knows it."""
    name = f"interop-{next(_numbers)}"
    java.producer("p", server.namesrv, "interop-producers")
    java.call("create_topic", producer="p", cluster=CLUSTER, topic=name, queues=4)
    return name


def _bodies(events: list[Event]) -> list[str]:
    return sorted(event["body"] for event in events)


def test_clients_that_use_the_vip_port_work(java: ForeignClient, server: Server, topic: str) -> None:
    """Sends, offsets, member lists and what is given back go to listenPort - 2; nothing is lost or repeated."""
    java.producer("vip", server.namesrv, "vip-producers", vip=True)
    options = {"vip": True, "fail_tag": "bad", "max_reconsume_times": 1}
    java.consumer("c", server.namesrv, f"{topic}-group", {topic: "*"}, **options)
    bodies = [f"m{i}" for i in range(20)]
    assert {receipt["status"] for receipt in java.send("vip", topic, bodies)} == {"SEND_OK"}
    java.send("vip", topic, ["again"], tag="bad")
    java.wait("c", 22)  # 20, and one twice
    assert Counter(event["body"] for event in java.received("c")) == {**dict.fromkeys(bodies, 1), "again": 2}
    java.shutdown("c")  # which commits its offsets
    java.consumer("c", server.namesrv, f"{topic}-group", {topic: "*"}, vip=True)
    java.send("vip", topic, ["last"])
    assert _bodies(java.wait("c", 1)) == ["last"]


def test_every_kind_of_send_arrives(java: ForeignClient, server: Server, topic: str) -> None:
    """Sync, async, oneway, ordered and batch sends are stored once each, with tag, keys and properties."""
    java.consumer("c", server.namesrv, f"{topic}-group", {topic: "*"})
    extra = {"tag": "paid", "keys": "k1 k2", "properties": {"colour": "blue"}}
    receipts = {
        mode: java.send("p", topic, [f"{mode}-{i}" for i in range(8)], mode, **extra)
        for mode in ("sync", "async", "oneway", "batch")
    }
    receipts["ordered"] = java.send("p", topic, [f"ordered-{i}" for i in range(8)], "ordered", ordering_key=3, **extra)
    events = java.wait("c", 40)
    assert _bodies(events) == sorted(
        f"{m}-{i}" for m in ("sync", "async", "oneway", "batch", "ordered") for i in range(8)
    )
    for event in events:
        assert (event["tag"], event["keys"], event["properties"]["colour"]) == ("paid", "k1 k2", "blue")
        assert event["properties"]["CLUSTER"] == CLUSTER
        assert len(event["id"]) in (32, 56)  # made from an IPv4 or an IPv6 address
    assert {receipt["status"] for sent in receipts.values() for receipt in sent} == {"SEND_OK"}
    assert [receipt["queue_offset"] for receipt in receipts["ordered"]] == sorted(
        receipt["queue_offset"] for receipt in receipts["ordered"]
    )
    by_place = {(event["queue_id"], event["queue_offset"]): event for event in events}
    for receipt in receipts["sync"]:
        assert by_place[receipt["queue_id"], receipt["queue_offset"]]["id"] == receipt["id"]
    (batch,) = receipts["batch"]
    assert len(batch["id"].split(",")) == len(batch["offset_id"].split(",")) == 8


def test_first_send_creates_the_topic(java: ForeignClient, server: Server) -> None:
    """A send to an unknown topic takes the route of TBW102 and creates it with four queues."""
    java.producer("p", server.namesrv)
    name = f"interop-new-{next(_numbers)}"
    java.send("p", name, ["first"])

    def queues_at_the_name_server() -> list[Event]:
        try:  # The broker tells the name server in its own time, as RocketMQ's does.
            return java.call("queues", producer="p", topic=name)
        except DriverError:
            return []

    queues = eventually(queues_at_the_name_server)
    assert len(queues) == 4
    assert sum(row["max_offset"] for row in queues) == 1


def test_offsets_and_ids_are_found(java: ForeignClient, server: Server, topic: str) -> None:
    """Message by id, by unique id and by key; min, max and first-by-time offsets of each queue."""
    (receipt,) = java.send("p", topic, ["find me"], keys="needle")
    for id_ in (receipt["id"], receipt["offset_id"]):
        assert java.call("view", producer="p", topic=topic, id=id_)["body"] == "find me"
    assert [found["body"] for found in java.call("query", producer="p", topic=topic, key="needle")] == ["find me"]
    queues = {row["queue_id"]: row for row in java.call("queues", producer="p", topic=topic)}
    row = queues[receipt["queue_id"]]
    assert (row["min_offset"], row["max_offset"], row["offset_at_start"]) == (0, 1, 0)
    assert row["earliest_ms"] > 0


def test_tags_in_clustering(java: ForeignClient, server: Server, topic: str) -> None:
    """A subscription to two tags gets these and no other, each message once in its group."""
    for tag in ("red", "green", "blue"):
        java.send("p", topic, [f"{tag}-{i}" for i in range(6)], tag=tag)
    java.consumer("c", server.namesrv, f"{topic}-group", {topic: "red || blue"})
    events = java.wait("c", 12)
    assert _bodies(events) == sorted(f"{tag}-{i}" for tag in ("red", "blue") for i in range(6))


def test_broadcasting(java: ForeignClient, server: Server, topic: str) -> None:
    """Each broadcasting consumer of a group gets every message."""
    for name in ("b1", "b2"):
        java.consumer(name, server.namesrv, f"{topic}-group", {topic: "x"}, broadcasting=True)
    java.send("p", topic, [f"m{i}" for i in range(10)], tag="x")
    java.send("p", topic, ["other"], tag="y")
    for name in ("b1", "b2"):
        assert _bodies(java.wait(name, 10)) == sorted(f"m{i}" for i in range(10))


def test_failing_listener_retries_then_dead_letters(java: ForeignClient, server: Server, topic: str) -> None:
    """What fails comes back with a growing count and ends in the dead-letter topic, with its origin."""
    group = f"{topic}-group"
    java.consumer("c", server.namesrv, group, {topic: "*"})  # makes the retry topic, which its next start knows at once
    java.shutdown("c")
    java.consumer("c", server.namesrv, group, {topic: "*"}, fail_tag="bad", max_reconsume_times=2)
    (bad,) = java.send("p", topic, ["bad"], tag="bad", keys="k")
    java.send("p", topic, ["good"], tag="good")
    events = java.wait("c", lambda got: sum(event["body"] == "bad" for event in got) == 3)
    tries = [event for event in events if event["body"] == "bad"]
    assert [event["reconsume_times"] for event in tries] == [0, 1, 2]
    assert all(event["topic"] == topic for event in tries)
    assert tries[2]["properties"]["ORIGIN_MESSAGE_ID"] == bad["offset_id"]
    assert [event["body"] for event in events].count("good") == 1
    java.consumer("d", server.namesrv, f"{topic}-undertaker", {f"%DLQ%{group}": "*"})
    (dead,) = java.wait("d", 1)
    assert (dead["body"], dead["tag"], dead["keys"]) == ("bad", "bad", "k")
    assert dead["properties"]["RETRY_TOPIC"] == topic


def test_delay_level_is_kept(java: ForeignClient, server: Server, topic: str) -> None:
    """A message of delay level 2 is delivered after that level's time, not before, with tag and keys as sent."""
    java.consumer("c", server.namesrv, f"{topic}-group", {topic: "late"})
    java.send("p", topic, ["later"], tag="late", keys="k", delay_level=2)
    (event,) = java.wait("c", 1)
    assert (event["body"], event["keys"], event["properties"]["DELAY"]) == ("later", "k", "2")
    assert event["store_ms"] - event["born_ms"] >= 1900
    assert event["received_ms"] - event["born_ms"] < 6000


def test_rebalance_on_join_and_leave(java: ForeignClient, server: Server, topic: str) -> None:
    """A second consumer takes over half of the queues at once, and gives them back when it leaves."""
    group = f"{topic}-group"
    java.consumer("c1", server.namesrv, group, {topic: "*"})
    java.send("p", topic, [f"alone-{i}" for i in range(8)])
    java.wait("c1", 8)
    java.consumer("c2", server.namesrv, group, {topic: "*"})
    sent = 8

    def both_are_served() -> bool:
        nonlocal sent
        java.send("p", topic, [f"round-{sent + i}" for i in range(8)])
        sent += 8
        eventually(lambda: len(java.received("c1")) + len(java.received("c2")) >= sent)
        return len({event["queue_id"] for event in java.received("c2")}) == 2

    eventually(both_are_served)
    java.shutdown("c2")
    before = len(java.received("c1"))
    java.send("p", topic, [f"back-{i}" for i in range(8)])
    events = java.wait("c1", lambda got: sum(event["body"].startswith("back-") for event in got) >= 8)
    assert {event["queue_id"] for event in events[before:]} == {0, 1, 2, 3}
    counts = Counter(event["body"] for name in ("c1", "c2") for event in java.received(name))
    assert len(counts) == sent + 8


def test_offsets_outlive_restarts(java: ForeignClient, server: Server, topic: str) -> None:
    """A group goes on where it stopped after its consumer restarted and after the broker restarted."""
    group = f"{topic}-group"
    java.send("p", topic, [f"first-{i}" for i in range(8)])
    java.consumer("c1", server.namesrv, group, {topic: "*"})
    java.wait("c1", 8)
    java.shutdown("c1")
    java.send("p", topic, [f"second-{i}" for i in range(8)])
    java.consumer("c2", server.namesrv, group, {topic: "*"})
    assert _bodies(java.wait("c2", 8)) == sorted(f"second-{i}" for i in range(8))
    java.shutdown("c2")
    java.shutdown("p")
    server.stop()
    server.start()
    java.producer("p", server.namesrv, "interop-producers")
    java.send("p", topic, [f"third-{i}" for i in range(8)])
    java.consumer("c3", server.namesrv, group, {topic: "*"})
    assert _bodies(java.wait("c3", 8)) == sorted(f"third-{i}" for i in range(8))


def test_refusals_are_told(java: ForeignClient, server: Server, topic: str) -> None:
    """An illegal message is refused with its code and the connection goes on working."""
    with pytest.raises(DriverError) as refused:
        java.send("p", topic, ["x"], properties={"big": "x" * 40_000})
    assert refused.value.code == 13
    assert java.send("p", topic, ["fine"])[0]["status"] == "SEND_OK"


def test_compressed_bodies(java: ForeignClient, server: Server, topic: str) -> None:
    """A body above 4 KiB, which the client compresses, comes back whole."""
    long = "".join(str(number) for number in range(20_000))
    java.consumer("c", server.namesrv, f"{topic}-group", {topic: "*"})
    java.send("p", topic, [long])
    assert java.wait("c", 1)[0]["body"] == long


def test_binary_headers(server: Server, tmp_path: Path) -> None:
    """A client that speaks ROCKETMQ's binary headers is answered in kind: route, sends, batch, heartbeats, pulls."""
    binary = java_client(tmp_path, "-Drocketmq.serialize.type=ROCKETMQ")
    try:
        name = f"interop-binary-{next(_numbers)}"
        binary.producer("p", server.namesrv)
        binary.call("create_topic", producer="p", cluster=CLUSTER, topic=name, queues=2)
        binary.consumer("c", server.namesrv, f"{name}-group", {name: "a || b"})
        binary.send("p", name, [f"sync-{i}" for i in range(4)], "sync", tag="a", keys="k")
        binary.send("p", name, [f"batch-{i}" for i in range(4)], "batch", tag="b")
        events = binary.wait("c", 8)
        assert _bodies(events) == sorted(f"{mode}-{i}" for mode in ("sync", "batch") for i in range(4))
        binary.shutdown_all()
    finally:
        binary.close()


def test_a_crash_loses_nothing_acknowledged(java: ForeignClient, server: Server, topic: str) -> None:
    """After kill -9 of the broker everything acknowledged is there, and the running client goes on by itself."""
    receipts = java.send("p", topic, [f"before-{i}" for i in range(20)])
    assert {receipt["status"] for receipt in receipts} == {"SEND_OK"}
    server.kill()
    server.start()

    def sent() -> bool:
        try:
            return bool(java.send("p", topic, ["after"]))
        except DriverError:  # the client has not noticed yet that the broker is back
            return False

    eventually(sent)
    java.consumer("c", server.namesrv, f"{topic}-group", {topic: "*"})
    events = java.wait(
        "c", lambda got: {event["body"] for event in got} >= {f"before-{i}" for i in range(20)} | {"after"}
    )
    assert len({event["id"] for event in events}) == 21


def test_a_trace_that_java_began_goes_on_here_and_ours_there(java: ForeignClient, server: Server, topic: str) -> None:
    """The context of a trace is a user property: Java's client carries it as any other, both ways."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    java.send("p", topic, ["from java"], properties={"traceparent": parent})
    with metaq.Consumer(
        server.namesrv, group=f"{topic}-ours", topics=topic, start="earliest", opentelemetry=provider
    ) as consumer:
        message = consumer.receive()
        assert message is not None
        message.ack()
        [processed] = exporter.get_finished_spans()
    assert processed.parent is not None
    assert (processed.name, f"{processed.context.trace_id:032x}") == (f"process {topic}", parent[3:35])
    assert f"{processed.parent.span_id:016x}" == parent[36:52]
    exporter.clear()
    java.consumer("c", server.namesrv, f"{topic}-group", {topic: "*"})
    with metaq.Producer(server.namesrv, group="ours", opentelemetry=provider) as producer:
        producer.send(topic, b"from here")
    [sent] = exporter.get_finished_spans()
    carried = {event["body"]: event["properties"]["traceparent"][:52] for event in java.wait("c", 2)}
    assert carried == {
        "from java": parent[:52],
        "from here": f"00-{sent.context.trace_id:032x}-{sent.context.span_id:016x}",
    }
