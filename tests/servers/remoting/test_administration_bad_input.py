"""Administrators' requests with missing, mistyped and hostile fields: each is answered in words, and changes nothing."""

from __future__ import annotations

import json

import pytest

from metaq.clock import FakeClock
from metaq.namesrv.kv import KvTable
from metaq.namesrv.service import NameService
from metaq.options import NamesrvOptions
from metaq.saved_file import TableFile
from metaq.servers.remoting.namesrv import NamesrvServer
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode as Code
from metaq.wire.codes import ResponseCode
from metaq.wire.command import request
from metaq.wire.files import KV_CONFIG
from tests.broker.support import MemoryFile
from tests.servers.remoting.test_namesrv import Client as NamesrvClient
from tests.servers.remoting.test_namesrv import registration
from tests.servers.support import Client, tick
from tests.support import eventually

YEAR_9999 = 253_402_300_799_000
"""The last second of the year 9999, ms since 1970."""
GOOD = {
    Code.INVOKE_BROKER_TO_RESET_OFFSET: headers.ResetOffsetHeader(topic="orders", group="G", timestamp=5, force=True),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: headers.ConsumerStatusHeader(topic="orders", group="G", client_id="c@1"),
    Code.QUERY_CONSUME_TIME_SPAN: headers.TimeSpanHeader(topic="orders", group="G"),
    Code.GET_CONSUMER_RUNNING_INFO: headers.RunningInfoHeader(consumer_group="G", client_id="c@1", stacks=True),
    Code.QUERY_CORRECTION_OFFSET: headers.CorrectionHeader(topic="orders", group="G", left_out="H"),
    Code.CONSUME_MESSAGE_DIRECTLY: headers.ConsumeDirectlyHeader(
        consumer_group="G", client_id="c@1", message_id="7F00000100002A9F0000000000000000", broker_name="broker-a"
    ),
    Code.CLONE_GROUP_OFFSET: headers.CloneOffsetsHeader(source="G", target="H", topic="orders", offline=True),
    Code.VIEW_BROKER_STATS_DATA: headers.BrokerStatsHeader(stats_name="TOPIC_PUT_NUMS", stats_key="orders"),
    Code.GET_BROKER_CONSUME_STATS: headers.AllStatsHeader(ordered=True),
    Code.QUERY_CONSUME_QUEUE: headers.ConsumeQueueHeader(topic="orders", queue_id=0, index=0, count=1, consumer_group="G"),
}  # fmt: skip
"""Codes of administration that have fields. Those without any, and with a body: below."""
REMARK_MAX = 4096
"""Characters of the longest remark: an answer is no mirror of a megabyte."""
NUMBERS = {"timestamp", "queueId", "index", "count"}
BOOLEANS = {"isForce", "metaqExact", "jstackEnable", "offline", "isOrder"}
HOSTILE_TEXTS = (
    "",
    "../../etc/passwd",
    "a\x00b",
    "%s%n{}",
    "é" * 300,
    "t" * 100_000,
    "\r\nresult 200",
    "%RETRY%../x",
    "TBW102",
)
HOSTILE_NUMBERS = ("", "x", "1_0", "0x10", "1e3", " 1", "9" * 100_000, str(1 << 63), str(-(1 << 63)), str(-(1 << 63) - 1), "-1", str(1 << 31))  # fmt: skip
HOSTILE_BOOLEANS = ("perhaps", "", "2", "x" * 100_000)

CASES = [
    (code, field, value)
    for code, header in GOOD.items()
    for field in header.to_ext()
    for value in (
        None,
        *(HOSTILE_NUMBERS if field in NUMBERS else HOSTILE_BOOLEANS if field in BOOLEANS else HOSTILE_TEXTS),
    )
]


def state(server):
    """Everything that such a request could change."""
    broker = server.broker
    return (
        broker.store.log.end,
        dict(broker.offsets.table),
        sorted(broker.topics.table),
        sorted(broker.groups.table),
        broker.options.properties(),
        broker.store_options.properties(),
    )


@pytest.fixture
def filled(server):
    """A topic with messages, and a group with a position and no member."""
    client = Client(server)
    for number in range(3):
        client.send("orders", b"%d" % number)
    server.broker.offsets.put("G", "orders", 0, 1)
    return client


def label(case):
    code, field, value = case
    return f"{code.name}-{field}-{'absent' if value is None else ascii(value[:16])}"


