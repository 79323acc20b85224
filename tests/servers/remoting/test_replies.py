"""Replies to requests at the remoting server (324, 325), and how they are handed on (326), as RocketMQ's clients see them."""

from __future__ import annotations

import gc
import weakref

import pytest

from metaq.clock import FakeClock
from metaq.model import Heartbeat
from metaq.model import properties as props
from metaq.model.topics.system import reply_topic
from metaq.options import MIB
from metaq.servers.remoting.asking import PEER_QUESTIONS_MAX
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import SerializeType, encode
from metaq.wire.command import reply as reply_to
from metaq.wire.record import decode_record
from tests.servers.support import Client, open_server, send_header, tick

TOPIC = reply_topic("DefaultCluster")
REPLIES = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
TO_ASKER = {
    props.MESSAGE_TYPE: props.REPLY, props.CORRELATION_ID: "c-1", props.REPLY_TO: "asker@1", props.TTL: "3000",
}  # fmt: skip


def requester(server, client_id="asker@1", group="ASKERS"):
    """A client that has said who it is."""
    client = Client(server)
    body = bodies.heartbeat(Heartbeat(client_id, (), (group,)))
    assert client.ask(RequestCode.HEART_BEAT, None, body).code == 0
    return client


def replying(client, body=b"the answer", code=RequestCode.SEND_REPLY_MESSAGE_V2, topic=TOPIC, **more):
    """Send a reply. Returns what comes at once: its answer, if it has one already."""
    header = send_header(topic, 0, properties=TO_ASKER | more.pop("properties", {}), **more)
    if code == RequestCode.SEND_REPLY_MESSAGE:
        header = header.to_long_ext()
    return client.tell(code, header, body)


def confirm(client, push, code=0, remark=None):
    client.feed(encode(reply_to(push, code, remark=remark)))


def the_one(commands):
    (command,) = commands
    return command


@pytest.mark.parametrize("code", REPLIES)
@pytest.mark.parametrize("serialize", SerializeType)
def test_a_reply_reaches_the_client_that_it_names_and_is_stored(server, clock, code, serialize):
    """326 with all that Java decodes; the responder is answered when the requester has confirmed."""
    asker, responder = requester(server), Client(server, serialize)
    assert replying(responder, code=code, flag=7) == []
    push = the_one(asker.received())
    assert (push.code, push.is_oneway, bytes(push.body)) == (
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        False,
        b"the answer",
    )
    header = headers.PushReplyHeader.from_ext(push.ext)
    assert (header.producer_group, header.topic, header.queue_id, header.flag) == ("PG", TOPIC, 0, 7)
    assert header.born_host == f"127.0.0.1:{responder.peer.address[1]}"
    assert (header.store_host, header.store_ms) == ("127.0.0.1:10911", clock.now_ms())
    pairs = props.parse(header.properties)
    assert pairs.items() >= TO_ASKER.items()
    assert pairs[props.PUSH_TIME] == str(clock.now_ms())
    assert responder.received() == []
    confirm(asker, push)
    answer = the_one(responder.received())
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "0", "0")
    assert answer.ext.keys() >= {"MSG_REGION", "TRACE_ON"}
    stored = decode_record(the_one(responder.pull(TOPIC)).body)
    assert (stored.body, stored.sys_flag, stored.offset_id) == (b"the answer", 0, answer.ext["msgId"])
    assert stored.properties.keys().isdisjoint({props.CLUSTER, props.PUSH_TIME}), "as RocketMQ stores it"


def test_a_reply_is_only_handed_on_where_replies_are_not_stored(tmp_path, clock):
    """`storeReplyMessageEnable=false`: RocketMQ's placeholders stand for the place."""
    with open_server(tmp_path, clock, store_reply_message_enable=False) as (broker, server):
        asker, responder = requester(server), Client(server)
        before = broker.store.log.end
        replying(responder)
        confirm(asker, the_one(asker.received()))
        answer = the_one(responder.received())
        assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, "0", "0")
        assert broker.store.log.end == before


