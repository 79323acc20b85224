"""Messages found by id, key and time; who has consumed one; the units of a queue. At a running broker."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import zlib

import pytest

import metaq
from metaq.address import join_address
from metaq.admin import Admin, MessageNotFound, members
from metaq.admin.messages import answered
from metaq.admin.tracks import judge
from metaq.errors import ConfigError, NoRoute
from metaq.model import ConsumerView, MessageModel, StoredMessage
from metaq.model.filters.subscription import java_string_hash, subscribe
from metaq.wire.codes import RequestCode
from metaq.wire.record import offset_id
from tests.scripted import Fate, ScriptedCluster
from tests.support import PATIENCE, eventually


@pytest.fixture
def admin(metaq_broker):
    with Admin(metaq_broker.namesrv) as opened:
        yield opened


@pytest.fixture
def producer(metaq_broker):
    with metaq.Producer(metaq_broker.namesrv) as opened:
        yield opened


def bodies(found):
    return [one.body for one in found.messages]


def test_messages_are_found_by_key(admin, producer):
    """Exactly: `Aa` and `BB` have one hash; the newest, oldest first, and whether there are more."""
    admin.create_topic("found-keys", queues=4)
    for number in range(40):
        producer.send("found-keys", b"%d" % number, keys=["Aa" if number % 2 else "BB", "all"])
    odd = [b"%d" % number for number in range(1, 40, 2)]
    found = admin.find_messages("found-keys", key="Aa")
    assert (bodies(found), found.more, found.silent) == (odd, False, ())
    few = admin.find_messages("found-keys", key="Aa", limit=3)
    assert (bodies(few), few.more) == (odd[-3:], True)
    most = admin.find_messages("found-keys", key="all")
    assert (len(most.messages), most.more) == (32, True)
    assert len(admin.find_messages("found-keys", key="all", limit=100).messages) == 40
    assert bodies(admin.find_messages("found-keys", key="C#")) == []


def test_more_messages_of_one_second_than_an_answer_has_room_for(admin, producer):
    """RocketMQ's answer has 64 at most, and its index knows the second only: all are found."""
    admin.create_topic("found-crowd", queues=1)
    queue = producer.send("found-crowd", b"first").queue
    producer.send_batch(
        [metaq.Message("found-crowd", b"%d" % number, keys=("k",)) for number in range(300)], queue=queue
    )
    found = admin.find_messages("found-crowd", key="k", limit=1000)
    assert (bodies(found), found.more) == ([b"%d" % number for number in range(300)], False)


def test_a_compressed_body_is_decompressed_once(admin, producer):
    """Though it looks compressed itself."""
    admin.create_topic("found-zlib", queues=1)
    body = zlib.compress(b"x" * 100) * 1000
    receipt = producer.send("found-zlib", body, keys=["z"])
    assert bodies(admin.find_messages("found-zlib", key="z")) == [body]
    assert bodies(admin.find_messages("found-zlib")) == [body]
    assert admin.get_message(receipt.offset_id).body == body


def test_a_message_is_found_by_both_its_ids(admin, producer):
    """The producer's with its topic; the broker's alone. What is no message is not found."""
    admin.create_topic("found-ids", queues=1)
    receipt = producer.send("found-ids", b"x")
    assert admin.get_message(receipt.message_id, "found-ids").body == b"x"
    assert admin.get_message(receipt.offset_id).message_id == receipt.message_id
    assert admin.get_message(receipt.offset_id.lower(), "found-ids").body == b"x"
    assert bodies(admin.find_messages("found-ids", message_id=receipt.message_id)) == [b"x"]
    with pytest.raises(MessageNotFound, match="name the topic"):
        admin.get_message(receipt.message_id)
    with pytest.raises(MessageNotFound):  # inside the record, where none begins
        admin.get_message(f"{int(receipt.offset_id, 16) + 4:032X}")
    with pytest.raises(MessageNotFound, match="no message of topic found-ids has the id"):
        admin.get_message("7F0000010A2B18B4AAC2000000000001", "found-ids")
    with pytest.raises(NoRoute):
        admin.get_message(receipt.message_id, "found-nowhere")


def test_an_id_names_no_machine_that_is_connected_to(admin, unused_port):
    """The address in it is nobody's of this cluster; a connection would fail with an error of its own."""
    strange = f"7F000001{unused_port:08X}{0:016X}"
    with pytest.raises(MessageNotFound):
        admin.get_message(strange)


@pytest.fixture
def unused_port():
    import socket

    with contextlib.closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0)
        yield server.getsockname()[1]
        with pytest.raises(BlockingIOError):  # nobody came
            server.accept()


