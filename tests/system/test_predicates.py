"""Predicates in helper processes of a real broker: what they choose, and whom a bad one harms."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import signal

import pytest

import metaq
from metaq.errors import BrokerError
from metaq.testing import EmbeddedBroker
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from tests.interop.remoting_client import RemotingClient
from tests.support import ROOT, eventually

_numbers = itertools.count()
NAMES = ("blue", "counts", "dies", "eats", "large", "leaves", "none", "raises", "sleeps", "strays", "waits")
PLACES = ";".join(f"{name}=tests.broker.pulls.support:{name}" for name in NAMES)
REGISTERED = ", ".join(NAMES)
OPTIONS = {"filterPredicates": PLACES, "filterPredicatePath": str(ROOT)}


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(options={**OPTIONS, "filterTimeLimit": 500}) as running:
        yield running


@pytest.fixture
def topic():
    return f"chosen-{next(_numbers)}"


def consumer_of(broker, topic, name, **more):
    group = f"{topic}-{name}"
    wanted = metaq.Predicate(name)
    return metaq.Consumer(broker.namesrv, group=group, topics={topic: wanted}, start="earliest", **more)


def bodies_of(consumer, count):
    found = []
    while len(found) < count:
        message = consumer.receive(300)
        assert message is not None, found
        with message:
            found.append(message.body)
    return found


def test_predicates_choose_by_body_and_by_properties(broker, topic):
    """Of long, short and compressed bodies; what comes later too, and what waited long before."""
    with metaq.Producer(broker.namesrv) as producer:
        for number in range(300):
            producer.submit(topic, b"long enough %03d" % number if number % 3 == 0 else b"short")
        producer.send(topic, bytes(50_000), properties={"colour": "blue"})
        with consumer_of(broker, topic, "large") as large, consumer_of(broker, topic, "blue") as blue:
            found = bodies_of(large, 101)
            assert sorted(found)[1:] == [b"long enough %03d" % number for number in range(0, 300, 3)]
            assert bodies_of(blue, 1) == [bytes(50_000)]
            producer.send(topic, b"no")
            producer.send(topic, b"new", properties={"colour": "blue"})
            producer.send(topic, b"a long one")
            assert bodies_of(blue, 1) == [b"new"]
            assert bodies_of(large, 1) == [b"a long one"]


def test_a_reader_chooses_too_and_comes_to_the_end(broker, topic):
    """Without a group's heartbeat; one that lets nothing pass passes everything over."""
    with metaq.Producer(broker.namesrv) as producer:
        for number in range(1000):
            producer.submit(topic, b"%d" % number)
        producer.send(topic, b"long enough")
    with metaq.Reader(
        broker.namesrv, topic, tags=metaq.Predicate("large"), start="earliest", stop_at_end=True
    ) as reader:
        assert [message.body for message in reader] == [b"long enough"]
    with metaq.Reader(
        broker.namesrv, topic, tags=metaq.Predicate("none"), start="earliest", stop_at_end=True
    ) as reader:
        assert list(reader) == []


def test_a_failed_message_comes_again_without_being_chosen_anew(broker, topic):
    """The retry topic is subscribed to as a whole."""
    with metaq.Producer(broker.namesrv) as producer:
        producer.send(topic, b"long enough")
    with consumer_of(broker, topic, "large") as consumer:
        first = consumer.receive(300)
        first.retry(1)
        again = consumer.receive(300)
        assert (again.body, again.reconsume_times) == (b"long enough", 1)
        again.ack()


@pytest.mark.parametrize(
    ("name", "bad", "said"),
    [
        ("sleeps", b"sleep", "the predicate sleeps failed with a message of group {}, which is delivered: it took longer than 500 ms"),
        ("eats", b"eat 2 GB", "the predicate eats failed with a message of group {}, which is delivered: it needed more than"),
        ("dies", b"die", "the predicate dies failed with a message of group {}, which is delivered: it ended with exit code 7"),
        ("leaves", b"leave", "the predicate leaves failed with a message of group {}, which is delivered: it ended with exit code 7"),
        ("raises", b"raise", "the predicate raises raised for 1 messages of group {}, which are delivered: ValueError: not that one"),
    ],
)  # fmt: skip
def test_what_a_predicate_cannot_judge_is_delivered(broker, topic, name, bad, said):
    """It sleeps 10 s, wants 2 GB, ends its process (and leaves another behind) or raises: its group gets every message in the end, and others meanwhile."""
    with metaq.Producer(broker.namesrv) as producer:
        for number in range(5):
            producer.send(topic, b"good %d" % number, properties={"colour": "blue"})
        producer.send(topic, bad, properties={"colour": "blue"})
        producer.send(topic, b"last", properties={"colour": "blue"})
        with consumer_of(broker, topic, name) as harmed, consumer_of(broker, topic, "blue") as bystander:
            wanted = sorted([*(b"good %d" % number for number in range(5)), bad, b"last"])
            assert sorted(bodies_of(bystander, 7)) == wanted
            assert sorted(bodies_of(harmed, 7)) == wanted
    assert said.format(f"{topic}-{name}") in broker.log.read_text()


@pytest.mark.parametrize("how", ["hang", "die"])
def test_a_process_that_leaves_the_group_of_its_helper_blocks_nobody(broker, topic, tmp_path, how):
    """It holds the other ends of the pipes, and nobody can end it by the group: its helper is over all the same."""
    place = tmp_path / "pid"
    try:
        with metaq.Producer(broker.namesrv) as producer, consumer_of(broker, topic, "strays") as harmed:
            producer.send(topic, b"stray-%b %b" % (how.encode(), os.fsencode(place)))
            producer.send(topic, b"behind it")
            assert len(bodies_of(harmed, 2)) == 2
    finally:
        os.kill(int(eventually(lambda: place.exists() and place.read_text())), signal.SIGKILL)


