"""All that a redrive promises beside the plain case, against a real broker. The oracle is the plain client, never Spark."""

from __future__ import annotations

import io
import json
import zlib
from collections import Counter

import pytest

import metaq
from metaq.admin import Admin
from metaq.clock import SYSTEM
from metaq.errors import ConfigError, NoRoute
from metaq.pipelines.run import Run, ask_to_stop
from metaq.spark.pipelines import redrive
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import request
from metaq.wire.headers import SendHeader
from tests.pipelines.redrive.support import JSON, Shop
from tests.staged import send_empty
from tests.support import PATIENCE, exchange

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]


@pytest.fixture
def shop(metaq_broker, tmp_path):
    return Shop(metaq_broker.namesrv, tmp_path / "redrive")


def test_a_dry_run_sends_nothing_and_shows_what_would_be(spark, shop):
    """Nor does it write down anything."""
    shop.orders(10)
    found = shop.redrive(spark, where="value.id > 3", dryRun=True, cap=2, **JSON)
    assert (found["dry_run"], found["chosen"], found["sent"]) == (True, 5, 0)
    assert "dry run, nothing was sent: 5 messages" in shop.text
    assert "2 of them in the first run (cap)" in shop.text
    assert [sample["topic"] for sample in found["samples"]] == [shop.topic] * 5
    assert {sample["body"] for sample in found["samples"]} == {f'{{"id": {number}}}' for number in (4, 6, 7, 8, 9)}
    assert shop.redriven() == []
    assert not (shop.folder / "_redrive.json").exists()


def test_runs_with_a_cap_go_on_where_the_one_before_ended(spark, shop):
    """The oldest first, in steps, until nothing is left; then with what has come meanwhile, and with what was not chosen."""
    shop.die([b"%03d" % number for number in range(25)])
    figures = [shop.redrive(spark, decode="utf8", where="text < '020'", cap=8, batch=3) for _ in range(3)]
    assert [(one["sent"], one["left"]) for one in figures] == [(8, 12), (8, 4), (4, 0)]
    assert "; 12 are left (the cap), the next run goes on with them" not in shop.text
    steps = [line["rows"] for _, line in shop.lines if "batch" in line]
    assert steps == [3, 3, 2, 3, 3, 2, 3, 1]
    order = {message.body: place for place, message in enumerate(sorted(shop.dead(), key=lambda one: one.queue_offset))}
    sent = [order[message.body] for message in sorted(shop.redriven(), key=lambda one: one.log_offset)]
    assert sent == sorted(sent)
    assert shop.redrive(spark)["sent"] == 5
    assert Counter(message.body for message in shop.redriven()) == Counter(b"%03d" % number for number in range(25))
    shop.reject(25)  # They fail again: new dead letters, to be redriven anew.
    found = shop.redrive(spark, where="int(properties['REDRIVES']) < 2")
    assert (found["sent"], found["sent_before"]) == (25, 25)
    assert Counter(message.properties["REDRIVES"] for message in shop.redriven()) == {"1": 25, "2": 25}