def test_messages_are_found_by_time_to_the_millisecond(admin, producer):
    """From a store time on, and before one; of all queues in the order of their times."""
    admin.create_topic("found-times", queues=4)
    for number in range(60):
        producer.send("found-times", b"%d" % number, keys=["k"])
    every = admin.find_messages("found-times", limit=100).messages
    assert sorted(int(one.body) for one in every) == list(range(60))
    assert [one.store_ms for one in every] == sorted(one.store_ms for one in every)
    newest = admin.find_messages("found-times")
    assert (len(newest.messages), newest.more) == (32, True)
    at = [dt.datetime.fromtimestamp(one.store_ms / 1000, dt.UTC) for one in (every[20], every[40])]
    expected = [one.body for one in every if every[20].store_ms <= one.store_ms < every[40].store_ms]
    for key in (None, "k"):
        found = admin.find_messages("found-times", key=key, start=at[0], end=at[1])
        assert sorted(bodies(found)) == sorted(expected)
    assert bodies(admin.find_messages("found-times", start=every[-1].store_ms / 1000 + 1)) == []
    assert bodies(admin.find_messages("found-times", end=1.0)) == []


@pytest.mark.parametrize(
    ("search", "says"),
    [
        ({"key": "k"}, "name the topic"),
        ({"topic": "t", "key": "a b"}, "is no key"),
        ({"topic": "t", "key": ""}, "is no key"),
        ({"topic": "t", "message_id": "x" * 300}, "is no message id"),
        ({"topic": "t", "message_id": "x", "key": "k"}, "an id is of one message"),
        ({"topic": "t", "limit": 0}, "at least one"),
        ({"topic": "no topic"}, "no topic"),
        ({"topic": "t", "start": float("nan")}, "no moment"),
    ],
)
def test_wrong_searches_are_the_callers_errors(admin, search, says):
    with pytest.raises(ConfigError, match=says):
        admin.find_messages(**search)


def test_who_has_consumed_a_message(admin, producer, metaq_broker):
    """Groups that have and have not, want other tags, are gone, broadcast, pull; and when, as far as their clients trace."""
    topic = "tracked"
    admin.create_topic(topic, queues=1)
    receipt = producer.send(topic, b"x", tag="a")
    producer.send(topic, b"y", tag="b")

    def states():
        found = admin.track_message(receipt.message_id, topic)
        assert found.message.body == b"x"
        return {one.group: one.state.value for one in found.groups}

    with contextlib.ExitStack() as stack:

        def consumer(group, tags="*", **more):
            common = {"group": group, "topics": {topic: tags}, "start": "first", "instance_name": group}
            return stack.enter_context(metaq.Consumer(metaq_broker.namesrv, **common, **more))

        def consume(one, count):
            for _ in range(count):
                one.receive(PATIENCE).ack()
            one.commit()

        consume(consumer("track-done", trace=True), 2)
        consume(consumer("track-tags", "b"), 1)
        consume(consumer("track-late"), 2)
        admin.reset_group("track-late", topic, "earliest")
        consumer("track-everywhere", broadcast=True)
        gone = consumer("track-gone")
        consume(gone, 2)
        gone.close()
        puller = metaq.PullConsumer(metaq_broker.namesrv, group="track-pull", topics=topic)
        stack.enter_context(puller)
        expected = {
            "track-done": "CONSUMED",
            "track-tags": "CONSUMED_BUT_FILTERED",
            "track-late": "NOT_CONSUME_YET",
            "track-everywhere": "CONSUME_BROADCASTING",
            "track-gone": "NOT_ONLINE",
            "track-pull": "PULL",
        }
        eventually(lambda: expected.items() <= states().items(), what="each is told")

        def traced():
            groups = {one.group: one for one in admin.track_message(receipt.offset_id).groups}
            return groups["track-done"].deliveries

        [delivery] = eventually(traced, what="the delivery is traced")
        assert (delivery.result, delivery.attempt) == ("ok", 1)
        gone = {one.group: one for one in admin.track_message(receipt.message_id, topic).groups}["track-gone"]
        assert (gone.offset, gone.detail) == (2, "no member is connected; its offset is past the message")


def test_brokers_that_do_not_answer_are_named():
    """Once each; if nobody answers the first failure is raised, and a mistake of ours is never hidden."""

    async def good(value):
        return value

    async def bad(error):
        raise error

    away = metaq.ConnectionFailed("away")

    async def mixed():
        return await answered([("a", good(1)), ("b", bad(away)), ("b", bad(away)), ("a", good(2))])

    assert asyncio.run(mixed()) == ([1, 2], ["b"])
    for works, error in (
        ([("a", bad(away))], metaq.ConnectionFailed),
        ([("a", good(1)), ("b", bad(KeyError()))], KeyError),
    ):
        with pytest.raises(error):
            asyncio.run(answered(works))