@pytest.mark.parametrize("confirmed_first", [False, True])
def test_a_reply_is_handed_on_before_it_is_stored(server, monkeypatch, confirmed_first):
    """In a later turn of the loop, or when it is confirmed, and once; whoever waits for messages of its topic gets it then."""
    asker, responder, watcher = requester(server), Client(server), Client(server)
    replying(responder)
    confirm(asker, the_one(asker.received()))
    assert the_one(responder.received()).code == 0
    assert watcher.pull(TOPIC, offset=1, sys_flag=6, suspend_ms=15_000) == []
    later = []
    monkeypatch.setattr(server.broker, "_call_soon", later.append)
    end = server.broker.store.log.end
    replying(responder)
    push = the_one(asker.received())
    assert server.broker.store.log.end == end
    if confirmed_first:
        confirm(asker, push)
    for work in later:
        work()
    if not confirmed_first:
        confirm(asker, push)
    answer = the_one(responder.received())
    assert (answer.code, answer.ext["queueOffset"]) == (0, "1")
    stored = decode_record(the_one(watcher.received()).body)
    assert (stored.queue_offset, stored.offset_id) == (1, answer.ext["msgId"])
    assert watcher.pull(TOPIC, offset=2)[0].code == ResponseCode.PULL_NOT_FOUND


def test_a_compressed_reply_keeps_its_mark(server):
    """On the way, and in the log: RocketMQ stores it as if it were plain."""
    asker, responder = requester(server), Client(server)
    replying(responder, b"\x78\x9c...", sys_flag=0x1)
    assert headers.PushReplyHeader.from_ext(the_one(asker.received()).ext).sys_flag == 1
    assert decode_record(the_one(responder.pull(TOPIC)).body).sys_flag == 1


def test_a_reply_without_a_body_is_taken(server):
    """Go's `CreateReplyMessage` forgets it."""
    asker, responder = requester(server), Client(server)
    replying(responder, b"", RequestCode.SEND_REPLY_MESSAGE)
    push = the_one(asker.received())
    assert bytes(push.body) == b""
    confirm(asker, push)
    assert the_one(responder.received()).code == 0


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({props.REPLY_TO: "nobody@1"}, "channel of <nobody@1> not found"),
        ({props.REPLY_TO: ""}, "REPLY_TO_CLIENT] is null"),
        ({props.REPLY_TO: "x" * 30_000}, "not found"),
    ],
)
def test_a_reply_to_nobody_is_told_so_and_stored(server, properties, words):
    """Code 1 in RocketMQ's words; the record is there nevertheless."""
    responder = Client(server)
    answer = the_one(replying(responder, properties=properties))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert words in answer.remark
    assert len(answer.remark) < 1000
    assert decode_record(the_one(responder.pull(TOPIC)).body).body == b"the answer"


def test_a_requester_that_went_away_costs_nothing_that_stays(server, clock):
    """It leaves before the reply, or with replies on their way to it: each is answered, and nothing is kept."""
    asker, responder = requester(server), Client(server)
    session = weakref.ref(asker.session)
    for _ in range(3):
        assert replying(responder) == []
    assert len(server.handling.questions) == 3
    asker.leave()
    assert [answer.code for answer in responder.received()] == [ResponseCode.SYSTEM_ERROR] * 3
    assert "not found" in the_one(replying(responder)).remark
    members = server.broker.members
    assert members.connection_of("asker@1") is None
    assert not members._connections and not members._client_of
    assert len(server.handling.questions) == 0
    del asker
    gc.collect()
    assert session() is None


def test_a_requester_that_never_confirms_is_waited_for_ten_seconds(server, clock):
    asker, responder = requester(server), Client(server)
    replying(responder)
    clock.advance(9.9)
    tick(server)
    assert responder.received() == []
    clock.advance(0.2)
    tick(server)
    answer = the_one(responder.received())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "asker@1 fail: it did not answer in time" in answer.remark
    confirm(asker, the_one(asker.received()))
    assert responder.received() == [], "too late"


