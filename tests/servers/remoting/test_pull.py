"""Pulls at the server: the status table, filters, long polling, and what may differ from RocketMQ."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

import pytest

from metaq.broker.pulls.pull import PullOutcome, PullService
from metaq.broker.requests import COMMIT, FILTER, HOLD, PullRequest
from metaq.clock import FakeClock
from metaq.model import StoredMessage
from metaq.servers import pieces
from metaq.servers.remoting.messages import pull_of
from metaq.servers.remoting.session import CODE_OF, OLD_AT_ONCE, OLD_MAX, REMARK_OF
from metaq.store.reads.pull import ReadStatus
from metaq.testing import FaultyDisk
from metaq.wire import hot
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import LENGTH_BYTES, SerializeType, decode, encode, request
from metaq.wire.headers import PullReplyHeader, SendBackHeader, SendReplyHeader
from tests.servers.support import Client, open_server, pull_header, send_header, tick
from tests.support import PATIENCE


def messages(answer):
    body = answer.body
    return hot.decode_records(body, 0, len(body), StoredMessage, "broker-a", 0, 0)


def offsets(answer):
    header = PullReplyHeader.from_ext(answer.ext)
    return header.next_offset, header.min_offset, header.max_offset


@pytest.mark.parametrize("serialize", list(SerializeType))
def test_a_pull_returns_the_stored_records(server, serialize):
    """A pull gets the records from its offset on, as they lie in the log, in the form the request used."""
    client = Client(server, serialize)
    for n in range(5):
        client.send("orders", b"%d" % n)
    (answer,) = client.pull("orders", offset=1)
    assert (answer.code, answer.remark, answer.serialize) == (0, "FOUND", serialize)
    assert [message.body for message in messages(answer)] == [b"1", b"2", b"3", b"4"]
    assert offsets(answer) == (5, 0, 5)


def test_lite_pull_of_younger_clients_is_served(client):
    """5.x clients pull with code 361; RocketMQ 4.9 refuses it."""
    client.send("orders", b"x")
    (answer,) = client.tell(RequestCode.LITE_PULL_MESSAGE, pull_header("orders"))
    assert [message.body for message in messages(answer)] == [b"x"]


TABLE = [
    ("at the end", 3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
    ("beyond the end", 9, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
    ("far beyond", (1 << 63) - 1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
    ("before the start", -1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
]


@pytest.mark.parametrize(
    ("offset", "code", "status", "goes_on"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_offsets_out_of_range_are_told_where_to_go_on(client, offset, code, status, goes_on):
    """Every outcome carries the four offsets, and the next one is inside the queue."""
    for _ in range(3):
        client.send("orders")
    (answer,) = client.pull("orders", offset=offset)
    assert (answer.code, answer.remark) == (code, status)
    assert offsets(answer) == (goes_on, 0, 3)


@pytest.mark.parametrize(("offset", "code"), [(0, ResponseCode.PULL_NOT_FOUND), (5, ResponseCode.PULL_OFFSET_MOVED)])
def test_an_empty_queue_knows_offset_0_only(client, offset, code):
    """Of a queue without messages, 0 is not found and anything else has moved."""
    client.send("orders", queue_id=0)
    (answer,) = client.pull("orders", queue_id=1, offset=offset)
    assert (answer.code, offsets(answer)) == (code, (0, 0, 0))


REFUSALS = [
    ("an unknown topic", "nope", {}, ResponseCode.TOPIC_NOT_EXIST, "nope"),
    ("a path", "../x", {}, ResponseCode.SYSTEM_ERROR, "characters outside"),
    ("a negative queue", "orders", {"queue_id": -1}, ResponseCode.SYSTEM_ERROR, "queueId[-1] is illegal"),
    ("a queue beyond the count", "orders", {"queue_id": 4}, ResponseCode.SYSTEM_ERROR, "readQueueNums:[4]"),
    ("a group with a slash", "orders", {"group": "a/b"}, ResponseCode.SYSTEM_ERROR, "group name"),
    ("a topic of ours", "rmq_sys_METAQ_TXN", {}, ResponseCode.NO_PERMISSION, "broker itself"),
    ("a group that is offline", "orders", {"sys_flag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "group info not exist"),
    ("a filter of bars", "orders", {"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "no tag"),
    ("SQL", "orders", {"expression_type": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "line 1, column 1"),
    ("a filter of its own", "orders", {"expression_type": "MINE"}, ResponseCode.SYSTEM_ERROR, "by MINE"),
]


@pytest.mark.parametrize(
    ("topic", "more", "code", "text"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_a_refused_pull_says_why(client, topic, more, code, text):
    """Each check answers with its code and names the reason; the connection goes on."""
    client.send("orders")
    (answer,) = client.pull(topic, **more)
    assert (answer.code, text in answer.remark) == (code, True), answer.remark
    assert client.pull("orders")[0].code == 0


def test_a_group_may_be_forbidden_to_consume(server, client):
    """consumeEnable=false of a group is answered 16, at once after the change."""
    client.send("orders")
    assert client.pull("orders")[0].code == 0
    group = b'{"groupName":"G","consumeEnable":false}'
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group).code == 0
    assert client.pull("orders")[0].code == ResponseCode.NO_PERMISSION


def test_tags_are_filtered_at_the_broker(client):
    """Only records with a wanted tag are returned; none of them wanted is told with how far the broker looked."""
    for n in range(6):
        client.send("orders", b"%d" % n, tag="AB"[n % 2])
    (found,) = client.pull("orders", subscription="A || C")
    assert [message.body for message in messages(found)] == [b"0", b"2", b"4"]
    (none,) = client.pull("orders", subscription="nothing")
    assert (none.code, none.remark, offsets(none)[0]) == (20, "NO_MATCHED_MESSAGE", 6)


def test_the_heartbeats_filter_counts_when_the_request_brings_none(client):
    """A push consumer's pull is filtered by what its group's heartbeat said."""
    client.send("orders", b"a", tag="A")
    client.send("orders", b"b", tag="B")
    client.beat(topics={"orders": "B"})
    (answer,) = client.pull("orders", sys_flag=0, subscription=None, sub_version=1)
    assert [message.body for message in messages(answer)] == [b"b"]


def test_a_topic_that_the_group_does_not_subscribe_is_refused(client):
    """24 names the topic that the heartbeat did not."""
    client.send("orders")
    client.beat(topics={"other": "*"})
    (answer,) = client.pull("orders", sys_flag=0, subscription=None)
    assert (answer.code, "orders" in answer.remark) == (ResponseCode.SUBSCRIPTION_NOT_EXIST, True)


def test_a_newer_version_with_the_same_filter_is_served(client):
    """A version that differs only in time is no reason to refuse (25): 5.x clients race their own heartbeats."""
    client.send("orders", b"a", tag="A")
    client.beat(topics={"orders": "A"}, version=5)
    (same,) = client.pull("orders", sys_flag=0, subscription="A", sub_version=9)
    assert same.code == 0
    (changed,) = client.pull("orders", sys_flag=0, subscription="B", sub_version=9)
    assert changed.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_a_newer_version_of_unknown_filter_is_served_unfiltered(client):
    """If the request does not say what it wants, filtering by the old heartbeat could lose messages."""
    client.send("orders", b"a", tag="A")
    client.send("orders", b"b", tag="B")
    client.beat(topics={"orders": "A"}, version=5)
    (answer,) = client.pull("orders", sys_flag=0, subscription=None, sub_version=9)
    assert len(messages(answer)) == 2


def test_a_broadcasting_group_may_be_forbidden(client):
    """consumeBroadcastEnable=false refuses the pulls of a group that broadcasts."""
    from metaq.model import MessageModel

    client.send("orders")
    group = b'{"groupName":"G","consumeBroadcastEnable":false}'
    client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group)
    client.beat(topics={"orders": "*"}, model=MessageModel.BROADCASTING)
    assert client.pull("orders", sys_flag=0, subscription=None)[0].code == ResponseCode.NO_PERMISSION


def test_a_pull_can_carry_the_groups_offset(server, client):
    """Flag 1 stores commitOffset; without it the field is ignored."""
    client.send("orders")
    client.pull("orders", sys_flag=FILTER, commit_offset=7)
    assert server.broker.offsets.get("G", "orders", 0) is None
    client.pull("orders", sys_flag=FILTER | COMMIT, commit_offset=7)
    assert server.broker.offsets.get("G", "orders", 0) == 7


# -------------------------------------------------------------------- limits


def test_a_pull_returns_at_most_32_messages_and_256_kib(client):
    """RocketMQ's limits hold whatever a client asks for, but one message always fits."""
    for n in range(40):
        client.send("orders", b"x" * (300_000 if n == 39 else 10))
    (answer,) = client.pull("orders", max_messages=1000)
    assert len(messages(answer)) == 32
    (large,) = client.pull("orders", offset=39)
    assert len(messages(large)) == 1


