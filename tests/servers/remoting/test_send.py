"""Sends at the server, in both paths: answers, checks in RocketMQ's order, batches, oneway."""

from __future__ import annotations

import pytest

from metaq.model import properties as props
from metaq.testing.faults import FaultyDisk
from metaq.wire import hot
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import SerializeType
from metaq.wire.record import decode_record, encode_batch, parse_offset_id
from tests.servers.support import Client, SlowDisk, open_server, send_header


def stored(server, answer):
    """The record that an answer names."""
    return decode_record(server.broker.store.reader.record_at(parse_offset_id(answer.ext["msgId"])[2]))


@pytest.mark.parametrize("serialize", list(SerializeType))
def test_a_first_send_creates_the_topic_and_both_paths_answer_alike(server, serialize):
    """The first send of a topic goes the slow way and creates it, the second the fast way; their answers agree."""
    client = Client(server, serialize)
    first, second = client.send("orders"), client.send("orders")
    assert (first.code, second.code) == (0, 0)
    assert first.ext.keys() == second.ext.keys() == {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}
    assert [first.ext["queueOffset"], second.ext["queueOffset"]] == ["0", "1"]
    assert first.serialize is second.serialize is serialize
    assert server.broker.topics.require("orders").write_queues == 4
    assert b"orders" in client.session.gates.table
    assert parse_offset_id(second.ext["msgId"])[:2] == ("127.0.0.1", 10911)


def test_both_paths_store_the_same_record(server, client):
    """Whichever path a message takes, its record differs in nothing but its place."""
    answers = [client.send("orders", b"body", tag="paid", flag=7, properties={"KEYS": "a b"}) for _ in range(2)]
    slow, fast = (stored(server, answer) for answer in answers)
    for name in ("topic", "body", "flag", "sys_flag", "born_ms", "born_host_raw", "properties", "queue_id"):
        assert getattr(slow, name) == getattr(fast, name), name
    assert slow.properties[props.CLUSTER] == "DefaultCluster"
    assert props.WAIT not in slow.properties
    units = server.broker.store.reader.queue("orders", 0).units(0, 2)
    assert units[0].tags_code == units[1].tags_code == hot.java_hash(b"paid")
    for key in ("a", "b", slow.message_id):
        assert len(server.broker.store.reader.query("orders", key, 32, 0, 1 << 60)) == 2


def test_code_10_with_long_names_is_the_same_send(server, client):
    """Go sends code 10 with long field names."""
    header = send_header("orders").to_long_ext()
    assert client.ask(RequestCode.SEND_MESSAGE, header, b"x").code == 0
    assert client.ask(RequestCode.SEND_MESSAGE, header, b"x").ext["queueOffset"] == "1"


def test_many_sends_in_one_read_event_are_answered_in_one_write(server, client):
    """A pipelined run of sends is stored in order, and its answers leave together."""
    client.send("orders")
    writes = len(client.peer.writes)
    frames = [client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"%d" % n) for n in range(100)]
    client.feed(b"".join(frames))
    answers = client.received()
    assert [answer.ext["queueOffset"] for answer in answers] == [str(n) for n in range(1, 101)]
    assert len(client.peer.writes) == writes + 1


def test_frames_may_arrive_in_pieces_of_any_size(server, client):
    """A request that comes byte by byte is answered once, when it is whole."""
    client.send("orders")
    for byte in client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"slowly"):
        assert client.received() == []
        client.feed(bytes([byte]))
    assert [answer.code for answer in client.received()] == [0]


def test_one_connections_order_holds_across_the_paths(server, client):
    """Plain and special messages of one read event lie in their queue in the order they were sent."""
    client.send("orders")
    special = {"MSG_TYPE": "other"}  # a property that the fast path leaves to the slow one
    frames = [
        client.frame(
            RequestCode.SEND_MESSAGE_V2, send_header("orders", properties=special if n % 3 == 0 else {}), b"%d" % n
        )
        for n in range(30)
    ]
    client.feed(b"".join(frames))
    bodies = [
        decode_record(server.broker.store.reader.record_at(unit.log_offset)).body
        for unit in server.broker.store.reader.queue("orders", 0).units(1, 30)
    ]
    assert bodies == [b"%d" % n for n in range(30)]


