"""JSON bodies against the texts that real 4.9.8 peers sent, and round trips of every value."""

from __future__ import annotations

import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.in_pieces import finish
from metaq.model import (
    BrokerData,
    ClientConnection,
    ClusterInfo,
    ConsumeFrom,
    ConsumerView,
    ConsumeStats,
    DataVersion,
    GroupConfig,
    Heartbeat,
    MessageModel,
    MessageQueue,
    QueueData,
    QueueLocks,
    QueueStats,
    Route,
    TopicConfig,
)
from metaq.model.filters.subscription import subscribe
from metaq.model.inspection import ConsumedDirectly, ConsumeVerdict, MemberQueue, MemberRates, MemberState
from metaq.wire import bodies, fastjson
from metaq.wire.beans import Value
from metaq.wire.bodies import name_servers

JAVA_HEARTBEAT = b"""{"clientID":"10.0.0.1@12#123456","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",
"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":
false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA || TagB","subVersion":1795226548705,"tagsSet":["TagA"],
"topic":"TopicA"}],"unitMode":false}],"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}]}"""


def test_a_java_heartbeat_is_read():
    """The heartbeat of a 4.9.8 push consumer."""
    beat = bodies.heartbeat_of(JAVA_HEARTBEAT)
    assert beat.client_id == "10.0.0.1@12#123456"
    assert beat.producers == ("CLIENT_INNER_PRODUCER",)
    (consumer,) = beat.consumers
    assert (consumer.group, consumer.push, consumer.model) == ("CG", True, MessageModel.CLUSTERING)
    assert consumer.subscriptions["TopicA"].tag_hashes == {2598919}
    assert consumer.subscriptions["TopicA"].version == 1795226548705


def test_a_heartbeat_tells_for_how_long_a_member_is_to_be_kept():
    """An extension: whole seconds, rounded up; the part is only there if it is asked for."""
    for seconds, told in ((0.0, None), (0.5, 1), (60.0, 60)):
        body = bodies.heartbeat(Heartbeat("a@1", (ConsumerView("CG", keep_seconds=seconds),)))
        assert json.loads(body)["consumerDataSet"][0].get("metaqKeepSeconds") == told
        assert bodies.heartbeat_of(body).consumers[0].keep_seconds == (told or 0)


def test_a_node_heartbeat_without_expression_type_is_read():
    """A missing, null or empty expression type is TAG."""
    for spelling in ("", '"expressionType":null,', '"expressionType":"",'):
        text = f'{{"clientID":"n","consumerDataSet":[{{"groupName":"G","subscriptionDataSet":[{{{spelling}"topic":"T"}}]}}]}}'
        (consumer,) = bodies.heartbeat_of(text.encode()).consumers
        assert consumer.subscriptions["T"].expression_type == "TAG"
        assert consumer.subscriptions["T"].takes_all


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{}",
        b'{"clientID":"x","consumerDataSet":5}',
        b'{"clientID":"x","consumerDataSet":[{"subscriptionDataSet":[{"codeSet":["a"]}]}]}',
        b'{"clientID":"x","consumerDataSet":[{"subscriptionDataSet":[{"codeSet":[99999999999]}]}]}',
    ],
)
def test_a_wrong_heartbeat_is_refused(text):
    """A heartbeat of the wrong shape is a bad request, nothing worse."""
    with pytest.raises(BadRequest):
        bodies.heartbeat_of(text)


def test_heartbeats_round_trip():
    """What we send reads back, filters included."""
    data = ConsumerView(
        "G", {"T": subscribe("T", "a || b", 7)}, False, MessageModel.BROADCASTING, ConsumeFrom.TIMESTAMP
    )
    beat = Heartbeat("me", (data,), ("P",))
    assert bodies.heartbeat_of(bodies.heartbeat(beat)) == beat


