"""Errors say what is true: who is down, what was tried, for how long, and whether anything may be stored.

Against real processes: a name server with and without a broker, a broker that is killed or frozen, nobody at all.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

import metaq
from metaq import Consumer, Message, Producer, Reader, aio
from metaq.testing import Cluster, EmbeddedBroker, free_port
from metaq.wire.codes import RequestCode
from tests.client.cluster import FakeCluster
from tests.support import PATIENCE, eventually, run_metaq

_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"true_errors_{os.getpid()}_{next(_names)}"


@pytest.fixture(scope="module")
def lonely():
    """A name server without any broker."""
    with Cluster(brokers=0) as cluster:
        yield cluster.namesrv


def seconds_in(text: str) -> float:
    return float(re.search(r"in (\d+\.\d+) s", text)[1])


def test_a_group_that_must_be_made_first_is_said_to_be_missing(topic, caplog):
    """A consumer of it would wait for ever: it says why, and goes on by itself once the group is there."""
    with EmbeddedBroker(options={"autoCreateSubscriptionGroup": "false"}) as broker:
        with Producer(broker.namesrv) as producer:
            producer.send(topic, b"x")
        with Consumer(
            broker.namesrv, group=topic, topics=topic, start="earliest", heartbeat_broker_interval=1000
        ) as consumer:
            eventually(
                lambda: re.search(rf"no members there: .*{topic}.* autoCreateSubscriptionGroup is false", caplog.text)
            )
            assert run_metaq("group", "create", topic, "-n", broker.namesrv).returncode == 0
            assert eventually(lambda: consumer.receive(0.5)).body == b"x"


def test_no_broker_is_not_a_missing_topic(lonely, topic, caplog):
    """Nobody is told to create a topic where no broker could: producer, reader, consumer and command say who is missing."""
    no_broker = rf"no broker is registered at name servers {re.escape(lonely)}"
    with Producer(lonely) as producer:
        for call in (lambda: producer.send(topic, b"x"), lambda: producer.queues(topic)):
            with pytest.raises(metaq.NoRoute, match=no_broker) as caught:
                call()
            assert "create" not in str(caught.value)
            assert "twice" not in str(caught.value)
    with pytest.raises(metaq.NoRoute, match=no_broker), Reader(lonely, topic):
        pass
    with Consumer(lonely, group=topic, topics=topic):
        eventually(lambda: re.search(f"waits for topic {topic}: {no_broker}", caplog.text))
    sent = run_metaq("send", topic, "x", "-n", lonely)
    assert sent.returncode != 0
    assert "no broker is registered" in sent.stderr


def test_broker_that_went_away_is_named(topic):
    """Name server up, broker killed under a client that knows its route: what each try met, and that nothing is stored."""
    with Cluster() as cluster, Producer(cluster.namesrv) as producer:
        eventually(lambda: producer.send(topic, b"x"))
        cluster.brokers[0].kill()
        with pytest.raises((metaq.SendFailed, metaq.NoRoute)) as caught:
            producer.send(topic, b"x", timeout=0.8)  # it waits for its return until then
        text = str(caught.value)
        assert "metaq topic create" not in text
        assert "connect" in text or "no broker is registered" in text
        assert "twice" not in text, text


def test_name_server_that_is_down_stores_nothing(topic):
    """Nobody listens: the send uses its time, and nothing may be there twice."""
    address = f"127.0.0.1:{free_port()}"
    with Producer(address, timeout=0.7) as producer, pytest.raises(metaq.SendFailed) as caught:
        producer.send(topic, b"x")
    text = str(caught.value)
    assert address in text
    assert "no try at a broker" in text
    assert seconds_in(text) >= 0.5
    assert "nothing was stored" in text
    assert "twice" not in text
    assert "the timeout of 0.7 s is over" in text


async def _sent(namesrv: str, topic: str, key: str | None) -> metaq.SendReceipt:
    async with aio.Producer(namesrv, timeout=PATIENCE, retries=0) as producer:
        return await producer.send(topic, b"x", ordering_key=key)


@pytest.mark.parametrize("key", [None, "customer-7"])
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_name_server_that_comes_in_time_is_found(topic, kind, key):
    """Also by a send that needs the route before it is handed in."""
    with FakeCluster() as cluster:
        cluster.topics[topic] = 1
        cluster.script[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lose
        with ThreadPoolExecutor() as pool:
            if kind == "asyncio":
                sent = pool.submit(asyncio.run, _sent(cluster.namesrv, topic, key))
            else:
                producer = Producer(cluster.namesrv, timeout=PATIENCE, retries=0)
                sent = pool.submit(lambda: producer.send(topic, b"x", ordering_key=key))
            eventually(lambda: cluster.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) >= 3)
            assert not sent.done()
            cluster.script.clear()
            assert sent.result(PATIENCE).status is metaq.SendStatus.SEND_OK
            if kind == "threads":
                producer.close()


@pytest.mark.parametrize(
    "ask",
    [
        lambda producer, topic: producer.queues(topic),
        lambda producer, topic: producer.send_oneway(topic, b"x"),
        lambda producer, topic: send_atomic(producer, topic),
    ],
    ids=["queues", "oneway", "atomic"],
)
def test_a_name_server_that_comes_in_time_is_found_by_other_calls_too(topic, ask):
    with (
        FakeCluster() as cluster,
        Producer(cluster.namesrv, timeout=PATIENCE) as producer,
        ThreadPoolExecutor() as pool,
    ):
        cluster.topics[topic] = 1
        cluster.script[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lose
        asked = pool.submit(ask, producer, topic)
        eventually(lambda: cluster.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) >= 3)
        assert not asked.done()
        cluster.script.clear()
        asked.result(PATIENCE)


def send_atomic(producer, topic) -> None:
    with pytest.raises(metaq.NotSupported):  # which is known once its broker is
        producer.atomic(timeout=PATIENCE).send(topic, b"x")


def lose(session, command) -> None:
    """A script entry: break the connection."""
    session.peer.abort("the test says so")


def test_consumer_without_name_server_says_so(topic, caplog):
    """It goes on trying, and does not do so in silence."""
    address = f"127.0.0.1:{free_port()}"
    with Consumer(address, group=topic, topics=topic):
        eventually(lambda: f"no name server of {address} can be reached, is one running there?" in caplog.text)
    assert topic in caplog.text


def test_only_a_try_without_answer_may_be_stored_twice(topic):
    """A frozen broker has the request: then, and only then, the error speaks of twice."""
    with EmbeddedBroker() as broker, Producer(broker.namesrv, timeout=1.0) as producer:
        producer.send(topic, b"x")
        broker.freeze()
        try:
            with pytest.raises(metaq.SendFailed, match="may store it twice") as caught:
                producer.send(topic, b"x")
        finally:
            broker.thaw()
        assert "the timeout of 1 s is over" in str(caught.value)


def test_broker_given_as_name_server_is_told_apart(metaq_broker, topic, caplog):
    """Its port is the one that people mix up; producer, reader, consumer and command say so."""
    what = rf"{re.escape(metaq_broker.broker)} is no name server.*9876"
    with Producer(metaq_broker.broker) as producer, pytest.raises(metaq.MetaqError, match=what):
        producer.send(topic, b"x")
    with pytest.raises(metaq.MetaqError, match=what), Reader(metaq_broker.broker, topic):
        pass
    with Consumer(metaq_broker.broker, group=topic, topics=topic):
        eventually(lambda: "is no name server" in caplog.text)
    sent = run_metaq("send", topic, "x", "-n", metaq_broker.broker)
    assert sent.returncode != 0
    assert "is no name server" in sent.stderr
    with Producer(f"{metaq_broker.broker};{metaq_broker.namesrv}") as producer:
        assert producer.send(topic, b"x"), "one wrong address beside a right one does no harm"


@pytest.mark.parametrize(
    "made",
    [Producer, aio.Producer, lambda at: Consumer(at, group="g", topics="t"), lambda at: Reader(at, "t")],
    ids=["Producer", "aio.Producer", "Consumer", "Reader"],
)
def test_address_that_is_none_is_refused_when_a_client_is_made(made):
    """A list, a URL, a path, a blank: with the right form."""
    for wrong in (["localhost:9876"], ("a:1", "b:2"), 9876, b"localhost:9876"):
        with pytest.raises(TypeError, match="host:port"):
            made(wrong)
    for wrong in ("http://localhost:9876", "https://h/path", "localhost:9876/x", "local host:9876", "a:b", "h:0"):
        with pytest.raises(metaq.ConfigError, match="host:port"):
            made(wrong)


def test_start_has_one_vocabulary(metaq_broker, topic):
    """earliest and latest everywhere, RocketMQ's first and last as aliases; all else is told when the client is made."""
    with Producer(metaq_broker.namesrv) as producer:
        for number in range(3):
            producer.send(topic, b"%d" % number)
    for start in ("earliest", "first"):
        with Reader(metaq_broker.namesrv, topic, start=start, stop_at_end=True) as reader:
            assert len(list(reader)) == 3
        with Consumer(metaq_broker.namesrv, group=f"{topic}_{start}", topics=topic, start=start) as consumer:
            assert consumer.receive(PATIENCE) is not None
        assert len(run_metaq("consume", topic, "--from", start, "-n", metaq_broker.namesrv).stdout.split()) == 3
    for start in ("latest", "last"):
        with Reader(metaq_broker.namesrv, topic, start=start, stop_at_end=True) as reader:
            assert list(reader) == []
        with Consumer(metaq_broker.namesrv, group=f"{topic}_{start}", topics=topic, start=start) as consumer:
            consumer.wait_assigned(20)
    for wrong, kind in (("begin", metaq.ConfigError), (-1, metaq.ConfigError), (float("nan"), metaq.ConfigError),
                        (None, TypeError), (True, TypeError), ([], TypeError)):  # fmt: skip
        with pytest.raises(kind):
            Reader(metaq_broker.namesrv, topic, start=wrong)
        with pytest.raises(kind):
            Consumer(metaq_broker.namesrv, group=topic, topics=topic, start=wrong)


