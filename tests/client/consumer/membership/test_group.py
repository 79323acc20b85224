"""What a group member does when its brokers misbehave, against a scripted cluster."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from metaq import Consumer
from metaq.client.consumer.delivery.handover import Handover
from metaq.client.consumer.membership.group import GroupMember
from metaq.client.consumer.membership.offset_store import BrokerOffsets
from metaq.client.consumer.membership.rebalance import average
from metaq.client.consumer.options import GroupOptions, GroupSeconds
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.identity.options import ClientOptions
from metaq.client.shared import cores
from metaq.client.shared.core import ClientCore
from metaq.clock import FakeClock
from metaq.model import ConsumeFrom, MessageModel, MessageQueue
from metaq.model import properties as props
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, encode, reply, request
from tests.client.cluster import FakeCluster, refuse
from tests.support import PATIENCE, eventually

GROUP = "mailers"
RETRY = f"%RETRY%{GROUP}"


@pytest.fixture
def cluster():
    with FakeCluster() as running:
        running.topics = {"orders": 1}
        yield running


def consumer_of(cluster: FakeCluster, **options: object) -> Consumer:
    return Consumer(cluster.namesrv, group=GROUP, topics="orders", start="first", **options)


@contextlib.contextmanager
def impatient(cluster: FakeCluster, queue_messages_max: int = 1000, **seconds: float) -> Iterator[Impatient]:
    """A group's member without the consumer around it: it waits less long than one that users make."""
    options = GroupOptions(
        model=MessageModel.CLUSTERING, consume_from=ConsumeFrom.FIRST, start_ms=0, strategy=average, pull_count=32,
        pull_bytes=1 << 20, queue_messages_max=queue_messages_max, queue_bytes_max=1 << 20, span_max=2000,
        max_reconsume_times=16, on_skip=None, seconds=GroupSeconds(**seconds),
    )  # fmt: skip
    client = ClientOptions(instance_name="impatient")
    core, handover = cores.acquire(cluster.namesrv, client), Handover()
    member = GroupMember(core, GROUP, {"orders": "*"}, options, BrokerOffsets(core, GROUP), handover)
    cores.claim(core, member, client)
    core.thread.post(member.start)
    try:
        yield Impatient(core, member, handover)
    finally:
        handover.close()
        core.thread.run(member.stop(), PATIENCE)
        core.thread.run(cores.release(core, client), PATIENCE)


class Impatient(NamedTuple):
    core: ClientCore
    member: GroupMember
    handover: Handover

    def receive(self) -> list[ReceivedMessage]:
        """The messages of the next chunk."""
        chunk = self.handover.take(PATIENCE)
        assert chunk is not None
        return list(chunk.messages)

    def commit(self) -> None:
        self.core.thread.run(self.member.persist(), PATIENCE)


def bodies_of(consumer: Consumer, count: int) -> list[bytes]:
    got = []
    for _ in range(count):
        message = consumer.receive(PATIENCE)
        assert message is not None
        message.ack()
        got.append(message.body)
    return got


def test_deleted_messages_are_counted_and_told(cluster, caplog):
    """The stored offset left the log: the group goes on at its start, and says how many messages are gone."""
    cluster.store(*(b"%d" % number for number in range(100)))
    cluster.committed["orders", 0] = 10
    cluster.min_offsets["orders", 0] = 90
    skipped: list[tuple[MessageQueue, range]] = []
    with consumer_of(cluster, on_skip=lambda queue, gone: skipped.append((queue, gone))) as consumer:
        assert bodies_of(consumer, 10) == [b"%d" % number for number in range(90, 100)]
    assert skipped == [(MessageQueue("orders", "broker-a", 0), range(10, 90))]
    assert "80 messages of orders@broker-a:0 were deleted before group mailers consumed them" in caplog.text


def test_offset_beyond_the_end_goes_back_to_it(cluster, caplog):
    """A topic that was made anew: the old, larger offset is given up with a warning."""
    cluster.store(b"0", b"1")
    cluster.committed["orders", 0] = 1000
    with consumer_of(cluster) as consumer:
        eventually(lambda: "wanted 1000" in caplog.text)
        cluster.store(b"2")
        assert bodies_of(consumer, 1) == [b"2"]