def test_routes_are_standard_json_that_go_can_cut():
    """Quoted keys, no blanks; and they read back. The older spelling of topicSysFlag is read too."""
    broker = BrokerData("C", "broker-a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})
    route = Route("T", (QueueData("broker-a", 4, 4, 6),), (broker,), "broker-a:4")
    body = bodies.route(route)
    assert b" " not in body
    assert json.loads(body)["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}
    assert bodies.route_of("T", body) == route
    java = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"h:1"},"brokerName":"b","cluster":"C"}],"queueDatas":[{"brokerName":"b",'
        b'"perm":6,"readQueueNums":4,"topicSynFlag":1,"writeQueueNums":4}]}'
    )
    assert bodies.route_of("T", java).queues[0].sys_flag == 1
    with pytest.raises(BadRequest, match=r"brokerAddrs \(a key\) is .x., need a whole number"):
        bodies.route_of("T", b'{"brokerDatas":[{"brokerAddrs":{"x":"h:1"}}]}')


def test_cluster_info_is_upstream_identical():
    """106 has bare integer keys, as observed."""
    info = ClusterInfo(
        {"broker-a": BrokerData("DefaultCluster", "broker-a", {0: "10.0.0.1:10911"})}, {"DefaultCluster": ("broker-a",)}
    )
    text = (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a","cluster":'
        b'"DefaultCluster"}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
    )
    assert bodies.cluster_info(info) == text
    assert bodies.cluster_info_of(text) == info


def test_registrations_round_trip_wrapped_and_bare():
    """103 in both shapes; an empty body is an empty table."""
    topics = {"T": TopicConfig("T", 4, 2, 6, 3), "U": TopicConfig("U")}
    version = DataVersion(1795226546496, 3)
    body = bodies.registration(version, topics)
    assert bodies.registration_of(body, compressed=False, bare=False) == (version, topics)
    bare = fastjson.dumps(bodies.topic_table_tree(topics, version))
    assert bodies.registration_of(bare, compressed=False, bare=True) == (version, topics)
    assert bodies.registration_of(b"", compressed=False, bare=False) == (DataVersion(), {})


def compressed(*pieces: bytes) -> bytes:
    return zlib.compress(b"".join(pieces), 9)


def sized(piece: bytes) -> bytes:
    return struct.pack(">i", len(piece)) + piece


def test_a_compressed_registration_is_read_and_bounded(monkeypatch):
    """The packed form loses flag and order; a bomb and a lying count are refused."""
    version = sized(b'{"counter":1,"timestamp":2}')
    good = compressed(version, struct.pack(">i", 1), sized(b"T 4 8 6 SINGLE_TAG"), sized(b"[]"))
    expected = (DataVersion(2, 1), {"T": TopicConfig("T", 4, 8, 6)})
    assert bodies.registration_of(good, compressed=True, bare=False) == expected
    for bad in (
        b"no zlib",
        compressed(version, struct.pack(">i", 2), sized(b"T 4 8 6 X")),
        compressed(struct.pack(">i", -5)),
    ):
        with pytest.raises(BadRequest, match=r"broken|cannot be expanded"):
            bodies.registration_of(bad, compressed=True, bare=False)
    monkeypatch.setattr(name_servers, "REGISTRATION_BYTES_MAX", 1000)
    with pytest.raises(BadRequest, match="expand to more than"):
        bodies.registration_of(compressed(bytes(100_000)), compressed=True, bare=False)


def test_tables_by_queue_are_written_with_object_keys_and_read_in_both_forms():
    """202, 208 and 220 towards Java have objects as keys; arrays of pairs are read too."""
    queue = MessageQueue("T", "b", 3)
    stats = {queue: QueueStats(1, 9, 5)}
    body = finish(bodies.topic_stats(stats.items()))
    assert body.startswith(b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:{')
    assert bodies.topic_stats_of(body) == stats
    consumed = {queue: ConsumeStats(9, 4, 77)}
    assert bodies.consume_stats_of(finish(bodies.consume_stats(consumed.items(), 1.5))) == (consumed, 1.5)
    assert bodies.queue_offsets_of(bodies.queue_offsets({queue: 12})) == {queue: 12}
    pairs = b'{"offsetTable":[[{"brokerName":"b","queueId":3,"topic":"T"},12]]}'
    assert bodies.queue_offsets_of(pairs) == {queue: 12}


LOCK_REQUEST = (
    b'{"clientId":"10.0.0.1@12#123456","consumerGroup":"CG",'
    b'"mqSet":[{"brokerName":"broker-a","queueId":3,"topic":"TopicA"},{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}]}'
)
LOCK_ANSWER = b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}]}'