def test_max_msg_bytes_lifts_the_limits(client):
    """Our clients get more in one pull, up to what they ask."""
    for _ in range(100):
        client.send("orders", b"x" * 1000)
    (answer,) = client.pull("orders", max_messages=1000, max_msg_bytes=1 << 20)
    assert len(messages(answer)) == 100
    (bounded,) = client.pull("orders", max_messages=1000, max_msg_bytes=20_000)
    assert 15 < len(messages(bounded)) < 20


@pytest.mark.parametrize("count", [0, -5])
def test_a_senseless_count_gets_one_message(client, count):
    """maxMsgNums below one is taken for one."""
    client.send("orders")
    client.send("orders")
    assert len(messages(client.pull("orders", max_messages=count)[0])) == 1


# -------------------------------------------------------------------- long polling


def held(client, topic="orders", offset=0, **more):
    facts = {"sys_flag": FILTER | HOLD, "suspend_ms": 15_000} | more
    return client.pull(topic, offset=offset, **facts)


def test_a_pull_at_the_tail_is_held_and_the_next_append_answers_it(server, client):
    """Long polling answers with the message that arrives, not before, and once."""
    client.send("orders")
    assert held(client, offset=1) == []
    assert len(server.broker.held_pulls) == 1
    other = Client(server)
    other.send("orders", b"news")
    (answer,) = client.received()
    assert [message.body for message in messages(answer)] == [b"news"]
    other.send("orders")
    assert client.received() == []