def test_a_requester_that_refuses_is_told_of(server):
    """Code 1, with what it said."""
    asker, responder = requester(server), Client(server)
    replying(responder)
    confirm(asker, the_one(asker.received()), 1, "process reply message fail")
    answer = the_one(responder.received())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "process reply message fail" in answer.remark


def test_replies_that_a_requester_does_not_read_or_confirm_are_refused(server):
    """Not for ever more of them: code 2, and the responder may try again."""
    asker, responder = requester(server), Client(server)
    for _ in range(PEER_QUESTIONS_MAX):
        assert replying(responder) == []
    busy = the_one(replying(responder))
    assert (busy.code, "too many" in busy.remark) == (ResponseCode.SYSTEM_BUSY, True)
    confirm(asker, asker.received()[0])
    assert the_one(responder.received()).code == 0
    asker.peer.congested = True
    busy = the_one(replying(responder))
    assert (busy.code, "does not read" in busy.remark) == (ResponseCode.SYSTEM_BUSY, True)


def test_a_reply_that_is_too_long_is_refused_and_the_connection_goes_on(server):
    """4 MiB + 1: neither handed on nor stored; the next one is."""
    asker, responder = requester(server), Client(server)
    limit = server.broker.store_options.max_message_size
    assert limit <= 4 * MIB
    end = server.broker.store.log.end
    answer = the_one(replying(responder, bytes(limit + 1)))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert str(limit) in answer.remark
    assert (asker.received(), server.broker.store.log.end) == ([], end)
    assert replying(responder, bytes(limit)) == []
    assert len(the_one(asker.received()).body) == limit


@pytest.mark.parametrize(
    ("topic", "code"), [("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION), ("a b", ResponseCode.SYSTEM_ERROR)]
)
def test_a_reply_to_a_topic_that_takes_none_is_refused(server, topic, code):
    """As any send there; the requester hears nothing."""
    asker, responder = requester(server), Client(server)
    assert the_one(replying(responder, topic=topic)).code == code
    assert asker.received() == []


def test_a_batch_is_no_reply(server):
    responder = Client(server)
    assert the_one(replying(responder, batch=True)).code == ResponseCode.MESSAGE_ILLEGAL


def test_a_requester_gets_its_replies_where_it_was_heard_of_last(server):
    """A client that came back on a new connection, before the end of the old one was noticed."""
    old, new, responder = requester(server), requester(server), Client(server)
    replying(responder)
    assert (len(old.received()), len(new.received())) == (0, 1)
    new.leave()
    responder.received()
    replying(responder)
    assert len(old.received()) == 1, "it is still there"


def test_a_client_that_only_consumes_is_no_requester(server):
    """Producers alone are looked for, as RocketMQ does it."""
    client, responder = Client(server), Client(server)
    from metaq.model import ConsumerView

    body = bodies.heartbeat(Heartbeat("asker@1", (ConsumerView("G", {}),), ()))
    assert client.ask(RequestCode.HEART_BEAT, None, body).code == 0
    assert the_one(replying(responder)).code == ResponseCode.SYSTEM_ERROR


def test_a_reply_is_handed_on_although_the_store_fails(server, monkeypatch, caplog):
    """As RocketMQ does it; the log says so."""
    from metaq.errors import Reason, Refused

    asker, responder = requester(server), Client(server)

    def full(records):
        raise Refused(Reason.NOT_STORED, "the disk is full")

    monkeypatch.setattr(server.broker.appender, "put", full)
    replying(responder)
    confirm(asker, the_one(asker.received()))
    answer = the_one(responder.received())
    assert (answer.code, answer.ext["msgId"]) == (0, "0")
    assert "the disk is full" in caplog.text


def test_a_one_way_reply_is_handed_on_and_nothing_is_answered(tmp_path):
    with open_server(tmp_path, FakeClock()) as (_, server):
        asker, responder = requester(server), Client(server)
        header = send_header(TOPIC, 0, properties=TO_ASKER)
        responder.feed(responder.frame(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"x", oneway=True))
        confirm(asker, the_one(asker.received()))
        assert responder.received() == []