def test_locks_are_written_as_java_writes_them():
    """41, 42 and the answer to 41, to the byte; a set has each queue once."""
    three, none = MessageQueue("TopicA", "broker-a", 3), MessageQueue("TopicA", "broker-a", 0)
    asked = QueueLocks("CG", "10.0.0.1@12#123456", (three, none))
    assert bodies.queue_locks(asked) == LOCK_REQUEST
    assert bodies.queue_locks_of(LOCK_REQUEST) == asked
    assert bodies.locked_queues([three]) == LOCK_ANSWER
    assert bodies.locked_queues_of(LOCK_ANSWER) == [three]
    assert bodies.locked_queues_of(b'{"lockOKMQSet":[]}') == bodies.locked_queues_of(b"{}") == []
    twice = LOCK_ANSWER.replace(b"}]", b'},{"topic":"TopicA","queueId":"3","brokerName":"broker-a"}]')
    assert bodies.locked_queues_of(twice) == [three]


NAMES = st.text(max_size=30)
QUEUES = st.lists(st.builds(MessageQueue, NAMES, NAMES, st.integers(-(2**31), 2**31 - 1)), unique=True, max_size=8)


@given(group=NAMES, client_id=NAMES, queues=QUEUES)
def test_locks_round_trip(group, client_id, queues):
    """Whatever the names are."""
    asked = QueueLocks(group, client_id, tuple(queues))
    assert bodies.queue_locks_of(bodies.queue_locks(asked)) == asked
    assert bodies.locked_queues_of(bodies.locked_queues(queues)) == queues


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"mqSet":5}', b'{"mqSet":[5]}', b'{"mqSet":[{"queueId":"x"}]}', b'{"clientId":"\xff"}']
)
def test_a_broken_list_of_queues_is_refused(body):
    """It names body and field."""
    with pytest.raises(BadRequest, match="the list of queues"):
        bodies.queue_locks_of(body)


def test_groups_topics_offsets_and_connections_round_trip():
    """The trees that are bodies and files at once."""
    groups = {"G": GroupConfig("G", retry_max=3, consume_enable=False)}
    assert bodies.group_table_of_tree(Value(bodies.group_table_tree(groups, DataVersion(1, 2)), "table")) == (
        DataVersion(1, 2),
        groups,
    )
    offsets = {("T", "G"): {0: 1, 7: 9}}
    keyed = bodies.group_offsets_of_tree(Value(bodies.group_offsets_tree(offsets), "table"))
    assert bodies.topics_and_groups({**keyed, "none": {}}) == offsets
    assert bodies.delay_offsets_of_tree(Value(bodies.delay_offsets_tree({1: 100}), "table")) == {1: 100}
    with pytest.raises(BadRequest):
        bodies.group_offsets_of_tree(Value({"offsetTable": {"T@G": {"x": 1}}}, "table"))
    connection = ClientConnection("me", "10.0.0.1:5", "JAVA", 409)
    consumer = ConsumerView("", {"T": subscribe("T", "a", 1)})
    assert bodies.connections_of(bodies.consumer_connections(consumer, [connection])) == ([connection], consumer)
    assert bodies.consumer_ids_of(bodies.consumer_ids(["a", "b"])) == ["a", "b"]
    assert bodies.kv_table_of(bodies.kv_table({"a": "b"})) == {"a": "b"}
    assert bodies.topic_list_of(bodies.topic_list(["T"], "h:1")) == ["T"]


def test_offsets_for_a_cpp_client_are_a_list():
    """It cannot read objects as keys (220, 222)."""
    queue = MessageQueue("T", "b", 2)
    text = bodies.queue_offset_list({queue: 7})
    assert json.loads(text) == {"offsetTable": [{"brokerName": "b", "offset": 7, "queueId": 2, "topic": "T"}]}