def test_a_pull_on_a_queue_that_does_not_exist_yet_is_woken_by_its_first_message(server, client):
    """The queue of a new topic is made by the first send; who waits for it gets that message, in either path."""
    client.send("orders", queue_id=0)
    assert held(client, queue_id=3) == []
    Client(server).send("orders", b"first", queue_id=3)
    assert [message.body for message in messages(client.received()[0])] == [b"first"]


def test_whoever_waits_for_dead_letters_gets_the_first_one_at_once(server, client):
    """Nothing that clients send opens a gate to that topic: its queue is made by the message itself."""
    sent = client.send("orders", b"poison")
    offset = int(SendReplyHeader.from_ext(sent.ext).message_id[16:], 16)
    client.beat("G", {"orders": "*"})
    server.broker.topics.ensure("%DLQ%G")
    assert held(client, "%DLQ%G") == []
    other = Client(server)
    other.ask(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(group="G", offset=offset, delay_level=-1))
    assert [message.body for message in messages(client.received()[0])] == [b"poison"]


def test_a_held_pull_is_woken_by_its_own_connection_too(server, client):
    """One connection may pull and send; the answer to the send comes first."""
    client.send("orders")
    held(client, offset=1)
    answers = client.tell(RequestCode.SEND_MESSAGE_V2, *_send())
    assert [answer.remark for answer in answers] == [None, "FOUND"]


def _send():
    return send_header("orders"), b"x"


def test_a_held_pull_ignores_messages_that_its_filter_refuses(server, client, clock):
    """A message with another tag leaves the pull waiting; at the deadline it hears how far the broker looked."""
    client.send("orders")
    held(client, offset=1, subscription="A")
    other = Client(server)
    other.send("orders", tag="B")
    other.send("orders", tag="B")
    assert client.received() == []
    assert len(server.broker.held_pulls) == 1
    clock.advance(15.1)
    tick(server)
    (answer,) = client.received()
    assert (answer.code, offsets(answer)) == (20, (3, 0, 3))
    held(client, offset=3, subscription="A")
    other.send("orders", b"match", tag="A")
    assert [message.body for message in messages(client.received()[0])] == [b"match"]


@pytest.mark.parametrize("refused", [3000, 20_000])
def test_a_flood_that_the_filter_refuses_hides_nothing(server, client, refused):
    """However many other messages come at once, the wanted one behind them is delivered, or the way to it told."""
    client.send("orders")
    held(client, offset=1, subscription="A")
    other = Client(server)
    frame = other.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders", tag="B"), b"x")
    last = other.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders", tag="A"), b"wanted")
    other.feed(frame * refused + last)
    (answer,) = client.received()
    while answer.code == 20:
        (answer,) = client.pull("orders", offset=offsets(answer)[0], subscription="A")
    assert [message.body for message in messages(answer)] == [b"wanted"]


