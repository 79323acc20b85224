"""Every call: the very request that it makes, and what it reads in an answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from metaq.client.conversation.administration import CreateTopic, DeleteTopic, GetRuntime, GetTopicStats
from metaq.client.conversation.call import FAULTS, Call, unknown_topic
from metaq.client.conversation.following import DELAY_OFFSETS, GROUP_OFFSETS, GROUPS, FollowTables, GetTable
from metaq.client.conversation.following import TOPICS as TOPICS_TABLE
from metaq.client.conversation.groups import (
    GetConnections,
    GetConsumeStats,
    GetProducers,
    LeaveGroup,
    ListMembers,
    SendHeartbeat,
    members_of,
)
from metaq.client.conversation.notices import not_supported, notice_of
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset, GetPosition, SetPosition
from metaq.client.conversation.reading.pulling import Pull, PullResult, PullStatus
from metaq.client.conversation.registration import RegisterBroker, UnregisterBroker
from metaq.client.conversation.retry import Purpose, judge
from metaq.client.conversation.routes import DeleteTopicRoute, GetCluster, GetRoute, ListSystemTopics, ListTopics
from metaq.client.conversation.sending.sending import GiveBack, Outgoing, Send, Stored
from metaq.errors import BadRequest, BrokerError, ConnectionFailed, NoRoute
from metaq.in_pieces import finish
from metaq.model import (
    BrokerData,
    ClientConnection,
    ClusterInfo,
    ConsumerView,
    ConsumeStats,
    DataVersion,
    GroupConfig,
    Heartbeat,
    MessageQueue,
    QueueData,
    QueueStats,
    Route,
    SendStatus,
    TopicConfig,
)
from metaq.model.filters.subscription import subscribe
from metaq.model.notices import MembersChanged, OffsetsReset
from metaq.model.topics.registration import BrokerIdentity, Registered
from metaq.wire import bodies
from metaq.wire.codes import ResponseCode
from metaq.wire.command import Command, reply
from metaq.wire.hot import crc31
from tests.effort import repeats

QUEUE = MessageQueue("orders", "broker-a", 3)
AT_QUEUE = {"topic": "orders", "queueId": "3", "bname": "broker-a"}
WHO = BrokerIdentity("C", "broker-a", 0, "10.0.0.1:10911", "10.0.0.1:10912")
TOPICS = {"orders": TopicConfig("orders")}
SINGLE = Outgoing("orders", b"body", sys_flag=1, flag=7, properties="KEYS\x01k")
SENT = {
    "a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "3", "f": "1", "g": "1700", "h": "7", "i": "KEYS\x01k",
    "j": "0", "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip
BACK = GiveBack(
    group="g", broker="broker-a", topic="orders", message_id="AB", log_offset=77, delay_level=-1, max_reconsume_times=16
)
GIVEN_BACK = {
    "offset": "77", "group": "g", "delayLevel": "-1", "originMsgId": "AB", "originTopic": "orders", "unitMode": "false",
    "maxReconsumeTimes": "16", "bname": "broker-a",
}  # fmt: skip
PULL = Pull(group="g", queue=QUEUE, offset=100, count=32)
PULLED = {
    "consumerGroup": "g", "topic": "orders", "queueId": "3", "queueOffset": "100", "maxMsgNums": "32", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    "bname": "broker-a",
}  # fmt: skip
BEAT = Heartbeat("me@1", (ConsumerView("g", {"orders": subscribe("orders")}),), ("p",))

REQUESTS = [
    (GetRoute("orders"), 105, {"topic": "orders", "acceptStandardJsonOnly": "true"}),
    (GetCluster(), 106, {}),
    (ListTopics(), 206, {}),
    (ListSystemTopics(), 304, {}),
    (DeleteTopicRoute("orders"), 216, {"topic": "orders"}),
    (GetMinOffset(QUEUE), 31, AT_QUEUE),
    (GetMaxOffset(QUEUE), 30, AT_QUEUE),
    (GetPosition("g", QUEUE), 14, {"consumerGroup": "g", **AT_QUEUE}),
    (SetPosition("g", QUEUE, 42), 15, {"consumerGroup": "g", "commitOffset": "42", **AT_QUEUE}),
    (PULL, 11, PULLED),
    (
        structs.replace(
            PULL, subscription=subscribe("orders", "a || b", 5), inline=False, hold=True, commit_offset=90, bytes_max=9
        ),
        11,
        {
            **{name: value for name, value in PULLED.items() if name != "subscription"},
            "sysFlag": "3",
            "commitOffset": "90",
            "suspendTimeoutMillis": "15000",
            "subVersion": "5",
            "maxMsgBytes": "9",
        },
    ),
    (Send("g", SINGLE, QUEUE, 1700), 310, SENT),
    (Send("g", structs.replace(SINGLE, batch=True), QUEUE, 1700), 320, {**SENT, "m": "true"}),
    (Send("g", structs.replace(SINGLE, reconsume_times=1, max_reconsume_times=17), QUEUE, 1700), 310,
     {**SENT, "j": "1", "l": "17"}),
    (BACK, 36, GIVEN_BACK),
    (structs.replace(BACK, repeated=True), 36, {**GIVEN_BACK, "metaqRepeated": "true"}),
    (SendHeartbeat(BEAT), 34, {}),
    (LeaveGroup("me@1", consumer_group="g"), 35, {"clientID": "me@1", "consumerGroup": "g"}),
    (LeaveGroup("me@1", producer_group="p"), 35, {"clientID": "me@1", "producerGroup": "p"}),
    (ListMembers("g"), 38, {"consumerGroup": "g"}),
    (GetConnections("g"), 203, {"consumerGroup": "g"}),
    (GetProducers("p"), 204, {"producerGroup": "p"}),
    (GetConsumeStats("g"), 208, {"consumerGroup": "g"}),
    (CreateTopic("orders", 8, 6), 17,
     {"topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6",
      "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}),
    (DeleteTopic("orders"), 215, {"topic": "orders"}),
    (GetTopicStats("orders"), 202, {"topic": "orders"}),
    (GetRuntime(), 28, {}),
    (GetTable(TOPICS_TABLE), 21, {}),
    (GetTable(GROUPS), 201, {}),
    (GetTable(GROUP_OFFSETS), 43, {}),
    (GetTable(DELAY_OFFSETS), 45, {}),
    (FollowTables(9, 4, 5000), 30014, {"feed": "9", "position": "4", "suspendTimeoutMillis": "5000"}),
    (UnregisterBroker(WHO), 104,
     {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}),
]  # fmt: skip


@pytest.mark.parametrize(("call", "code", "ext"), REQUESTS, ids=lambda value: type(value).__name__)
def test_request_is_what_rocketmq_reads(call: Call, code: int, ext: dict[str, str]):
    command = call.request()
    assert (command.code, command.ext, command.flag) == (code, ext, 0)


@pytest.mark.parametrize(("call", "_code", "_ext"), REQUESTS, ids=lambda value: type(value).__name__)
def test_refusal_names_the_peer_and_what_was_asked(call: Call, _code: int, _ext: dict[str, str]):
    answer = reply(call.request(), ResponseCode.NO_PERMISSION, remark="not you")
    with pytest.raises(BrokerError) as raised:
        call.outcome(answer, "10.0.0.9:10911")
    assert str(raised.value) == f"code 16 from 10.0.0.9:10911 to {call.action}: not you"


def answered(call: Call, code: int = 0, ext: dict[str, str] | None = None, body: bytes = b"") -> object:
    return call.outcome(reply(call.request(), code, ext, body=body), "h:1")


def test_bodies_of_requests():
    """A heartbeat, a batch, a registration with the checksum of its bytes as sent."""
    assert bodies.heartbeat_of(SendHeartbeat(BEAT).request().body) == BEAT
    assert Send("g", SINGLE, QUEUE, 1700).request().body == b"body"
    command = RegisterBroker(WHO, DataVersion(1, 2), TOPICS).request()
    assert command.code == 103
    assert bodies.registration_of(command.body, compressed=False, bare=False) == (DataVersion(1, 2), TOPICS)
    assert command.ext == {
        "brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0",
        "haServerAddr": "10.0.0.1:10912", "compressed": "false", "bodyCrc32": str(crc31(command.body)),
    }  # fmt: skip


def test_what_a_registration_is_answered():
    """The addresses are for slaves; a master's answer has neither."""
    call = RegisterBroker(WHO, DataVersion(1, 2), TOPICS)
    told = {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
    assert answered(call, ext=told) == Registered("10.0.0.1:10911", "10.0.0.1:10912")
    assert answered(call, body=bodies.kv_table({"T": "a:4"})) == Registered(order={"T": "a:4"})


def test_a_masters_tables_are_read_as_its_own_files_are():
    """What a server of ours answers to a slave."""
    version = DataVersion(5, 6)
    groups, offsets = {"g": GroupConfig("g")}, {("orders", "g"): {0: 7}}
    body = answered(GetTable(TOPICS_TABLE), body=finish(bodies.topic_table(list(TOPICS.items()), version)))
    assert finish(bodies.topic_table_of(body)) == (version, TOPICS)
    assert bodies.group_table_of(finish(bodies.group_table(list(groups.items()), version))) == (version, groups)
    assert bodies.group_offsets_of(finish(bodies.group_offsets(list(offsets.items())))) == offsets
    assert bodies.delay_offsets_of(bodies.delay_offsets({1: 4})) == {1: 4}


def test_what_is_not_there_is_none_and_no_error():
    """A topic without a route, a group without progress, a group that nobody is in."""
    assert answered(GetRoute("orders"), ResponseCode.TOPIC_NOT_EXIST) is None
    assert answered(GetPosition("g", QUEUE), ResponseCode.QUERY_NOT_FOUND) is None
    assert answered(GetPosition("g", QUEUE), ext={"offset": "-1"}) is None
    assert answered(GetConnections("g"), ResponseCode.CONSUMER_NOT_ONLINE) is None
    assert answered(ListMembers("g"), ResponseCode.SYSTEM_ERROR) == []
    assert answered(GetProducers("p"), ResponseCode.SYSTEM_ERROR) == []


def test_outcomes_of_lookups():
    route = Route("orders", (QueueData("a", 2, 2, 6),), (BrokerData("c", "a", {0: "h:1"}),))
    cluster = ClusterInfo({"a": route.brokers[0]}, {"c": ("a",)})
    assert answered(GetRoute("orders"), body=bodies.route(route)) == route
    assert answered(GetCluster(), body=bodies.cluster_info(cluster)) == cluster
    assert answered(ListTopics(), body=bodies.topic_list(["b", "a"])) == ["b", "a"]
    for call in (GetMinOffset(QUEUE), GetMaxOffset(QUEUE), GetPosition("g", QUEUE)):
        assert answered(call, ext={"offset": "12345678901"}) == 12345678901
    assert answered(SetPosition("g", QUEUE, 5)) is None
    assert answered(GetRuntime(), body=bodies.kv_table({"putTps": "1 2 3"})) == {"putTps": "1 2 3"}
    assert answered(GetTopicStats("orders"), body=finish(bodies.topic_stats([(QUEUE, QueueStats(1, 2, 3))]))) == {
        QUEUE: QueueStats(1, 2, 3)
    }


def test_outcomes_of_groups():
    """Members come sorted: every member shares the queues out by the same list."""
    assert answered(ListMembers("g"), body=bodies.consumer_ids(["b", "a"])) == ["a", "b"]
    stats = {QUEUE: ConsumeStats(10, 4, 99)}
    assert answered(GetConsumeStats("g"), body=finish(bodies.consume_stats(stats.items(), 2.5))) == (stats, 2.5)
    one = ClientConnection("me@1", "10.0.0.2:5", "JAVA", 409)
    members, view = answered(GetConnections("g"), body=bodies.consumer_connections(BEAT.consumers[0], [one]))
    assert members == [one]
    assert answered(GetProducers("p"), body=bodies.producer_connections([one])) == [one]
    assert view.subscriptions == BEAT.consumers[0].subscriptions
    assert answered(SendHeartbeat(BEAT)) == 0, "a RocketMQ"
    assert answered(SendHeartbeat(BEAT), ext={"METAQ": "2"}) == 2


@pytest.mark.parametrize("status", SendStatus)
def test_a_send_is_stored_also_with_a_promise_missed(status):
    """10, 11 and 12 are answers of sends that are in the log; the broker may have chosen the queue."""
    ext = {"msgId": "A,B", "queueId": "5", "queueOffset": "1000"}
    stored = answered(Send("g", SINGLE, QUEUE, 1), status.value, ext)
    assert stored == Stored(QUEUE._replace(queue_id=5), 1000, status, "A,B")


def test_a_pull_has_four_kinds_of_outcome():
    ext = {"suggestWhichBrokerId": "1", "nextBeginOffset": "7", "minOffset": "2", "maxOffset": "9"}
    for code, status in (
        (0, PullStatus.FOUND),
        (19, PullStatus.NOTHING_NEW),
        (20, PullStatus.NOTHING_MATCHED),
        (21, PullStatus.OUT_OF_RANGE),
    ):
        records = b"records" if status is PullStatus.FOUND else b""
        assert answered(PULL, code, ext, b"records") == PullResult(status, records, 7, 2, 9, 1)


def test_records_of_a_pull_are_not_copied():
    """The blocking link hands in a view of what it received."""
    view = memoryview(bytearray(b"records"))
    header = {"nextBeginOffset": "7", "minOffset": "2", "maxOffset": "9"}
    assert PULL.outcome(Command(0, flag=1, ext=header, body=view)).records is view


def test_an_answer_that_lacks_a_field_cannot_be_read():
    with pytest.raises(BadRequest, match="nextBeginOffset"):
        answered(PULL)
    with pytest.raises(BadRequest, match="offset"):
        answered(GetMaxOffset(QUEUE))


FIELDS = [
    *sorted({name for _, _, ext in REQUESTS for name in ext}),
    "offset", "nextBeginOffset", "minOffset", "maxOffset", "msgId", "queueOffset", "METAQ",
]  # fmt: skip


@given(
    st.sampled_from([call for call, _, _ in REQUESTS]),
    st.sampled_from([0, 0, 0, 1, 10, 17, 19, 20, 21, 22, 206, -5]),
    st.dictionaries(st.sampled_from(FIELDS), st.one_of(st.text(max_size=25), st.integers().map(str)), max_size=8),
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.one_of(st.none(), st.integers(), st.text(max_size=5)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.dictionaries(
                    st.sampled_from(["brokerDatas", "queueDatas", "topicList", "table", "offsetTable", "brokerAddrs"]),
                    inner,
                    max_size=3,
                ),
            ),
        ).map(lambda tree: json.dumps(tree).encode()),
    ),
)
@settings(max_examples=repeats(500), deadline=None)
def test_whatever_a_peer_answers_is_an_outcome_or_an_error_that_callers_know(call, code, ext, body):
    try:
        call.outcome(reply(call.request(), code, ext, remark="x", body=body), "h:1")
    except FAULTS as error:
        judge(error, Purpose.LOOK_UP)