def test_failed_message_is_given_back_by_its_log_offset(cluster):
    """36 names the record; the message is finished only when the broker has taken it."""
    cluster.store(b"bad", b"good")
    with consumer_of(cluster, max_reconsume_times=5) as consumer:
        first, second = consumer.receive(PATIENCE), consumer.receive(PATIENCE)
        second.ack()
        first.retry(delay_level=4)
        command = eventually(
            lambda: next((c for c in cluster.seen if c.code == RequestCode.CONSUMER_SEND_MSG_BACK), None)
        )
        header = headers.SendBackHeader.from_ext(command.ext)
        assert (header.offset, header.group, header.delay_level, header.max_reconsume_times) == (0, GROUP, 4, 5)
        first.ack()  # What is said later changes nothing.
    assert cluster.committed["orders", 0] == 2


def test_broker_that_takes_nothing_back_gets_a_copy(cluster):
    """36 refused: a new message goes to the retry topic, with all that a retry needs."""
    cluster.topics[RETRY] = 1
    cluster.script[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse(ResponseCode.SYSTEM_ERROR)
    cluster.stored["orders", 0].append((7, b"bad", b"KEYS\x01k\x02UNIQ_KEY\x01" + b"A" * 32))
    with consumer_of(cluster) as consumer:
        consumer.receive(PATIENCE).retry()
        [(flag, body, text)] = eventually(lambda: cluster.stored[RETRY, 0])
        assert (flag, body) == (7, b"bad")
        pairs = props.parse(text.decode())
        assert pairs["RETRY_TOPIC"] == "orders"
        assert pairs["ORIGIN_MESSAGE_ID"] == "A" * 32
        assert pairs["DELAY"] == "3"
        assert pairs["KEYS"] == "k"
        [sent] = [command for command in cluster.seen if command.code == RequestCode.SEND_MESSAGE_V2]
        header = headers.SendHeader.from_ext(sent.ext)
        assert (header.reconsume_times, header.max_reconsume_times) == (1, 17), "as many tries as by 36"
    assert cluster.committed["orders", 0] == 1


@pytest.mark.parametrize("size", [32_300, 32_600, 32_767])
def test_a_copy_leaves_room_for_what_a_broker_adds(cluster, size):
    """RocketMQ's adds its cluster and, of a delayed copy, the destination: the message would come again here for ever."""
    cluster.topics[RETRY] = 1
    cluster.script[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse(ResponseCode.SYSTEM_ERROR)
    own, added = {"UNIQ_KEY": "A" * 32, "big": ""}, {"CLUSTER": "DefaultCluster"}
    own["big"] = "x" * (size - len(props.join(own | added)))
    cluster.stored["orders", 0].append((0, b"bad", props.join(own | added).encode()))
    with consumer_of(cluster) as consumer:
        consumer.receive(PATIENCE).retry()
        [(_, _, text)] = eventually(lambda: cluster.stored[RETRY, 0])
        pairs = props.parse(text.decode())
        assert {name: pairs[name] for name in own} == own
        assert ("DELAY" in pairs) == (size < 32_767)
        if "DELAY" in pairs:
            added |= {"REAL_TOPIC": RETRY, "REAL_QID": "2147483647"}
        assert len(props.join(pairs | added)) <= 32_767


def test_send_back_whose_answer_was_lost_is_repeated(cluster):
    """The broker may have taken the message: a new message to the retry topic would be a second retry. So it is asked
    again, and told that it is."""
    cluster.topics[RETRY] = 1
    cluster.store(b"bad")
    lost = iter([True, True])

    def die(_session, _command):
        if next(lost, False):
            cluster.drop_connections()
            return None
        return NotImplemented

    cluster.script[RequestCode.CONSUMER_SEND_MSG_BACK] = die
    with consumer_of(cluster) as consumer:
        consumer.receive(PATIENCE).retry()
        eventually(lambda: cluster.count(RequestCode.CONSUMER_SEND_MSG_BACK) == 3)
    asked = [command for command in cluster.seen if command.code == RequestCode.CONSUMER_SEND_MSG_BACK]
    assert [headers.SendBackHeader.from_ext(command.ext).repeated for command in asked] == [None, True, True]
    assert cluster.count(RequestCode.SEND_MESSAGE_V2) == 0
    assert cluster.committed["orders", 0] == 1


def test_send_back_that_is_never_answered_becomes_a_copy_in_the_end(cluster):
    """The broker is gone for good: another may take the message."""
    cluster.topics[RETRY] = 1
    cluster.store(b"bad")

    def die(_session, _command):
        cluster.drop_connections()

    cluster.script[RequestCode.CONSUMER_SEND_MSG_BACK] = die
    with impatient(cluster, give_back=0.2) as member:
        [message] = member.receive()
        message.retry()
        eventually(lambda: cluster.stored[RETRY, 0])
        assert cluster.count(RequestCode.CONSUMER_SEND_MSG_BACK) > 1


def test_message_that_no_broker_takes_comes_again_here(cluster):
    """Neither 36 nor a copy works: the message is handed out again, and stays unfinished until then."""
    cluster.script[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse(ResponseCode.SYSTEM_ERROR)
    cluster.store(b"bad")
    with impatient(cluster, again=0.05, copy=0.05) as member:
        [message] = member.receive()
        message.retry()
        [again] = member.receive()
        assert again.body == b"bad"
        assert again.reconsume_times == 1
        member.commit()
        assert cluster.committed.get(("orders", 0), 0) == 0
        again.ack()
    assert cluster.committed["orders", 0] == 1


@pytest.mark.parametrize("name", ["note", "UNIQ_KEY"])
def test_message_whose_copy_cannot_be_encoded_comes_again_here(cluster, caplog, name):
    """A handler left half a character in a property: neither the copy nor, if it is the id, the request to take the
    message back can be sent. It is handed out again, and the member goes on."""
    cluster.topics[RETRY] = 1
    cluster.script[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse(ResponseCode.SYSTEM_ERROR)
    cluster.store(b"bad")
    with impatient(cluster, again=0.05) as member:
        [message] = member.receive()
        message.properties[name] = "\ud800"
        message.retry()
        [again] = member.receive()
        assert again.body == b"bad"
        assert cluster.committed.get(("orders", 0), 0) == 0
        again.ack()
    assert "comes again here" in caplog.text
    assert "ended with an error" not in caplog.text
    assert cluster.count(RequestCode.SEND_MESSAGE_V2) == 0
    assert cluster.committed["orders", 0] == 1


def test_subscription_unknown_to_the_broker_is_sent_again(cluster):
    """24 and 25 mean that the broker missed our heartbeat: it gets another at once, and pulling goes on."""
    cluster.store(b"x")
    cluster.script[RequestCode.PULL_MESSAGE] = refuse(ResponseCode.SUBSCRIPTION_NOT_EXIST, times=2)
    with consumer_of(cluster) as consumer:
        assert bodies_of(consumer, 1) == [b"x"]
        assert cluster.count(RequestCode.HEART_BEAT) >= 3


def test_pulls_that_are_refused_for_want_of_a_heartbeat_share_one(cluster):
    """Eight queues are refused again and again while no time passes: no flood of heartbeats."""
    cluster.topics["orders"] = 8
    cluster.store(b"x")
    cluster.script[RequestCode.PULL_MESSAGE] = refuse(ResponseCode.SUBSCRIPTION_NOT_LATEST, times=40)
    with Consumer(
        cluster.namesrv, group=GROUP, topics="orders", start="first", instance_name="still", clock=FakeClock()
    ) as consumer:
        assert bodies_of(consumer, 1) == [b"x"]
        assert cluster.count(RequestCode.PULL_MESSAGE) > 40
        beats = cluster.count(RequestCode.HEART_BEAT)
        assert beats < 10, "for the connection, the start, the share, and one for all pulls"


def test_new_connection_begins_with_a_heartbeat(cluster):
    """Brokers know clients by their connection."""
    cluster.store(b"1")
    with consumer_of(cluster) as consumer:
        assert bodies_of(consumer, 1) == [b"1"]
        cluster.drop_connections()
        cluster.store(b"2")
        assert bodies_of(consumer, 1) == [b"2"]
    assert [session.first for session in cluster.to_broker] == [RequestCode.HEART_BEAT] * 2


def test_administrator_moves_the_group(cluster):
    """220: the queue begins again at the offset given; acks of what was in hand count no more."""
    cluster.store(*(b"%d" % number for number in range(10)))
    with consumer_of(cluster) as consumer:
        old = [consumer.receive(PATIENCE) for _ in range(10)]
        push = request(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            body=bodies.queue_offsets({MessageQueue("orders", "broker-a", 0): 4}),
        )
        push.ext = {"topic": "orders", "group": GROUP, "timestamp": "0", "isForce": "true"}
        cluster.push(push)
        assert bodies_of(consumer, 6) == [b"%d" % number for number in range(4, 10)]
        for message in old[:4]:
            message.ack()
    assert cluster.committed["orders", 0] == 10


def reset_to(offsets: dict[MessageQueue, int]) -> Command:
    push = request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, body=bodies.queue_offsets(offsets), oneway=True)
    push.ext = {"topic": "orders", "group": GROUP, "timestamp": "0", "isForce": "true"}
    return push


def members_changed() -> Command:
    push = request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, oneway=True)
    push.ext = {"consumerGroup": GROUP}
    return push


def test_group_that_is_moved_while_its_queues_are_given_up_goes_on_sharing(cluster, caplog):
    """The administrator's word comes while the member tells how far it came in the two queues that it gives up."""
    cluster.topics["orders"] = 4
    for queue_id in range(4):
        cluster.store(b"x", queue_id=queue_id)
    with consumer_of(cluster) as consumer:
        bodies_of(consumer, 4)
        given_up = consumer.queues[2:]

        def move(session, _command):
            if not set(consumer.queues) & set(given_up):
                del cluster.script[RequestCode.UPDATE_CONSUMER_OFFSET]
                session.peer.write(encode(reset_to(dict.fromkeys(given_up, 0))))
            return NotImplemented

        cluster.script[RequestCode.UPDATE_CONSUMER_OFFSET] = move
        cluster.members[GROUP].add("zzz@other")
        cluster.push(members_changed())
        eventually(lambda: len(consumer.queues) == 2)
        cluster.members[GROUP].discard("zzz@other")
        cluster.push(members_changed())
        eventually(lambda: len(consumer.queues) == 4)
    assert RequestCode.UPDATE_CONSUMER_OFFSET not in cluster.script, "it was moved in between"
    assert "ended with an error" not in caplog.text


def test_group_that_is_moved_twice_at_once_is_where_it_was_moved_last(cluster, caplog):
    """Two words of the administrator in one read event."""
    cluster.store(*(b"%d" % number for number in range(10)))
    queue = MessageQueue("orders", "broker-a", 0)
    with consumer_of(cluster) as consumer:
        bodies_of(consumer, 10)
        both = encode(reset_to({queue: 2})) + encode(reset_to({queue: 7}))
        cluster.push_bytes(both)
        assert bodies_of(consumer, 3) == [b"7", b"8", b"9"]
    assert cluster.committed["orders", 0] == 10
    assert "ended with an error" not in caplog.text


def test_change_of_members_rebalances_at_once(cluster):
    """40: the members are asked for again and the share is recomputed."""
    cluster.topics["orders"] = 4
    with consumer_of(cluster) as consumer:
        eventually(lambda: len(consumer.queues) == 4)
        cluster.members[GROUP].add("zzz@other")
        push = request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, oneway=True)
        push.ext = {"consumerGroup": GROUP}
        cluster.push(push)
        eventually(lambda: len(consumer.queues) == 2)


def test_member_that_is_not_listed_keeps_its_queues_and_says_hello(cluster):
    """A restarted broker has forgotten the group: that is no reason to give up what we have."""
    with consumer_of(cluster) as consumer:
        queues = eventually(lambda: [queue for queue in consumer.queues if queue.topic == "orders"])
        cluster.members[GROUP] = {"somebody@else"}
        beats = cluster.count(RequestCode.HEART_BEAT)
        push = request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, oneway=True)
        push.ext = {"consumerGroup": GROUP}
        cluster.push(push)
        eventually(lambda: cluster.count(RequestCode.HEART_BEAT) > beats)
        assert consumer.queues == queues