def test_oneway_is_stored_without_an_answer(server, client):
    """A oneway send leaves no answer, in either path."""
    for _ in range(2):
        client.feed(client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x", oneway=True))
    assert client.received() == []
    assert server.broker.store.reader.queue("orders", 0).max_offset == 2


@pytest.mark.parametrize("code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_batch_is_contiguous_and_answered_with_all_its_ids(server, client, code):
    """Batches of both paths list one offset id per message; 310 with m=true is a batch as well."""
    body = encode_batch([(n, b"%d" % n, props.join({"UNIQ_KEY": f"id{n}", "WAIT": "true"}).encode()) for n in range(5)])
    header = send_header("orders", batch=True)
    header.properties = "WAIT\x01true"
    for start in (0, 5):
        answer = client.ask(code, header, body)
        ids = answer.ext["msgId"].split(",")
        records = [decode_record(server.broker.store.reader.record_at(parse_offset_id(one)[2])) for one in ids]
        assert (answer.code, answer.ext["queueOffset"]) == (0, str(start))
        assert [(record.body, record.flag, record.queue_offset) for record in records] == [
            (b"%d" % n, n, start + n) for n in range(5)
        ]
        assert {record.properties["CLUSTER"] for record in records} == {"DefaultCluster"}


def test_a_negative_queue_id_lets_the_broker_choose(server, client):
    """Queue id -1 spreads messages over the write queues."""
    chosen = {client.send("orders", queue_id=-1).ext["queueId"] for _ in range(50)}
    assert chosen == {"0", "1", "2", "3"}


REFUSALS = [
    ("a queue id at the count", {"topic": "orders", "queue_id": 4}, ResponseCode.SYSTEM_ERROR, "queueId[4] is illegal"),
    ("a blank topic", {"topic": " "}, ResponseCode.SYSTEM_ERROR, "blank"),
    ("a path in the topic", {"topic": "../../etc"}, ResponseCode.SYSTEM_ERROR, "characters outside"),
    ("a topic that is too long", {"topic": "x" * 128}, ResponseCode.SYSTEM_ERROR, "limit is 127"),
    ("the schedule topic", {"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "forbidden"),
    ("the half topic", {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION, "forbidden"),
    ("a topic of our extensions", {"topic": "rmq_sys_METAQ_STAGE"}, ResponseCode.NO_PERMISSION, "broker itself"),
    ("a template without inherit", {"topic": "new", "default_topic": "orders"}, ResponseCode.TOPIC_NOT_EXIST, "inherit"),
    ("an unknown template", {"topic": "new", "default_topic": "nope"}, ResponseCode.TOPIC_NOT_EXIST, "metaq topic create"),
    ("a half message of nobody", {"topic": "orders", "producer_group": "", "properties": {"TRAN_MSG": "true"}}, ResponseCode.MESSAGE_ILLEGAL, "PGROUP"),
    ("transaction bits", {"topic": "orders", "sys_flag": 4}, ResponseCode.NO_PERMISSION, "TRAN_MSG"),
    ("properties beyond the format", {"topic": "orders", "properties": {"p": "x" * 33000}}, ResponseCode.MESSAGE_ILLEGAL, "32767"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "code", "text"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_a_refused_send_says_why_and_stores_nothing(server, client, more, code, text):
    """Each check answers with its code and a text that names the reason; nothing reaches the log."""
    client.send("orders")
    end = server.broker.store.log.end
    answer = client.send(**more)
    assert answer.code == code
    assert text in answer.remark
    assert server.broker.store.log.end == end
    assert client.send("orders").code == 0


def test_a_body_above_the_limit_is_illegal(server, client):
    """A body above maxMessageSize is refused with code 13, and the connection lives on."""
    answer = client.send("orders", b"x" * ((1 << 20) + 1))
    assert (answer.code, "limit is 1048576" in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert client.send("orders").code == 0


@pytest.mark.parametrize("body", [b"", b"\x00" * 10, b"\xff" * 40], ids=["empty", "cut off", "hostile size"])
def test_a_malformed_batch_is_illegal(server, client, body):
    """A batch body that is no batch is refused as a whole."""
    client.send("orders")
    answer = client.ask(RequestCode.SEND_BATCH_MESSAGE, send_header("orders", batch=True), body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert server.broker.store.reader.queue("orders", 0).max_offset == 1


def test_a_batch_may_not_be_delayed(server, client):
    """A delay level inside a batch is refused: the batch could not stay contiguous."""
    body = encode_batch([(0, b"x", props.join({"DELAY": "3"}).encode())])
    client.send("orders")
    answer = client.ask(RequestCode.SEND_BATCH_MESSAGE, send_header("orders", batch=True), body)
    assert (answer.code, "delayed" in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)


def test_automatic_creation_can_be_switched_off(tmp_path):
    """With autoCreateTopicEnable=false an unknown topic is answered 17 and what to do."""
    with open_server(tmp_path, auto_create_topic_enable=False) as (broker, server):
        answer = Client(server).send("orders")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "autoCreateTopicEnable is false" in answer.remark
        assert broker.topics.get("orders") is None


def test_a_full_disk_is_named_and_nothing_else_suffers(tmp_path):
    """StoreFull is answered 14 with the store's text; pulls go on."""
    disk = FaultyDisk()
    with open_server(tmp_path, disk=disk) as (broker, server):
        client, store = Client(server), broker.store
        client.send("orders", b"before")
        disk.used = 91
        store.keeper.retain(store.clock.now_ms())
        answer = client.send("orders", b"refused")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "90 percent full" in answer.remark
        (pulled,) = client.pull("orders")
        assert pulled.code == 0
        disk.used = 50
        store.keeper.retain(store.clock.now_ms())
        assert client.send("orders").code == 0


def test_a_producer_faster_than_the_disk_is_refused_as_busy(tmp_path):
    """When too many bytes wait for the disk, sends are answered SYSTEM_BUSY, in both paths."""
    disk = SlowDisk()
    with open_server(tmp_path, disk=disk, unflushed_bytes_max=1 << 20) as (broker, server):
        client = Client(server)
        client.send("orders")
        disk.may_sync.clear()
        try:
            for _ in range(22):
                client.feed(client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x" * 50_000))
            client.received()
            assert [client.send(topic).code for topic in ("orders", "other")] == [ResponseCode.SYSTEM_BUSY] * 2
        finally:
            disk.may_sync.set()
        broker.store.flusher.flush()
        client.received()
        assert client.send("orders").code == 0


def test_a_failed_store_acknowledges_nothing(server, client):
    """After a failed fsync every send is refused with the store's own words."""
    client.send("orders")
    server.broker.store.state.fail("fsync failed: Input/output error")
    answer = client.send("orders")
    assert (answer.code, "Input/output error" in answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)


def test_deleting_a_topic_closes_its_gate(server, client):
    """After a deletion the topic is made anew by the next send, from offset 0."""
    for _ in range(3):
        client.send("orders")
    server.broker.store.flusher.flush()
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0
    assert b"orders" not in client.session.gates.table
    assert client.send("orders").ext["queueOffset"] == "0"


def test_a_disk_that_fills_up_in_the_middle_of_a_run(tmp_path):
    """What was stored before is acknowledged, and wakes who waits; the rest is told that there is no room."""
    disk, small = FaultyDisk(), {"mapped_file_size_commit_log": 1 << 16, "max_message_size": 1 << 12}
    with open_server(tmp_path, store=small, disk=disk) as (broker, server):
        client, waiting = Client(server), Client(server)
        client.send("orders")
        waiting.pull("orders", offset=1, sys_flag=6, suspend_ms=15_000)
        disk.room = 0
        frames = [client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x" * 1000) for _ in range(100)]
        client.feed(b"".join(frames))
        codes = sorted(answer.code for answer in client.received())
        stored = broker.store.reader.queue("orders", 0).max_offset - 1
        assert 30 < stored < 65
        assert codes == [0] * stored + [ResponseCode.SERVICE_NOT_AVAILABLE] * (100 - stored)
        assert waiting.received()[0].remark == "FOUND"
        assert broker.stats.put_messages == stored + 1
