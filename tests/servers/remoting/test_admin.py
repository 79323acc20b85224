"""What administrators ask and change at the broker's server."""

from __future__ import annotations

import os

import pytest

from metaq.broker.process.reloading import ended
from metaq.errors import BadRequest, Reason, Refused
from metaq.model import ConsumeStats, GroupConfig, MessageQueue, QueueStats
from metaq.model.reload import ReloadedFile
from metaq.wire import beans, bodies, fastjson
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.extensions import level_of, reloaded_of
from metaq.wire.record import decode_record
from tests.servers.support import Client


def create(client, topic, reads=4, writes=4, perm=6, **more):
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(reads), "writeQueueNums": str(writes),
        "perm": str(perm), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    } | more  # fmt: skip
    return client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)


def test_a_topic_is_made_changed_and_listed(client):
    """17 makes and changes, 21 lists with the data version that name servers see."""
    assert create(client, "orders", 3, 2).code == 0
    version, table = bodies.topic_table_of_tree(
        beans.parse(client.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body, "topics")
    )
    assert (table["orders"].read_queues, table["orders"].write_queues) == (3, 2)
    assert create(client, "orders", 8, 8).code == 0
    changed, table = bodies.topic_table_of_tree(
        beans.parse(client.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body, "topics")
    )
    assert table["orders"].write_queues == 8
    assert changed.counter == version.counter + 1


def test_more_queues_are_open_to_the_fast_path_at_once(server, client):
    """A gate that stands is replaced when its topic grows."""
    create(client, "orders", 1, 1)
    assert [client.send("orders").code for _ in range(2)] == [0, 0]
    assert client.send("orders", queue_id=1).code == 1
    create(client, "orders", 2, 2)
    assert [client.send("orders", queue_id=1).code for _ in range(2)] == [0, 0]


def test_a_deleted_topic_is_gone_with_its_positions(server, client):
    """215 forgets queues and positions; deleting it again is accepted."""
    client.send("orders")
    client.pull("orders", sys_flag=5, commit_offset=1)
    for _ in range(2):
        server.broker.store.flusher.flush()
        assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0
    assert client.pull("orders")[0].code == ResponseCode.TOPIC_NOT_EXIST
    assert server.broker.offsets.get("G", "orders", 0) is None


def test_groups_are_made_listed_and_deleted(server, client):
    """200, 201 and 207; removeOffset drops the positions too."""
    body = fastjson.dumps(bodies.group_tree(GroupConfig("mailer", retry_max=3)))
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body).code == 0
    answer = client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert bodies.group_table_of_tree(beans.parse(answer.body, "groups"))[1]["mailer"].retry_max == 3
    server.broker.offsets.put("mailer", "orders", 0, 5)
    header = {"groupName": "mailer", "removeOffset": "true"}
    assert client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header).code == 0
    assert server.broker.groups.get("mailer") is None
    assert server.broker.offsets.get("mailer", "orders", 0) is None


def test_statistics_of_a_topic(client, clock):
    """202 tells each queue's bounds and when its last message came."""
    create(client, "orders", 2, 2)
    client.send("orders")
    clock.advance(7)
    client.send("orders")
    answer = client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"})
    assert bodies.topic_stats_of(answer.body) == {
        MessageQueue("orders", "broker-a", 0): QueueStats(0, 2, clock.now_ms()),
        MessageQueue("orders", "broker-a", 1): QueueStats(0, 0, 0),
    }
    assert b'{{"brokerName":"broker-a"' in answer.body
    assert client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "nope"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_statistics_of_a_group(client, clock):
    """208 tells end, position and the time of what was consumed last, for every queue of the group's topics."""
    create(client, "orders", 1, 1)
    for _ in range(3):
        client.send("orders")
        clock.advance(1)
    client.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "G", "topic": "orders", "queueId": "0", "commitOffset": "2"},
    )
    answer = client.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"})
    stats, _ = bodies.consume_stats_of(answer.body)
    assert stats == {MessageQueue("orders", "broker-a", 0): ConsumeStats(3, 2, clock.now_ms() - 2000)}


def test_who_consumes_a_topic(client):
    """300 names online groups and those with positions."""
    client.send("orders")
    client.beat("online", {"orders": "*"})
    client.pull("orders", group="past", sys_flag=5, commit_offset=1)
    answer = client.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "orders"})
    assert bodies.group_list_of(answer.body) == ["online", "past"]


def test_runtime_information_has_what_the_tools_parse(client, clock):
    """28: every value a string, three rates each, totals whole numbers; and it says that we are not RocketMQ."""
    client.send("orders")
    client.pull("orders")
    clock.advance(10)
    table = bodies.kv_table_of(client.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)
    for key in ("putTps", "getTransferedTps", "getTotalTps", "getFoundTps", "getMissTps"):
        assert len([float(part) for part in table[key].split(" ")]) == 3
    assert float(table["putTps"].split(" ")[0]) == pytest.approx(0.1)
    for key in ("msgPutTotalTodayNow", "msgGetTotalTodayNow", "msgPutTotalYesterdayMorning", "commitLogMaxOffset"):
        assert int(table[key]) >= 0
    assert (table["brokerVersionDesc"], table["msgPutTotalTodayNow"]) == ("V4_9_8", "1")
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    assert level_of(table) > 0