def test_broken_records_are_asked_for_again(cluster, caplog):
    """A damaged answer is logged and pulled again; nothing is skipped."""
    cluster.store(b"x")
    damaged = []

    def damage(session, command):
        if damaged:
            return NotImplemented
        damaged.append(command)
        said = headers.PullReplyHeader(next_offset=1, min_offset=0, max_offset=1)
        return reply(command, 0, said, body=b"not a record at all")

    cluster.script[RequestCode.PULL_MESSAGE] = damage
    with caplog.at_level(logging.ERROR, "metaq.client"), consumer_of(cluster) as consumer:
        assert bodies_of(consumer, 1) == [b"x"]
    assert "cannot be read" in caplog.text


def test_answers_that_cannot_be_read_end_no_member(cluster, caplog):
    """A route and a search for the start whose bytes are garbage: the log says so, and they are asked for again."""
    cluster.store(b"x")
    left = {RequestCode.GET_ROUTEINFO_BY_TOPIC: 4, RequestCode.PULL_MESSAGE: 2}

    def garble(_session, command):
        if not left[command.code]:
            return NotImplemented
        left[command.code] -= 1
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return reply(command, body=b"{no route")
        return reply(command, 0, headers.PullReplyHeader(next_offset=1, min_offset=0, max_offset=1), body=b"no record")

    cluster.script = dict.fromkeys(left, garble)
    with Consumer(cluster.namesrv, group=GROUP, topics="orders", start=0.0) as consumer:
        assert bodies_of(consumer, 1) == [b"x"]
    assert not any(left.values())
    assert "route of" in caplog.text