def test_a_predicate_may_run_a_program(topic):
    """Its standard input is empty, and not what the broker asks."""
    with (
        EmbeddedBroker(options={**OPTIONS, "filterTimeLimit": 60_000}) as broker,
        metaq.Producer(broker.namesrv) as producer,
    ):
        for body in (b"one", b"no", b"two"):
            producer.send(topic, body)
        with consumer_of(broker, topic, "counts") as consumer:
            assert sorted(bodies_of(consumer, 2)) == [b"one", b"two"]


def test_a_slow_predicate_delays_its_own_group_only(tmp_path, topic):
    """While it hangs, other predicates choose and other groups pull, with one helper process as with two."""
    flag = tmp_path / "go"
    with (
        EmbeddedBroker(options={**OPTIONS, "filterTimeLimit": 60_000}) as broker,
        metaq.Producer(broker.namesrv) as producer,
    ):
        producer.send(topic, b"wait %b" % os.fsencode(flag), properties={"colour": "blue"})
        with (
            consumer_of(broker, topic, "waits") as slow,
            consumer_of(broker, topic, "blue") as bystander,
            metaq.Consumer(broker.namesrv, group=f"{topic}-all", topics=topic, start="earliest") as plain,
        ):
            for number in range(20):
                assert len(bodies_of(bystander, 1)) == len(bodies_of(plain, 1)) == 1
                producer.send(topic, b"%d" % number, properties={"colour": "blue"})
            assert slow.receive(0.01) is None
            flag.touch()
            assert len(bodies_of(slow, 21)) == 21


def test_an_unknown_predicate_is_refused_with_the_names_there_are(broker, topic, caplog):
    """At the pull of a reader, and in what a consumer logs."""
    with metaq.Producer(broker.namesrv) as producer:
        producer.send(topic, b"x")
    with (
        metaq.Reader(broker.namesrv, topic, tags=metaq.Predicate("no-such"), start="earliest") as reader,
        pytest.raises(BrokerError, match=f"no predicate 'no-such'; registered are: {REGISTERED}"),
    ):
        next(iter(reader))
    with consumer_of(broker, topic, "other"):
        eventually(lambda: f"no predicate 'other'; registered are: {REGISTERED}" in caplog.text, what="the complaint")


@pytest.mark.parametrize("code", [RequestCode.REGISTER_FILTER_SERVER, RequestCode.REGISTER_MESSAGE_FILTER_CLASS])
def test_classes_of_clients_are_refused_with_the_names_there_are(broker, code):
    """What a Java client uploads is not run."""
    with RemotingClient(broker.broker) as client:
        answer = client.ask(code, body=b"public class F {}")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"registered are: {REGISTERED}" in (answer.remark or "")


def test_a_consumers_filter_is_checked_before_it_starts(broker, topic):
    """CHECK_CLIENT_CONFIG (46)."""

    def check(name):
        subscription = {
            "classFilterMode": False, "codeSet": [], "expressionType": "PREDICATE", "subString": name, "subVersion": 1,
            "tagsSet": [], "topic": topic,
        }  # fmt: skip
        body = {"clientId": "c", "group": "g", "subscriptionData": subscription}
        with RemotingClient(broker.broker) as client:
            return client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=json.dumps(body).encode())

    assert check("large").code == ResponseCode.SUCCESS
    refused = check("no-such")
    assert (refused.code, REGISTERED in (refused.remark or "")) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, True)


def test_a_consumer_with_a_java_class_is_told_the_names(broker, topic):
    """`classFilterMode` in a heartbeat: its pulls are refused, for nobody would choose."""
    with metaq.Producer(broker.namesrv) as producer:
        producer.send(topic, b"x")
    beat = {
        "clientID": "old-java", "producerDataSet": [],
        "consumerDataSet": [{
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "consumeType": "CONSUME_PASSIVELY", "groupName": f"{topic}-java",
            "messageModel": "CLUSTERING", "unitMode": False,
            "subscriptionDataSet": [{
                "classFilterMode": True, "codeSet": [], "subString": "shop.Filter", "subVersion": 1, "tagsSet": [], "topic": topic,
            }],
        }],
    }  # fmt: skip
    with RemotingClient(broker.broker) as client:
        assert client.ask(RequestCode.HEART_BEAT, body=json.dumps(beat).encode()).code == ResponseCode.SUCCESS
        pull = headers.PullHeader(
            group=f"{topic}-java", topic=topic, queue_id=0, queue_offset=0, max_messages=32, sys_flag=0, sub_version=1
        )
        answer = client.ask(RequestCode.PULL_MESSAGE, pull)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"registered are: {REGISTERED}" in (answer.remark or "")


def test_helper_processes_end_with_their_broker_however_that_ends():
    """Also one that is killed while a predicate hangs."""
    with EmbeddedBroker(options={**OPTIONS, "filterServerNums": 2, "filterTimeLimit": 60_000}) as broker:
        helpers = eventually(lambda: len(found := _helpers_of(broker.pid)) == 2 and found, what="two helpers")
        with metaq.Producer(broker.namesrv) as producer:
            producer.send("hangs", b"wait /nowhere/at/all")
        with consumer_of(broker, "hangs", "waits") as consumer:
            consumer.wait_assigned(300)
            os.kill(broker.pid, signal.SIGKILL)
            eventually(lambda: not any(map(_alive, helpers)), what="their end")
        broker.kill()


def _helpers_of(pid):
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if b"predicate_helper" in command and parent == pid:
            found.append(int(folder.name))
    return found


def _alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