def test_the_configuration_is_told_under_rocketmqs_names(client):
    """26: key=value lines and the data version in the header."""
    answer = client.ask(RequestCode.GET_BROKER_CONFIG)
    lines = bytes(answer.body).decode().splitlines()
    assert "brokerName=broker-a" in lines
    assert "flushDiskType=ASYNC_FLUSH" in lines
    table = dict(line.split("=", 1) for line in lines)
    assert len(table) == len(lines)
    assert (table["brokerRole"], table["listenPort"]) == ("ASYNC_MASTER", "10911")
    assert table["haListenPort"] == "0", "no replication server runs here"
    assert table["brokerIP1"] == table["brokerIP2"] == "127.0.0.1"
    assert table["clientCallbackExecutorThreads"] == str(os.cpu_count())
    assert table["aclEnable"] == table["traceTopicEnable"] == "false"
    assert "None" not in table.values()
    assert "counter" in answer.ext["version"]


def test_offsets_are_told_as_their_files_hold_them(client):
    """43 and 45 in the odd JSON that Java reads."""
    client.send("orders")
    client.pull("orders", sys_flag=5, commit_offset=1)
    assert client.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body == b'{"offsetTable":{"orders@G":{0:1}}}'
    assert client.ask(RequestCode.GET_ALL_DELAY_OFFSET).body == b'{"offsetTable":{}}'


def test_messages_are_found_by_key_and_by_place(client):
    """12 by key and by unique id, 33 by log offset."""
    client.send("orders", b"one", properties={"KEYS": "a b"})
    client.send("orders", b"two", properties={"KEYS": "b"})
    span = {"topic": "orders", "maxNum": "10", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
    answer = client.ask(RequestCode.QUERY_MESSAGE, span | {"key": "b"})
    first = decode_record(answer.body)
    assert first.body == b"one"
    assert answer.body.endswith(b"CLUSTER\x01DefaultCluster")
    assert answer.body.count(b"two") == 1
    unique = client.ask(RequestCode.QUERY_MESSAGE, span | {"key": first.message_id, "_UNIQUE_KEY_QUERY": "true"})
    assert decode_record(unique.body).message_id == first.message_id
    viewed = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(first.log_offset)})
    assert decode_record(viewed.body).body == b"one"


def test_offsets_by_bound_and_by_time(client, clock):
    """29, 30, 31, 32 of a queue with messages, and of one without."""
    create(client, "orders", 2, 2)
    times = []
    for _ in range(3):
        times.append(clock.now_ms())
        client.send("orders")
        clock.advance(10)
    queue = {"topic": "orders", "queueId": "0"}

    def offset(code, **more):
        return int(client.ask(code, queue | more).ext["offset"])

    assert (offset(RequestCode.GET_MIN_OFFSET), offset(RequestCode.GET_MAX_OFFSET)) == (0, 3)
    assert [offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(at)) for at in times] == [0, 1, 2]
    assert client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue).ext["timestamp"] == str(times[0])
    queue["queueId"] = "1"
    assert offset(RequestCode.GET_MAX_OFFSET) == 0
    assert offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp="5") == 0
    assert client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue).ext["timestamp"] == "-1"


def test_the_configuration_is_read_again_for_this_machine(server, client):
    """30007 is answered when that is done, with what became of it; a wrong file is an error with its text."""
    reloading = server.broker.reloading
    assert client.ask(RequestCode.RELOAD).code == ResponseCode.SYSTEM_ERROR  # there is no file
    reads = []
    reloading.by(lambda: reads.append(1))
    client.feed(client.frame(RequestCode.RELOAD))
    assert reads
    assert not client.received()
    outcome = ReloadedFile("server.ini", ("topic new",), ("metaq1.brokerId=4 (it was 3)",))
    ended(reloading.begin(), outcome)
    [answer] = client.received()
    assert (answer.code, reloaded_of(answer.body)) == (0, outcome)
    client.feed(client.frame(RequestCode.RELOAD))
    ended(reloading.begin(), Refused(Reason.INVALID, "server.ini, line 3: ..."))
    [answer] = client.received()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "line 3" in answer.remark
    stranger = Client(server)
    stranger.peer.address = ("10.0.0.9", 5)
    stranger.session = server.session(stranger.peer)
    assert stranger.ask(RequestCode.RELOAD).code == ResponseCode.NO_PERMISSION
    with pytest.raises(BadRequest):
        reloaded_of(b"[]")