def test_leaving_unregisters_and_commits(cluster):
    """close() keeps the progress and says goodbye."""
    cluster.store(b"1", b"2")
    with consumer_of(cluster) as consumer:
        bodies_of(consumer, 2)
    assert cluster.committed["orders", 0] == 2
    [goodbye] = [command for command in cluster.seen if command.code == RequestCode.UNREGISTER_CLIENT]
    assert goodbye.ext["consumerGroup"] == GROUP


def test_foreign_broker_is_asked_in_plain_rocketmq(cluster):
    """Without our mark in its heartbeat answer a broker sees no field of ours and no more than 32 messages asked for."""
    cluster.store(b"x")
    with consumer_of(cluster) as consumer:
        bodies_of(consumer, 1)
    pulls = [command for command in cluster.seen if command.code == RequestCode.PULL_MESSAGE]
    assert all("maxMsgBytes" not in command.ext and int(command.ext["maxMsgNums"]) <= 32 for command in pulls)


def test_messages_taken_and_never_finished_are_noticed(cluster, caplog):
    """A queue that stays full is reported once, with the likely reason."""
    cluster.store(*(b"%d" % number for number in range(100)))
    with impatient(cluster, queue_messages_max=10, stall=0.1) as member:
        assert len(member.receive()) == 10
        eventually(lambda: "with message" in caplog.text)
    assert caplog.text.count("with message") == 1