JAVA_STATE = (
    b'{"jstack":"main TID: 1\\n","mqTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:{"cachedMsgCount":2,"cachedMsgMaxOffset":8,'
    b'"cachedMsgMinOffset":7,"cachedMsgSizeInMiB":1,"commitOffset":7,"droped":false,"lastConsumeTimestamp":1795226548705,'
    b'"lastLockTimestamp":1795226548701,"lastPullTimestamp":1795226548702,"locked":true,"transactionMsgCount":1,'
    b'"transactionMsgMaxOffset":7,"transactionMsgMinOffset":7,"tryUnlockTimes":0}},"properties":{"PROP_CLIENT_VERSION":"V4_9_8",'
    b'"PROP_CONSUMEORDERLY":"true","pullBatchSize":"32"},"statusTable":{"T":{"consumeFailedMsgs":3,"consumeFailedTPS":0.5,'
    b'"consumeOKTPS":2.0,"consumeRT":1.5,"pullRT":12.25,"pullTPS":2.5}},"subscriptionSet":[{"classFilterMode":false,"codeSet":[],'
    b'"expressionType":"TAG","subString":"*","subVersion":1795226548705,"tagsSet":[],"topic":"T"}]}'
)
"""In the form of a 4.9.8 push consumer's."""


def test_a_java_consumers_state_is_read_and_written_as_it_is():
    state = bodies.member_state_of(JAVA_STATE)
    queue = state.queues[MessageQueue("T", "broker-a", 1)]
    assert (queue.position, queue.cached, queue.cached_first, queue.cached_last, queue.locked) == (7, 2, 7, 8, True)
    assert state.rates["T"].pull_ms == 12.25
    assert state.properties["pullBatchSize"] == "32"
    assert state.subscriptions[0].topic == "T"
    assert bodies.member_state(state) == JAVA_STATE


@pytest.mark.parametrize("body", [b"[]", b'{"mqTable":{"T":{}}}', b'{"mqTable":[[1]]}', b'{"statusTable":7}', b"\xff"])
def test_a_broken_state_is_refused(body):
    with pytest.raises(BadRequest):
        bodies.member_state_of(body)


COUNTS = st.integers(0, 2**31 - 1)
MS = st.integers(0, 2**53)
RATES = st.floats(0, 1e9, allow_nan=False)


@given(
    properties=st.dictionaries(NAMES, NAMES, max_size=4),
    stacks=st.none() | NAMES,
    queues=st.dictionaries(
        st.builds(MessageQueue, NAMES, NAMES, st.integers(-(2**31), 2**31 - 1)),
        st.builds(
            MemberQueue, position=MS, cached=COUNTS, cached_first=MS, cached_last=MS, cached_mib=COUNTS, locked=st.booleans(),
            unlock_tries=COUNTS, locked_ms=MS, dropped=st.booleans(), pulled_ms=MS, consumed_ms=MS, in_hand=COUNTS,
            in_hand_first=MS, in_hand_last=MS,
        ),
        max_size=4,
    ),
    rates=st.dictionaries(
        NAMES,
        st.builds(MemberRates, pull_ms=RATES, pulled=RATES, consume_ms=RATES, consumed=RATES, failed=RATES, failed_messages=MS),
        max_size=4,
    ),
)  # fmt: skip
def test_states_round_trip(properties, stacks, queues, rates):
    state = MemberState(
        properties=properties, subscriptions=(subscribe("T", "a || b", 5),), queues=queues, rates=rates, stacks=stacks
    )
    assert bodies.member_state_of(bodies.member_state(state)) == state


def test_a_java_consumers_outcome_is_read():
    """Of a message that it was told to consume."""
    found = bodies.consumed_directly_of(
        b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}'
    )
    assert found == ConsumedDirectly(verdict=ConsumeVerdict.SUCCESS, spent_ms=3)
    assert bodies.consumed_directly_of(b'{"consumeResult":4}').verdict is ConsumeVerdict.EXCEPTION
    assert bodies.consumed_directly_of(b'{"consumeResult":"CR_NEVER"}').verdict is None
    with pytest.raises(BadRequest):
        bodies.consumed_directly_of(b'{"spentTimeMills":"long"}')


@given(
    st.builds(
        ConsumedDirectly, verdict=st.none() | st.sampled_from(ConsumeVerdict), remark=st.none() | NAMES, spent_ms=MS, order=st.booleans(),
        auto_commit=st.booleans(),
    )
)  # fmt: skip
def test_outcomes_round_trip(outcome):
    assert bodies.consumed_directly_of(bodies.consumed_directly(outcome)) == outcome