@pytest.mark.parametrize("code", GOOD, ids=[code.name for code in GOOD])
def test_hostile_fields_are_answered_and_change_nothing(server, filled, code):
    """Each field absent, empty, of another type, beyond its bounds, and with what belongs into no name. Only 314 may give a group
    positions: of names that are names."""
    before = state(server)
    for case in CASES:
        if case[0] is not code:
            continue
        _, field, value = case
        ext = GOOD[code].to_ext() | {field: value}
        answer = filled.ask(code, {key: text for key, text in ext.items() if text is not None})
        where = label(case)
        assert answer.remark is None or len(answer.remark) <= REMARK_MAX, where
        assert answer.code == 0 or answer.remark, where
        for word in ("Traceback", "Error:", "Exception", "KeyError", "NoneType"):
            assert word not in (answer.remark or ""), (where, answer.remark)
        if field in NUMBERS and value in ("x", "1_0", "0x10", "1e3", "9" * 100_000, str(1 << 63)):
            assert answer.code == ResponseCode.SYSTEM_ERROR, where
        after = state(server)
        if code is Code.CLONE_GROUP_OFFSET and answer.code == 0:
            server.broker.offsets.drop_group("H")
        else:
            assert after == before, where
    assert filled.ask(Code.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"}).code == 0
    tick(server)


@pytest.mark.parametrize(
    "code",
    [
        Code.CLEAN_EXPIRED_CONSUMEQUEUE,
        Code.CLEAN_UNUSED_TOPIC,
        Code.DELETE_EXPIRED_COMMITLOG,
        Code.GET_ALL_PRODUCER_INFO,
    ],
)
def test_fields_and_bodies_that_nobody_asked_for_are_passed_over(server, filled, code):
    """306, 316, 329 and 328 have none."""
    before = state(server)
    for ext, body in (({"topic": "orders", "force": "x" * 10_000}, b""), ({}, b"{{{{"), ({}, bytes(100_000))):
        filled.feed(filled.frame(code, ext, body))
        (answer,) = eventually(filled.received)  # a cleaning is answered by its thread
        assert answer.code == 0
    assert state(server) == before
    assert filled.ask(Code.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"}).code == 0


@pytest.mark.parametrize("code", [22, 23, 27, 209])
def test_codes_that_rocketmq_names_and_does_not_serve(server, filled, code):
    """As RocketMQ: not supported, with the number."""
    answer = filled.ask(code, {"topic": "orders"}, b"{}")
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert str(code) in answer.remark


@pytest.mark.parametrize("timestamp", [YEAR_9999, (1 << 63) - 1, 0, 1, -1, -2, -(1 << 63)])
@pytest.mark.parametrize("exact", [None, True])
def test_a_group_is_reset_to_any_time(server, filled, timestamp, exact):
    """Behind the last message, or to the first: never outside of the queue. The member is told once."""
    member = Client(server)
    member.beat("G", {"orders": "*"})
    member.received()
    header = headers.ResetOffsetHeader(topic="orders", group="G", timestamp=timestamp, force=True, exact=exact)
    for queue_id in range(4):
        server.broker.offsets.put("G", "orders", queue_id, 0)
    answer = filled.ask(Code.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert answer.code == 0, answer.remark
    found = {queue.queue_id: offset for queue, offset in bodies.queue_offsets_of(answer.body).items()}
    if timestamp in (0, 1) or timestamp < -1:
        assert set(found.values()) == {0}
    elif exact or timestamp == -1:
        assert found[0] == 3
    assert all(0 <= offset <= 3 for offset in found.values())
    [told] = [one for one in member.received() if one.code == Code.RESET_CONSUMER_CLIENT_OFFSET]
    assert json.loads(told.ext["timestamp"]) == timestamp


def test_what_is_being_consumed_is_deleted(server, filled, clock):
    """A pull that waits is answered when its time is up; what is asked about the topic is refused in words."""
    member = Client(server)
    member.beat("G", {"orders": "*"})
    member.received()
    assert member.pull("orders", offset=3, sys_flag=6, suspend_ms=15_000, group="G") == []
    server.broker.store.flusher.flush()
    assert filled.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0
    clock.advance(16)
    tick(server)
    # Its offset is behind all that is there; the next pull is told that there is no topic.
    assert [one.code for one in member.received() if one.is_response] == [ResponseCode.PULL_OFFSET_MOVED]
    assert member.pull("orders", offset=0, group="G")[0].code == ResponseCode.TOPIC_NOT_EXIST
    for code in (Code.QUERY_CONSUME_TIME_SPAN, Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.QUERY_CONSUME_QUEUE):
        answer = filled.ask(code, GOOD[code])
        assert answer.code in {ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR}
        assert answer.remark
    stats = bodies.all_consume_stats_of(filled.ask(Code.GET_BROKER_CONSUME_STATS, {}).body)[1]
    assert stats["G"] == []
    assert filled.ask(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G", "removeOffset": "true"}).code == 0
    assert member.ask(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"}).code == 0


# ---------------------------------------------------------------- at a name server


HOSTILE_VERSIONS = (
    ({}, b"{}"),
    ({"brokerName": "b", "brokerAddr": "x", "clusterName": "c", "brokerId": "9" * 30}, b"{}"),
    ({"brokerName": "b", "brokerAddr": "../x", "clusterName": "c", "brokerId": "0"}, b"{{{{"),
    ({"brokerName": "b" * 100_000, "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "0"}, b"[]"),
    ({"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "0"}, b'{"counter":"x","timestamp":[]}'),
    ({"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "0"}, b"\xff" * 1000),
)  # fmt: skip


@pytest.mark.parametrize(("ext", "body"), HOSTILE_VERSIONS)
def test_a_version_query_that_is_none(ext, body):
    """322: answered, and no broker is registered or touched by it."""
    clock = FakeClock()
    kv = KvTable(TableFile(MemoryFile(), KV_CONFIG), clock)
    client = NamesrvClient(NamesrvServer(NameService(NamesrvOptions(), clock, kv)))
    client.ask(registration())
    before = client.ask(request(Code.GET_BROKER_CLUSTER_INFO)).body
    query = request(Code.QUERY_DATA_VERSION, None, body)
    query.ext = dict(ext)
    answer = client.ask(query)
    assert answer.code == 0 or answer.remark
    assert answer.remark is None or len(answer.remark) <= REMARK_MAX
    assert client.ask(request(Code.GET_BROKER_CLUSTER_INFO)).body == before