def test_received_message_can_be_pickled(metaq_broker, topic):
    """For a process pool: all that is known of it arrives; what only its consumer can do says so."""
    with Producer(metaq_broker.namesrv) as producer:
        producer.send(topic, b"x", tag="t", keys=["k"], properties={"a": "b"})
    with Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        message = consumer.receive(PATIENCE)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            copy = pickle.loads(pickle.dumps(message, protocol))
            assert type(copy) is metaq.ReceivedMessage
            assert copy == message
            assert (copy.body, copy.tag, copy.keys, copy.properties) == (b"x", "t", ("k",), message.properties)
            assert (copy.message_id, copy.queue, copy.born_host) == (
                message.message_id,
                message.queue,
                message.born_host,
            )

            def with_block(copy=copy):
                with copy:
                    pass

            async def async_block(copy=copy):
                async with copy:
                    pass

            for verdict in (
                copy.ack,
                copy.retry,
                copy.reject,
                with_block,
                lambda block=async_block: asyncio.run(block()),
            ):
                with pytest.raises(metaq.ClientError, match="copy"):
                    verdict()
        message.ack()
    with Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        assert consumer.receive(0.5) is None
    with Reader(metaq_broker.namesrv, topic) as reader:
        read = reader.receive(PATIENCE)
        assert pickle.loads(pickle.dumps(read)) == read