def test_a_held_pull_is_answered_at_its_deadline(server, client, clock):
    """With nothing to tell, the answer comes when the asked time is over, not earlier."""
    client.send("orders")
    held(client, offset=1, suspend_ms=5_000)
    clock.advance(4.9)
    tick(server)
    assert client.received() == []
    clock.advance(0.2)
    tick(server)
    (answer,) = client.received()
    assert (answer.code, answer.remark, offsets(answer)) == (19, "OFFSET_OVERFLOW_ONE", (1, 0, 1))
    assert len(server.broker.held_pulls) == 0


def test_a_hold_of_centuries_is_cut(server, client, clock):
    """suspendTimeoutMillis of 2^63-1 is held for ten minutes at most."""
    client.send("orders")
    held(client, offset=1, suspend_ms=(1 << 63) - 1)
    clock.advance(601)
    tick(server)
    assert client.received()[0].code == 19


def test_without_the_flag_nothing_is_held(client):
    """A pull that may not be suspended is answered at once."""
    client.send("orders")
    assert client.pull("orders", offset=1, suspend_ms=15_000)[0].code == 19


def test_the_table_of_held_pulls_is_bounded(tmp_path, clock):
    """Above heldPullsMax a pull is answered at once instead of held."""
    with open_server(tmp_path, clock, held_pulls_max=2) as (broker, server):
        client = Client(server)
        client.send("orders")
        assert [len(held(client, offset=1)) for _ in range(4)] == [0, 0, 1, 1]
        assert len(broker.held_pulls) == 2


def test_a_closed_connection_is_forgotten(server, client):
    """Held pulls of a connection that is gone cost nothing and are never answered."""
    client.send("orders")
    other = Client(server)
    held(other, offset=1)
    other.leave()
    assert len(server.broker.held_pulls) == 0
    client.send("orders")  # the last growth of the queue that the table is told of
    assert not server.broker.store.reader.queue("orders", 0).tail.watched


def test_short_polling_when_long_polling_is_off(tmp_path, clock):
    """longPollingEnable=false holds for shortPollingTimeMills."""
    with open_server(tmp_path, clock, long_polling_enable=False) as (_, server):
        client = Client(server)
        client.send("orders")
        assert held(client, offset=1) == []
        clock.advance(1.1)
        tick(server)
        assert client.received()[0].code == 19


def test_many_held_pulls_of_one_queue_are_woken_together(server, client):
    """Every member that waits for a queue gets the message."""
    client.send("orders")
    waiting = [Client(server) for _ in range(20)]
    for one in waiting:
        held(one, offset=1)
    client.send("orders", b"for all")
    assert all(messages(one.received()[0])[0].body == b"for all" for one in waiting)


# -------------------------------------------------------------------- held pulls that are plain


def woken(root, clock, serialize, monkeypatch, *, plain):
    """What waiting clients get, byte by byte, and what is counted and kept: of their queue's tags, of several queues."""
    if not plain:
        monkeypatch.setattr(PullService, "answer_plain", lambda self: None)
    with open_server(root, clock) as (broker, server):
        sender = Client(server)
        for queue_id in range(2):
            sender.send("orders", queue_id=queue_id)
            sender.pull("orders", queue_id, group="GH"[queue_id])  # a new group makes all others be judged anew
        clients = [Client(server, serialize) for _ in range(3)]
        facts = ({"queue_id": 0}, {"queue_id": 0, "subscription": "A"}, {"queue_id": 1, "max_messages": 1})
        for client, more in zip(clients, facts, strict=True):
            assert held(client, offset=1, sys_flag=FILTER | HOLD | COMMIT, commit_offset=1, group="H", **more) == []
        assert held(clients[0], offset=1, queue_id=1) == []
        burst = b"".join(
            sender.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders", number % 2, tag="AB"[number // 2 % 2]), b"%d" % number)
            for number in range(6)
        )  # fmt: skip
        sender.feed(burst)
        sender.received()
        sender.send("orders", b"late", tag="A")
        written = [b"".join(client.peer.writes) for client in clients]
        stats = broker.stats
        figures = stats.get_hits, stats.get_misses, stats.got_messages, stats.got_bytes, len(broker.held_pulls)
        return (
            written,
            [len(client.peer.writes) for client in clients],
            figures,
            dict(broker.offsets.queues("H", "orders")),
        )