def test_members_are_asked_of_the_next_broker_when_one_cannot_tell():
    """None can: the last reason is told."""
    asking = members_of("g", ["h:1", "h:2", "h:3"])
    assert next(asking).address == "h:1"
    assert asking.throw(ConnectionFailed("down")).address == "h:2"
    assert asking.throw(BrokerError(14, "starting")).address == "h:3"
    with pytest.raises(StopIteration) as end:
        asking.send(["a"])
    assert end.value.value == ["a"]
    with pytest.raises(NoRoute):
        next(members_of("g", []))


def test_notices_of_brokers_are_read():
    """40 and 220; anything else is answered that it is not supported."""
    assert notice_of(Command(40, ext={"consumerGroup": "g"})) == MembersChanged("g")
    moved = Command(220, ext={"group": "g", "topic": "orders"}, body=bodies.queue_offsets({QUEUE: 4}))
    assert notice_of(moved) == OffsetsReset("g", {QUEUE: 4})
    other = Command(9999, opaque=5)
    assert notice_of(other) is None
    answer = not_supported(other)
    assert (answer.code, answer.opaque, answer.is_response) == (3, 5, True)
    assert "9999" in answer.remark


def test_an_unknown_topic_is_told_from_other_refusals():
    assert unknown_topic(BrokerError(17, "none"))
    assert not unknown_topic(BrokerError(16, "no"))
    assert not unknown_topic(NoRoute("none"))