def test_values_and_errors_can_be_pickled(metaq_broker):
    """What crosses to another process: messages, receipts, queues, verdicts, errors."""
    queue = metaq.MessageQueue("t", "b", 1)
    values = [
        Message("t", b"x", "tag", ("k",), properties={"a": "b"}), queue,
        metaq.SendReceipt("id", queue, 5, metaq.SendStatus.FLUSH_DISK_TIMEOUT),
    ]  # fmt: skip
    for value in values:
        assert pickle.loads(pickle.dumps(value)) == value
    for error in (
        metaq.SendFailed("text", (("b", "why"),)), metaq.BrokerError(13, "remark", "a:1", "send"), metaq.NoRoute("text"),
        metaq.InvalidMessage("text"), metaq.OffsetOutOfRange(queue, 3, range(5, 9)), metaq.Later(3), metaq.Reject("why"),
        metaq.ClientClosed("text"),
    ):  # fmt: skip
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.args) == (type(error), str(error), error.args)


def test_public_objects_say_what_they_are(metaq_broker, topic):
    """In a debugger and in logs: what, where, in which state; never a body of megabytes."""
    with Producer(metaq_broker.namesrv) as producer:
        assert repr(producer) == f"<Producer at {metaq_broker.namesrv}: open>"
        future = producer.submit(topic, b"x" * 100)
        future.result(PATIENCE)
        assert "acknowledged" in repr(future)
    assert repr(producer).endswith(": closed>")
    with Consumer(metaq_broker.namesrv, group=topic, topics=[topic], start="earliest") as consumer:
        assert repr(consumer).startswith(f"<Consumer of group {topic}, topics {topic}: ")
        message = consumer.receive(PATIENCE)
        assert "100 bytes" in repr(message)
        consumer.stop()
        assert "stopped" in repr(consumer)
    assert "closed" in repr(consumer)
    with Reader(metaq_broker.namesrv, topic) as reader:
        assert repr(reader) == f"<Reader of topic {topic}: open>"
    assert "closed" in repr(reader)
    with metaq.admin.Admin(metaq_broker.namesrv) as admin:
        assert repr(admin) == f"<Admin at {metaq_broker.namesrv}>"
    assert "closed" in repr(admin)
    large = Message(topic, b"y" * 1_000_000, tag="t")
    assert len(repr(large)) < 300
    assert topic in repr(large)
    assert "1000000 bytes" in repr(large)
    assert repr(Message(topic, b"short")).startswith(f"Message(topic='{topic}', body=b'short'")


def test_client_that_was_not_made_can_be_shown():
    """A debugger shows an object whose constructor raised."""
    for kind in (Producer, Consumer, Reader, aio.Producer, aio.Consumer, aio.Reader):
        assert kind.__name__ in repr(kind.__new__(kind))