@pytest.mark.parametrize("serialize", list(SerializeType))
def test_plain_held_pulls_get_what_others_get(tmp_path, monkeypatch, serialize):
    """The same bytes, figures and positions, whichever way; those of one connection come in one write."""
    slow = woken(tmp_path / "slow", FakeClock(), serialize, monkeypatch, plain=False)
    monkeypatch.undo()
    written, writes, figures, positions = woken(tmp_path / "plain", FakeClock(), serialize, monkeypatch, plain=True)
    assert ([sorted(frames(one)) for one in written], figures, positions) == (
        [sorted(frames(one)) for one in slow[0]], slow[2], slow[3],
    )  # fmt: skip
    assert writes == [1, 1, 1]


def frames(data):
    """The answers one by one, without what tells when they were stored."""
    found = []
    while data:
        size = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big")
        command, data = decode(data[LENGTH_BYTES:size]), data[size:]
        found.append((command.opaque, command.code, sorted(command.ext.items()), [m.body for m in messages(command)]))
    return found


def test_a_held_pull_that_is_plain_no_more_is_judged_anew(server, client):
    """Its group wants other messages meanwhile; then what comes is for the new subscription."""
    client.beat("G", {"orders": "*"})
    client.send("orders")
    assert held(client, offset=1, sys_flag=HOLD, subscription=None, sub_version=1) == []
    client.beat("G", {"orders": "A"}, version=2)
    other = Client(server)
    other.send("orders", b"refused", tag="B")
    assert client.received() == []
    other.send("orders", b"wanted", tag="A")
    assert [message.body for message in messages(client.received()[0])] == [b"wanted"]


def test_gates_are_closed_by_an_option(server, client):
    """A pull of many messages through a gate gets the new number of them."""
    for _ in range(40):
        client.send("orders")
    for count in (32, 32, 5, 5, 40, 40):
        if count != server.broker.environment.store_options.max_transfer_count_on_message_in_memory:
            server.broker.settings.change({"maxTransferCountOnMessageInMemory": count})
        assert len(messages(client.pull("orders", max_messages=100)[0])) == count


# -------------------------------------------------------------------- back-pressure


def test_who_does_not_read_gets_no_more_answers_until_it_does(server, client):
    """Pulls of a congested peer are left in its buffer; they are answered when it reads again."""
    client.send("orders")
    frame = client.frame(RequestCode.PULL_MESSAGE, pull_header("orders"))
    client.peer.congested = True
    assert client.feed(frame * 3) == 3 * len(frame)
    assert client.received() == []
    client.peer.congested = False
    assert client.feed(b"") == 0
    assert len(client.received()) == 3


# -------------------------------------------------------------------- old messages


def on_disk() -> FaultyDisk:
    """None of what is old is in memory."""
    disk = FaultyDisk()
    disk.cached = False
    return disk


def test_old_messages_that_are_in_memory_are_answered_at_once(tmp_path):
    """No thread is asked."""
    with open_server(tmp_path, store={"hot_bytes": 0}) as (_, server):
        client = Client(server)
        for n in range(40):
            client.send("orders", b"%d" % n)
        (found,) = client.pull("orders", offset=4)
        assert [message.body for message in messages(found)] == [b"%d" % n for n in range(4, 36)]
        assert offsets(found) == (36, 0, 40)


def test_many_pulls_of_old_messages_are_answered_a_few_at_a_time(tmp_path):
    """Others have their turns in between; and whoever asks for too many is told so, once for each."""
    with open_server(tmp_path, store={"hot_bytes": 0}) as (_, server):
        client = Client(server)
        for n in range(40):
            client.send("orders", b"%d" % n)
        turns = []

        class Watched(deque):
            def popleft(self):
                turns.append(len(client.peer.writes))
                return super().popleft()

        client.peer.jobs, client.peer.writes = Watched(), []
        frames = [client.frame(RequestCode.PULL_MESSAGE, pull_header("orders", offset=n % 40)) for n in range(9)]
        client.feed(b"".join(frames))
        answers = client.received()
        assert [offsets(one)[0] for one in answers] == [min(40, n + 32) for n in range(9)]
        assert len(turns) == 4  # Two at once, and then two in each turn, in one write.
        assert len(client.peer.writes) == 5

        many = client.frame(RequestCode.PULL_MESSAGE, pull_header("orders", offset=0)) * (OLD_MAX + OLD_AT_ONCE + 3)
        client.feed(many)
        codes = Counter(one.code for one in client.received())
        assert codes == {ResponseCode.SUCCESS: OLD_MAX + OLD_AT_ONCE, ResponseCode.SYSTEM_BUSY: 3}


