"""Queues and clients in detail, as administrators ask for them: 303, 308, 317, 321, 328."""

from __future__ import annotations

import pytest

from metaq.broker.inspection import NO_CORRECTION, UNITS_MAX
from metaq.model import ConsumeStats, GroupConfig, Heartbeat, MessageQueue, TopicConfig
from metaq.model.inspection import ProducerClient, QueueTimeSpan
from metaq.wire import bodies
from metaq.wire.codes import RequestCode as Code
from metaq.wire.codes import ResponseCode
from tests.servers.support import Client

QUEUES = [MessageQueue("orders", "broker-a", queue_id) for queue_id in range(2)]


@pytest.fixture
def times(server, client, clock):
    """Store times of three messages in the first of two queues."""
    server.broker.topics.update(TopicConfig("orders", 2, 2)).settle()
    server.broker.groups.update(GroupConfig("G")).settle()
    found = []
    for number in range(3):
        found.append(clock.now_ms())
        client.send("orders", b"%d" % number, tag="TagA")
        clock.advance(1)
    return found


def test_time_spans_of_a_group(server, client, clock, times):
    """303: the first and last message's time, that of the newest consumed, and the age of the next."""

    def spans(**more):
        answer = client.ask(Code.QUERY_CONSUME_TIME_SPAN, {"topic": "orders", **more})
        assert answer.code == 0
        return bodies.time_spans_of(answer.body)

    empty = QueueTimeSpan(QUEUES[1], -1, -1, -1, 0)
    unread = QueueTimeSpan(QUEUES[0], times[0], times[2], times[0], 3000)
    assert spans() == spans(group="G") == [unread, empty]
    server.broker.offsets.put("G", "orders", 0, 2)
    assert spans(group="G") == [QueueTimeSpan(QUEUES[0], times[0], times[2], times[1], 1000), empty]
    for beyond in (3, 100):
        server.broker.offsets.put("G", "orders", 0, beyond)
        assert spans(group="G") == [QueueTimeSpan(QUEUES[0], times[0], times[2], times[2], 0), empty]
    missing = client.ask(Code.QUERY_CONSUME_TIME_SPAN, {"topic": "nowhere", "group": "G"})
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST


def test_progress_of_all_groups(server, client, times):
    """317: groups with their topics, those left out that an online group has given up, and the sum of what is not consumed."""
    server.broker.offsets.put("G", "orders", 0, 1)
    server.broker.offsets.put("unknown", "orders", 0, 1)

    def all_stats(**ext):
        answer = client.ask(Code.GET_BROKER_CONSUME_STATS, ext)
        return bodies.all_consume_stats_of(answer.body)

    address, groups, diff = all_stats()
    assert address == "127.0.0.1:10911"
    assert groups["G"] == [({QUEUES[0]: ConsumeStats(3, 1, times[0]), QUEUES[1]: ConsumeStats(0, 0, 0)}, 0.0)]
    assert "unknown" not in groups
    assert diff == 2
    assert all_stats(isOrder="true")[1]["G"] == []
    client.beat("G", {"bills": "*"})
    assert all_stats()[1]["G"] == []


def test_units_of_a_queue(server, client, times):
    """321: where the messages are; what a group subscribes to; nothing behind the end; at most so many."""

    def ask(**more):
        return client.ask(
            Code.QUERY_CONSUME_QUEUE, {"topic": "orders", "queueId": "0", "index": "0", "count": "10"} | more
        )

    found = bodies.queue_units_of(ask().body)
    log = server.broker.store.log
    assert (found.min_offset, found.max_offset, len(found.units)) == (0, 3, 3)
    assert found.units[0].log_offset == 0
    assert found.units[-1].log_offset + found.units[-1].size == log.end
    assert {unit.tags_code for unit in found.units} == {2598919}
    assert len(bodies.queue_units_of(ask(index="1", count="1").body).units) == 1
    for outside in ({"index": "3"}, {"index": "-1"}, {"index": str(2**63 - 1)}, {"count": "-5"}, {"count": "0"}):
        answer = ask(**outside)
        assert (answer.code, bodies.queue_units_of(answer.body).units) == (0, []), outside
    assert b"nobody@orders is not online!" in ask(consumerGroup="nobody").body
    client.beat("G", {"orders": "TagA"})
    assert bodies.queue_units_of(ask(consumerGroup="G").body).subscription.expression == "TagA"
    assert bodies.queue_units_of(ask(queueId="1").body).units == []
    for queue in ({"queueId": "9"}, {"queueId": "-1"}, {"topic": "nowhere"}):
        refused = ask(**queue)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "is not exist" in refused.remark
    assert len(bodies.queue_units_of(ask(count=str(2**31 - 1)).body).units) == 3 < UNITS_MAX


@pytest.mark.parametrize(
    "ext",
    [
        {},
        {"topic": "orders", "queueId": "0", "index": "0"},
        {"topic": "orders", "queueId": "x", "index": "0", "count": "1"},
        {"topic": "orders", "queueId": "0", "index": "9" * 30, "count": "1"},
        {"topic": "orders", "queueId": "0", "index": "0", "count": str(2**31)},
    ],
)
def test_fields_that_are_missing_or_no_numbers_are_told(client, times, ext):
    """Each by its name; the connection goes on."""
    answer = client.ask(Code.QUERY_CONSUME_QUEUE, ext)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert client.ask(Code.QUERY_CONSUME_TIME_SPAN, {}).code == ResponseCode.SYSTEM_ERROR
    assert client.ask(Code.GET_ALL_PRODUCER_INFO).code == 0


def test_all_producers(server, client, clock):
    """328: each producer group with its connections, and when they were heard last."""
    assert bodies.all_producers_of(client.ask(Code.GET_ALL_PRODUCER_INFO).body) == {}
    other = Client(server)
    other.ask(Code.HEART_BEAT, None, bodies.heartbeat(Heartbeat("c@2", (), ("payers", "mailers"))))
    seen = clock.now_ms()
    clock.advance(5)
    address = f"127.0.0.1:{other.peer.address[1]}"
    member = ProducerClient("c@2", address, "JAVA", 409, seen)
    found = bodies.all_producers_of(client.ask(Code.GET_ALL_PRODUCER_INFO).body)
    assert found == {"payers": [member], "mailers": [member]}


def test_correction_offsets(server, client, times):
    """308: the lowest position of all groups in each queue, but those left out; none where the compared group is behind it."""
    offsets = server.broker.offsets

    def ask(**more):
        answer = client.ask(Code.QUERY_CORRECTION_OFFSET, {"topic": "orders", "compareGroup": "G"} | more)
        assert answer.code == 0
        return bodies.correction_offsets_of(answer.body)

    assert ask() == {}
    offsets.put("G", "orders", 0, 3)
    offsets.put("H", "orders", 0, 2)
    offsets.put("H", "orders", 1, 0)
    assert ask() == {0: 2, 1: 0}
    assert ask(filterGroups="X,H") == {0: 3}
    offsets.put("G", "orders", 0, 1)
    assert ask(filterGroups="G") == {0: NO_CORRECTION, 1: 0}
    assert ask(topic="nowhere") == {}
    assert ask(compareGroup="nobody") == {0: 1, 1: 0}
    assert client.ask(Code.QUERY_CORRECTION_OFFSET, {"topic": "orders"}).code == ResponseCode.SYSTEM_ERROR