@pytest.mark.parametrize("code", [RequestCode.GET_CONSUMER_CONNECTION_LIST, RequestCode.GET_CONSUME_STATS])
def test_what_no_broker_tells_is_unknown(tmp_path, code):
    """With the reason. A broker that does not tell its groups is an error, here the only one's.

    Its messages have another address than it is registered under: their broker's ids are found with the topic.
    """
    with ScriptedCluster(tmp_path) as cluster, Admin(cluster.namesrv) as admin:
        cluster.put("orders", 0, [b"x"])
        with metaq.Consumer(cluster.namesrv, group="g", topics="orders", start="first") as consumer:
            consumer.receive(PATIENCE).ack()
            consumer.commit()
            [one] = admin.find_messages("orders").messages
            [track] = admin.track_message(one.offset_id, "orders").groups
            assert (track.group, track.state.value, track.offset) == ("g", "CONSUMED", 1)
            cluster.script = lambda asked: Fate.HANG_UP if asked.code == code else None
            [track] = admin.track_message(one.offset_id, "orders").groups
            assert track.state.value == "UNKNOWN"
            assert "connection" in track.detail
            cluster.script = lambda asked: (
                Fate.HANG_UP if asked.code == RequestCode.QUERY_TOPIC_CONSUME_BY_WHO else None
            )
            with pytest.raises(metaq.ConnectionFailed):
                admin.track_message(one.offset_id, "orders")


VIEW = ConsumerView("g", {"t": subscribe("t")})


@pytest.mark.parametrize(
    ("view", "offset", "has_offsets", "state"),
    [
        (None, None, False, "NOT_ONLINE"),
        (None, 9, True, "NOT_ONLINE"),
        (VIEW, 6, True, "CONSUMED"),
        (VIEW, 5, True, "NOT_CONSUME_YET"),
        (VIEW, None, True, "NOT_CONSUME_YET"),
        (VIEW, None, False, "NOT_ONLINE"),
        (VIEW, None, None, "UNKNOWN"),
        (ConsumerView("g", {"t": subscribe("t", "a || b")}), 6, True, "CONSUMED"),
        (ConsumerView("g", {"t": subscribe("t", "b")}), 6, True, "CONSUMED_BUT_FILTERED"),
        (ConsumerView("g", {"t": subscribe("t", metaq.Sql("x = 1"))}), 6, True, "CONSUMED"),
        (ConsumerView("g", push=False), 6, True, "PULL"),
        (ConsumerView("g", model=MessageModel.BROADCASTING), None, False, "CONSUME_BROADCASTING"),
    ],
)
def test_each_state_is_judged_as_mqadmin_does(view, offset, has_offsets, state):
    message = StoredMessage(topic="t", body=b"", queue_offset=5, properties_raw=b"TAGS\x01a\x02")
    assert judge(message, view, offset, has_offsets=has_offsets)[0] == state


def test_units_of_a_queue(admin, producer):
    """Where each message is in the log, from the end as well; with a group, what it wants."""
    admin.create_topic("united", queues=1)
    ids = [producer.send("united", b"%d" % number, tag="ab"[number % 2]).offset_id for number in range(5)]
    queue, first, found = admin.queue_units("united", 0)
    assert (queue.queue_id, first, found.min_offset, found.max_offset) == (0, 0, 0, 5)
    assert [unit.log_offset for unit in found.units] == [int(one[16:], 16) for one in ids]
    assert [unit.tags_code for unit in found.units[:2]] == [java_string_hash("a"), java_string_hash("b")]
    _, first, last = admin.queue_units("united", 0, start=-2, count=7, broker=queue.broker)
    assert (first, last.units) == (3, found.units[3:])
    assert admin.queue_units("united", 0, start=5)[2].units == ()
    with pytest.raises(ConfigError, match=r"no broker has a queue 1 .* has .*:0-0"):
        admin.queue_units("united", 1)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_message_that_a_member_is_to_consume_is_found_at_its_place(host):
    """Also where brokers have IPv6 addresses, which have brackets in routes."""
    raw = ipaddress.ip_address(host).packed + (10911).to_bytes(4, "big")
    known = {"a": join_address(host, 10912), "b": join_address(host, 10911)}
    assert members._named_broker(offset_id(raw, 77), known) == "b"