def test_old_messages_are_read_off_the_loop(tmp_path):
    """A pull of messages behind hotBytes is answered a little later, from another thread's read, and complete."""

    async def main() -> None:
        with open_server(tmp_path, store={"hot_bytes": 0}, disk=on_disk()) as (_, server):
            client = Client(server)
            for n in range(40):
                client.send("orders", b"%d" % n)
            assert client.pull("orders", offset=4) == []
            while not (answers := client.received()):
                await asyncio.sleep(0)
            assert [message.body for message in messages(answers[0])] == [b"%d" % n for n in range(4, 36)]
            assert offsets(answers[0]) == (36, 0, 40)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_reads_of_old_messages_take_turns(tmp_path, monkeypatch):
    """Few are under way at a time; who asks for much waits behind who asks for little, and everybody is answered."""
    monkeypatch.setattr(pieces, "UNDER_WAY_MAX", 1)

    async def main() -> None:
        with open_server(tmp_path, store={"hot_bytes": 0}, disk=on_disk()) as (_, server):
            greedy, modest, gone = Client(server), Client(server), Client(server)
            greedy.send("orders")
            order = list[str]()
            for name, one in (("greedy", greedy), ("modest", modest), ("gone", gone)):
                one.peer.write = lambda data, name=name: order.append(name)
            for _ in range(10):
                assert greedy.pull("orders") == []
            assert modest.pull("orders") == []
            assert gone.pull("orders") == []
            gone.leave()
            while len(order) < 11:
                await asyncio.sleep(0)
            assert order.index("modest") <= 2
            assert "gone" not in order

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_connection_that_asks_for_too_much_of_the_past_is_told(tmp_path, monkeypatch):
    """Its pulls above the number that may wait are answered as busy; another's are served."""
    monkeypatch.setattr(pieces, "UNDER_WAY_MAX", 1)
    monkeypatch.setattr(pieces, "WAITING_MAX", 2)

    async def main() -> None:
        with open_server(tmp_path, store={"hot_bytes": 0}, disk=on_disk()) as (_, server):
            client, other = Client(server), Client(server)
            client.send("orders")
            told = [client.pull("orders") for _ in range(4)]  # one under way, two wait
            assert [len(answers) for answers in told] == [0, 0, 0, 1]
            assert told[3][0].code == ResponseCode.SYSTEM_BUSY
            assert other.pull("orders") == []
            answers = []
            while len(answers) < 4:
                answers += client.received() + other.received()
                await asyncio.sleep(0)
            assert {answer.code for answer in answers} == {0}

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_every_outcome_of_a_pull_has_a_code_and_every_status_a_remark() -> None:
    """One without would be a pull without an answer; a cold read is none yet."""
    assert {outcome for outcome in PullOutcome if outcome is not PullOutcome.COLD} == CODE_OF.keys()
    assert set(ReadStatus) == REMARK_OF.keys()


def test_a_scanned_row_and_a_decoded_header_are_the_same_request() -> None:
    """Fields and flags of a `PullRequest` are in the order and of the values that the compiled extension scans."""
    header = pull_header(
        "T", 1, 7, max_messages=9, sys_flag=7, commit_offset=5, suspend_ms=11, subscription="a||b", sub_version=13,
        max_msg_bytes=17,
    )  # fmt: skip
    command = request(RequestCode.PULL_MESSAGE, header)
    frame = encode(command)
    table = hot.FrameTable(1 << 20)
    table.scan(frame, 0, len(frame))
    made = PullRequest(*table.pull(0))
    assert made == pull_of(header)
    assert made == PullRequest(
        group=b"G", topic=b"T", queue_id=1, offset=7, count_max=9, flags=COMMIT | HOLD | FILTER, commit_offset=5,
        hold_ms=11, subscription=b"a||b", version=13, expression_type=b"TAG", bytes_max=17,
    )  # fmt: skip