def test_broker_that_keeps_no_queues_is_told_of_in_the_log(cluster, caplog):
    """A RocketMQ: static membership is asked for and cannot be had."""
    cluster.store(b"0")
    with consumer_of(cluster, keep_queues=30, instance_name="worker-1") as consumer:
        assert bodies_of(consumer, 1) == [b"0"]
        consumer._core.thread.post(consumer._member.rebalance_soon)
        eventually(lambda: "broker broker-a does not keep the queues of a member" in caplog.text)
    assert caplog.text.count("does not keep the queues") == 1


def test_retry_topic_that_comes_late_is_found_soon(cluster):
    """A new group's is made by its heartbeat, and routed after the first rebalances: not twenty seconds later."""
    cluster.topics["orders"] = 1
    with impatient(cluster, rebalance=PATIENCE, retry=0.05) as member:
        eventually(lambda: member.member.owned())
        eventually(lambda: cluster.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) > 5)
        cluster.topics[RETRY] = 1
        eventually(lambda: MessageQueue(RETRY, "broker-a", 0) in member.member.owned())


def test_members_are_asked_for_once_however_many_topics_there_are(cluster):
    """A broker's list is of the group, not of a topic."""
    topics = [f"t{number}" for number in range(50)]
    cluster.topics = dict.fromkeys(topics, 1)
    with Consumer(cluster.namesrv, group=GROUP, topics=topics, start="first") as consumer:
        eventually(lambda: len(consumer.queues) == 50)
        before = cluster.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        assert before <= 5
        consumer._core.thread.post(consumer._member.rebalance_soon)
        eventually(lambda: cluster.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP) > before)
        assert cluster.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP) <= before + 2