def test_another_folder_finds_what_was_sent_at_its_target(spark, shop, tmp_path):
    """By the mark that it carries, if it is asked to look there."""
    shop.orders(10)
    target = f"{shop.topic}_other"
    with Admin(shop.namesrv) as admin:
        admin.create_topic(target)
    assert shop.redrive(spark, to=target, cap=4)["sent"] == 4
    shop.folder = tmp_path / "new"
    found = shop.redrive(spark, to=target, checkTarget=True, batch=4)
    assert (found["sent"], found["there"]) == (6, 4)
    assert Counter(message.body for message in shop.redriven(target)) == Counter(one.body for one in shop.dead())
    assert shop.redriven() == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"where": "value.idd = 1"}, r"where: \[FIELD_NOT_FOUND\] .*idd"),
        ({"where": "value.id >"}, r"where: \[PARSE_SYNTAX_ERROR\] "),
        ({"where": "value.id"}, "where: .*FILTER_NOT_BOOLEAN"),
        ({"where": "count(*) > 1"}, "where: .*WHERE"),
        (
            {"where": "int(tag) = 1"},
            r"where or select fails for a message, and nothing was sent: \[CAST_INVALID_INPUT\]",
        ),
        ({"select": "value as body"}, "select: body is struct<id:bigint>, and must be binary or a text"),
        ({"select": "'a' as tagg"}, "select: 'a' as tagg: say what it is, .* not tagg; the nearest is tag"),
        ({"select": "explode(keys) as tag"}, "select: explode.*UNSUPPORTED_GENERATOR"),
        ({"select": "'a' as `properties.UNIQ_KEY`"}, "the property name UNIQ_KEY is reserved"),
        ({"select": "'a' as tag, 'b' as tag"}, "tag is named twice"),
        ({"select": "'a' as topic", "to": "somewhere"}, "the topic is chosen twice"),
        ({"to": "redrive_nowhere"}, "the topic redrive_nowhere, which 4 of the chosen messages go to, does not exist"),
        (
            {"onCorrupt": "fail"},
            r"nothing was sent \(onCorrupt=fail\): left where they are, because they do not decode: 1 \(at",
        ),
        ({"select": "nullif(value.id, 3) as body", "onCorrupt": "fail"}, "would have no body: 1"),
        ({"schema": "id bigint,"}, "decode.json takes a schema such as .*PARSE_SYNTAX_ERROR"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(spark, faulty_shop, wrong, why):
    """In one line."""
    with pytest.raises(ConfigError, match=why) as caught:
        faulty_shop.redrive(spark, **{**JSON, **wrong})
    assert "\n" not in str(caught.value)
    assert faulty_shop.redriven() == []
    assert not (faulty_shop.folder / "_redrive.json").exists()


@pytest.fixture(scope="module")
def faulty_shop(metaq_broker, tmp_path_factory):
    shop = Shop(metaq_broker.namesrv, tmp_path_factory.mktemp("faulty") / "redrive")
    shop.orders(5)
    return shop


def test_a_group_without_dead_letters_is_told(spark, shop):
    """Not the same as none that are chosen."""
    with pytest.raises(NoRoute, match=f"the group {shop.group} has no dead letters"):
        shop.redrive(spark)


def test_what_cannot_be_sent_stays_and_is_counted(spark, shop):
    """By why: no body, no topic, too large, or nothing that a message may have."""
    shop.die([b"small", b"x" * (3 << 20), b"none", b"a|b", b" key", b"\x01"])
    found = shop.redrive(
        spark, decode="utf8",
        select="if(length(text) > 9, repeat(text, 2), nullif(text, 'none')) as body, if(text like '%|%', text, '') as tag, if(text like ' %', text, null) as keys, "
        "left(text, 9) as `properties.text`",
    )  # fmt: skip
    assert (found["sent"], found["unfit"]) == (1, {"empty": 1, "illegal": 3, "large": 1})
    assert [(message.body, message.tag, message.keys) for message in shop.redriven()] == [(b"small", None, ())]
    shop.lines.clear()
    assert "larger than the brokers take them (maxMessageSize; 31 KiB of properties): 1 (at " in shop.text
    with metaq.Producer(shop.namesrv) as producer:
        producer.send(f"{shop.topic}_plain", b"plain")
    moved = shop.redrive(
        spark, group="", topic=f"{shop.topic}_plain", folder=str(shop.folder / "plain"), select="'a' as tag"
    )
    assert (moved["sent"], moved["unfit"]) == (0, {"homeless": 1})


def test_a_body_that_does_not_decompress_stays_where_it_is(spark, shop, metaq_broker):
    """As it is stored it would be sent as another one; with `decode` or without."""
    source, target = f"{shop.topic}_packed", f"{shop.topic}_unpacked"
    with metaq.Producer(shop.namesrv) as producer:
        producer.send(target, b"first")
        queue = producer.send(source, b"first").queue
    with Admin(shop.namesrv) as admin:
        (broker,) = admin.list_brokers()
    for body in (zlib.compress(b"packed"), b"no zlib"):
        sent = SendHeader(
            producer_group="p", topic=source, queue_id=queue.queue_id, sys_flag=1, born_ms=SYSTEM.now_ms()
        )
        (answer,) = exchange(broker.address, [request(RequestCode.SEND_MESSAGE_V2, sent, body)])
        assert answer.code == ResponseCode.SUCCESS
    for number, more in enumerate([{}, {"decode": "utf8", "select": "text as body"}]):
        found = shop.redrive(spark, group="", topic=source, to=target, folder=str(shop.folder / f"{number}"), **more)
        assert (found["sent"], found["unfit"]) == (2, {"corrupt": 1})
    assert Counter(message.body for message in shop.read(target)) == {b"first": 3, b"packed": 2}


def test_only_the_group_that_failed_gets_them_again(spark, shop):
    """As messages of their topic that were never tried; a redrive that lost its folder finds them there; others get nothing."""
    shop.die([b"one", b"two", b"three"])
    other = f"{shop.group}_other"
    assert got(shop.namesrv, other, shop.topic, 3) == {
        (b"one", shop.topic, 0),
        (b"two", shop.topic, 0),
        (b"three", shop.topic, 0),
    }
    found = shop.redrive(spark, onlyGroup="true", where="string(body) <> 'two'")
    assert (found["sent"], found["targets"]) == (2, {shop.topic: 2})
    assert f"to {shop.topic}, for the group {shop.group} alone: 2" in shop.text
    again = shop.redrive(spark, onlyGroup="true", checkTarget="true", folder=str(shop.folder / "new"))
    assert (again["sent"], again["there"]) == (1, 2)
    assert shop.redriven() == []
    assert got(shop.namesrv, shop.group, shop.topic, 3) == {
        (b"one", shop.topic, 0),
        (b"two", shop.topic, 0),
        (b"three", shop.topic, 0),
    }
    with metaq.Producer(shop.namesrv) as producer:
        producer.send(shop.topic, b"last")
    assert got(shop.namesrv, other, shop.topic, 1) == {(b"last", shop.topic, 0)}


def got(namesrv, group, topic, count):
    """What the group gets, up to so many messages: body, topic, tries before."""
    found = set()
    with metaq.Consumer(namesrv, group=group, topics=topic, start="earliest") as consumer:
        while len(found) < count:
            message = consumer.receive(PATIENCE)
            assert message is not None, found
            found.add((message.body, message.topic, message.reconsume_times))
            message.ack()
    return found


def test_large_and_empty_dead_letters_go_back(spark, shop, metaq_broker):
    """As they came; an empty body that `select` makes of another one is still no message."""
    bodies = [b"a", b"x" * (2 << 20), b"b", b"y" * (4 << 20)]
    with metaq.Producer(shop.namesrv) as producer:
        for body in bodies:
            producer.send(shop.topic, body)
    with Admin(shop.namesrv) as admin:
        queue = min(admin.describe_topic(shop.topic).queues)
    send_empty(metaq_broker, queue)
    shop.reject(len(bodies) + 1)
    assert shop.redrive(spark, select="nullif(body, binary('b')) as body", dryRun="true")["unfit"] == {"empty": 1}
    found = shop.redrive(spark, select="if(body = binary('b'), binary(''), body) as body")
    assert (found["sent"], found["unfit"]) == (4, {"empty": 1})
    assert sorted(len(message.body) for message in shop.redriven()) == [0, 1, 2 << 20, 4 << 20]


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(spark, shop):
    """Its offsets mean other messages."""
    plain, target = f"{shop.topic}_plain", f"{shop.topic}_target"
    options = {"group": "", "topic": plain, "to": target}
    with metaq.Producer(shop.namesrv) as producer, Admin(shop.namesrv) as admin:
        admin.create_topic(target)
        admin.create_topic(plain, queues=1)
        producer.send(plain, b"old")
        assert shop.redrive(spark, **options)["sent"] == 1
        admin.delete_topic(plain)
        admin.create_topic(plain, queues=1)
        producer.send(plain, b"new")
        with pytest.raises(ConfigError, match="was deleted and made anew"):
            shop.redrive(spark, **options)
    assert [message.body for message in shop.redriven(target)] == [b"old"]


def test_it_can_be_stopped_between_and_within_steps(spark, shop, monkeypatch):
    """What was sent is known, the rest is for the next run; the rate is kept without sleeping on."""
    shop.die([b"%03d" % number for number in range(12)])
    waits = []
    real = Run.wait

    def wait(run, seconds):
        waits.append(seconds)
        if len(waits) == 3:
            ask_to_stop(shop.folder)
        return real(run, seconds)

    monkeypatch.setattr(Run, "wait", wait)
    found = shop.redrive(spark, rate=0.001)
    assert (found["sent"], found["left"], found["stopped"]) == (1, 11, True)
    assert max(waits) <= 0.5
    assert "11 are left (it was stopped)" in shop.text
    assert len(shop.redriven()) == 1
    assert shop.redrive(spark)["sent"] == 11
    assert Counter(message.body for message in shop.redriven()) == Counter(b"%03d" % number for number in range(12))


def test_a_stop_ends_what_spark_is_at(spark, shop):
    """A pass over the topic, however long it would take."""
    shop.die([b"slow"])

    def stop(_line, _figures):
        ask_to_stop(shop.folder)

    began = SYSTEM.monotonic()
    sleeps = "reflect('java.lang.Thread', 'sleep', 60000L) is null"
    outcome = redrive(spark, shop.config(where=sleeps), on_batch=stop)
    assert outcome.figures["stopped"]
    assert SYSTEM.monotonic() - began < 60
    assert shop.redriven() == []


def test_avro_bodies_and_ordering_keys(spark, shop, tmp_path):
    """Chosen by a field; the messages of a key are in one queue, the oldest first."""
    fastavro = pytest.importorskip("fastavro")
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "customer", "type": "string"}, {"name": "n", "type": "int"}],
    }
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(schema))
    bodies = []
    for number in range(30):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {"customer": f"c{number % 3}", "n": number})
        bodies.append(out.getvalue())
    shop.die([*bodies, b"no avro"])
    found = shop.redrive(
        spark, decode="avro", schema=str(file), where="value.n >= 3",
        select="format_string('%s %03d', value.customer, value.n) as body, value.customer as ordering_key",
    )  # fmt: skip
    assert (found["sent"], found["unfit"]) == (27, {"corrupt": 1})
    queues = {}
    for message in sorted(shop.redriven(), key=lambda one: (one.queue, one.queue_offset)):
        customer, number = message.body.decode().split()
        queues.setdefault(customer, []).append((message.queue, number))
    place = {message.body: message.queue_offset for message in shop.dead()}
    for number, customer in enumerate(("c0", "c1", "c2")):
        mine = sorted(range(3 + number, 30, 3), key=lambda one: place[bodies[one]])
        assert len({queue for queue, _ in queues[customer]}) == 1
        assert [text for _, text in queues[customer]] == [f"{one:03d}" for one in mine]
