"""Sends of the client of MetaQ 1.x to a broker of ours: what is stored where, and every way in which a send fails."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import wait
from pathlib import Path

import pytest

from metaq.errors import (
    BrokerError,
    BufferFull,
    ClientClosed,
    ClientError,
    ConfigError,
    ConnectionFailed,
    InvalidMessage,
    NoRoute,
    RequestTimeout,
)
from metaq.metaq1 import (
    RANDOM_PARTITION,
    Message,
    MetaClientConfig,
    MetaMessageSessionFactory,
    Partition,
    RandomPartitionSelector,
    RoundRobinPartitionSelector,
)
from metaq.metaq1.shared.links import ConnectionPace
from metaq.testing import eventually, free_port
from tests.interop.metaq1 import OurServer, TextConnection
from tests.metaq1.conftest import at
from tests.metaq1.stored import payloads, read
from tests.support import PATIENCE


def test_a_message_is_stored_where_its_result_says(factory, topic, server):
    """Id, partition and offset; the attribute comes back, an empty one too."""
    producer = factory.create_producer(at(1))
    producer.publish(topic)
    first = producer.send_message(Message(topic, b"hello"))
    second = producer.send_message(Message(topic, b"there", "blue"))
    third = producer.send_message(Message(topic, bytearray(b"you"), ""))
    assert [one.partition for one in (first, second, third)] == [Partition(-1, 1)] * 3
    assert [one.offset for one in (first, second, third)] == [0, 25, 25 + 20 + 4 + 4 + 5]
    assert read(server.text, topic, 1) == [
        (first.message_id, None, b"hello"),
        (second.message_id, b"blue", b"there"),
        (third.message_id, b"", b"you"),
    ]


def test_sends_of_one_thread_are_stored_in_their_order(factory, topic, server):
    """However many are under way; one connection is enough."""
    producer = factory.create_producer(at(2))
    producer.publish(topic)
    futures = [producer.submit(Message(topic, b"%d" % number)) for number in range(500)]
    results = [future.result(PATIENCE) for future in futures]
    assert [payload for _, _, payload in read(server.text, topic, 2)] == [b"%d" % number for number in range(500)]
    assert [one.offset for one in results] == sorted(one.offset for one in results)
    assert len(factory._core.links) == 1


def test_many_threads_share_a_producer(factory, topic, server):
    producer = factory.create_producer()
    producer.publish(topic)
    errors: list[BaseException] = []

    def send(name: int) -> None:
        try:
            for number in range(20):
                producer.send_message(Message(topic, b"%d-%d" % (name, number)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=send, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = sorted(body for bodies in payloads(server.text, topic) for body in bodies)
    assert found == sorted(b"%d-%d" % (name, number) for name in range(8) for number in range(20))


def test_a_fixed_server_chooses_the_partition(factory, topic):
    """The selector gets one partition, -1, whatever the topic."""
    seen = []

    def selector(name, partitions, message):
        seen.append((name, tuple(partitions), message.data))
        return partitions[0]

    producer = factory.create_producer(selector)
    producer.publish(topic)
    result = producer.send_message(Message(topic, b"x"))
    assert seen == [(topic, (RANDOM_PARTITION,), b"x")]
    assert result.partition.broker_id == -1
    assert 0 <= result.partition.partition < 3


def test_round_robin_begins_with_the_second_partition():
    """As in Java; one count for all topics."""
    choose = RoundRobinPartitionSelector()
    partitions = [Partition(0, number) for number in range(3)]
    message = Message("t", b"")
    assert [choose("t", partitions, message).partition for _ in range(4)] == [1, 2, 0, 1]
    assert choose("u", partitions[:1], message) == Partition(0, 0)
    assert {RandomPartitionSelector()("t", partitions, message) for _ in range(200)} == set(partitions)


def test_callbacks_are_called_in_threads_where_they_may_wait(factory, topic):
    """Even send another message and wait for it."""
    producer = factory.create_producer()
    producer.publish(topic)
    done = threading.Event()
    found: list[object] = []

    def call(future):
        found.append((future.result().offset, producer.send_message(Message(topic, b"again")).message_id))
        done.set()

    producer.submit(Message(topic, b"x")).add_done_callback(call)
    assert done.wait(PATIENCE)
    assert len(found) == 1


def test_a_callback_that_raises_is_logged_and_others_are_called(factory, topic, caplog):
    producer = factory.create_producer()
    producer.publish(topic)
    called = threading.Event()

    def bad(future):
        raise KeyError("of the application")

    future = producer.submit(Message(topic, b"x"))
    future.add_done_callback(bad)
    future.add_done_callback(lambda _: called.set())
    assert called.wait(PATIENCE)
    eventually(lambda: "a done-callback of a send raised" in caplog.text)
    assert not future.cancel()


def test_without_callback_threads_a_callback_must_not_wait(config, topic):
    """It runs in the client's own thread, and is told so."""
    from msgspec import structs

    with MetaMessageSessionFactory(structs.replace(config, callback_threads=0)) as factory:
        producer = factory.create_producer()
        producer.publish(topic)
        found: list[BaseException] = []
        done = threading.Event()

        def call(_):
            try:
                producer.send_message(Message(topic, b"again"))
            except BaseException as error:
                found.append(error)
            done.set()

        started = threading.Event()
        producer._core.thread.post(started.wait)  # so that the callback is added before the answer is there
        future = producer.submit(Message(topic, b"x"))
        future.add_done_callback(call)
        started.set()
        assert done.wait(PATIENCE)
        assert isinstance(found[0], ClientError)


def test_a_default_topic_takes_messages_of_topics_that_are_not_published(factory, topic, server):
    """They keep their own topic; one default for each factory."""
    producer = factory.create_producer(at(0))
    other = f"{topic}-none"
    with pytest.raises(NoRoute, match=f"there is no available partition for topic {topic}: publish it first"):
        producer.send_message(Message(topic, b"x"))
    producer.set_default_topic(topic)
    producer.set_default_topic(topic)
    producer.send_message(Message(topic, b"mine"))
    with pytest.raises(BrokerError, match=f"do not accept topic {other}") as refused:
        producer.send_message(Message(other, b"x"))
    assert (refused.value.code, refused.value.address) == (500, server.text)
    with pytest.raises(ConfigError, match=f"is {topic} already"):
        factory.create_producer().set_default_topic(other)
    assert payloads(server.text, topic) == [[b"mine"], [], []]


@pytest.mark.parametrize("bad", ["", "  ", "two words", "a\r\nb", "grün"])
def test_a_topic_that_would_break_a_line_is_refused(factory, bad):
    with pytest.raises(InvalidMessage):
        Message(bad, b"x")
    with pytest.raises(InvalidMessage):
        factory.create_producer().publish(bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Message("t", None),
        lambda: Message("t", "text"),
        lambda: Message(None, b"x"),
        lambda: Message("t", b"x", 7),
    ],
)
def test_a_message_without_bytes_is_a_type_error(make):
    with pytest.raises(TypeError):
        make()


def test_what_no_get_could_return_is_refused_before_it_is_sent(factory, topic, server):
    """Size and limit are in the text. The largest is stored; the attribute counts."""
    producer = factory.create_producer(at(0))
    producer.publish(topic)
    largest = (1 << 20) - 20
    with pytest.raises(InvalidMessage, match=rf"{largest + 1} bytes .* {topic} .* 1048576"):
        producer.send_message(Message(topic, bytes(largest + 1)))
    with pytest.raises(InvalidMessage, match="too large"):
        producer.submit(Message(topic, bytes(largest - 7), "blue"))
    with pytest.raises(InvalidMessage, match="cannot be UTF-8"):
        producer.submit(Message(topic, b"", "\ud800"))
    assert producer.send_message(Message(topic, bytes(largest))).offset == 0
    (stored,) = read(server.text, topic, 0)
    assert len(stored[2]) == largest


@pytest.mark.parametrize(
    ("selector", "error"),
    [
        (lambda topic, partitions, message: "0-0", TypeError),
        (lambda topic, partitions, message: Partition(7, 0), ValueError),
        (lambda topic, partitions, message: Partition(-1, 1 << 31), ValueError),
        (lambda topic, partitions, message: Partition(-1, -2), ValueError),
        (lambda topic, partitions, message: Partition(-1, 0.5), ValueError),
        (lambda topic, partitions, message: {}["mine"], KeyError),
    ],
)
def test_a_selector_s_fault_is_the_send_s(factory, topic, selector, error):
    producer = factory.create_producer(selector)
    producer.publish(topic)
    for send in (producer.send_message, producer.submit):
        with pytest.raises(error):
            send(Message(topic, b"x"))
    with pytest.raises(TypeError):
        factory.create_producer("round robin")


def test_a_partition_that_the_server_has_not_or_has_closed(factory, topic, server):
    """The server's own words, and its code."""
    from metaq.admin import Admin

    producer = factory.create_producer(at(9))
    producer.publish(topic)
    with pytest.raises(BrokerError, match="wrong partition 9") as wrong:
        producer.send_message(Message(topic, b"x"))
    assert wrong.value.code == 500
    with Admin("127.0.0.1:9876") as admin:
        admin.close_partitions(server.broker, topic, 1, 1)
        closed = factory.create_producer(at(1))
        closed.publish(topic)
        with pytest.raises(BrokerError) as refused:
            closed.send_message(Message(topic, b"x"))
        assert refused.value.code == 403
        admin.open_partitions(server.broker, topic)
        assert closed.send_message(Message(topic, b"x")).offset == 0


def test_wrong_arguments_of_a_send(factory, topic):
    producer = factory.create_producer()
    producer.publish(topic)
    with pytest.raises(TypeError, match=r"pass a metaq\.metaq1\.Message"):
        producer.send_message(b"x")
    with pytest.raises(ConfigError, match="timeout=0"):
        producer.send_message(Message(topic, b"x"), timeout=0)


def test_too_much_under_way_is_refused_and_goes_on_when_there_is_room(config, topic):
    from msgspec import structs

    small = structs.replace(config, max_pending_messages=3)
    with MetaMessageSessionFactory(small) as factory:
        producer = factory.create_producer()
        producer.publish(topic)
        held = threading.Event()
        producer._core.thread.post(held.wait)  # so that no answer is read meanwhile
        try:
            futures = [producer.submit(Message(topic, b"x")) for _ in range(3)]
            with pytest.raises(BufferFull, match="max_pending_messages=3"):
                producer.submit(Message(topic, b"x"))
        finally:
            held.set()
        for future in futures:
            future.result(PATIENCE)
        producer.send_message(Message(topic, b"x"))
    with MetaMessageSessionFactory(structs.replace(config, max_pending_bytes=10)) as factory:
        producer = factory.create_producer()
        producer.publish(topic)
        assert producer.send_message(Message(topic, bytes(100))).message_id, "one alone may be larger"


def test_a_server_that_is_away_and_comes_back(tmp_path: Path, topic):
    """Nothing was sent; the same producer goes on, and what was acknowledged is there."""
    own = OurServer(tmp_path, None, {topic: {"numPartitions": 1}})
    config = MetaClientConfig(server_url=f"meta://{own.text}")
    with MetaMessageSessionFactory(config, pace=ConnectionPace(reconnect_pause=0.05)) as factory:
        producer = factory.create_producer(at(0))
        producer.publish(topic)
        with pytest.raises(ConnectionFailed) as away:
            producer.send_message(Message(topic, b"lost"))
        assert not away.value.sent

        def sent(body: bytes) -> bool:
            try:
                producer.send_message(Message(topic, body))
            except ConnectionFailed:
                return False
            return True

        with own:
            eventually(lambda: sent(b"one"), PATIENCE)
            own.kill()
            own.start()
            eventually(lambda: sent(b"two"), PATIENCE)
            found = [body for body in payloads(own.text, topic, 1)[0] if body == b"one"]
            assert found
            assert payloads(own.text, topic, 1)[0][-1] == b"two"


def test_a_time_out_leaves_the_outcome_open():
    """`sent` tells a server that is silent from one that is not there."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = MetaClientConfig(server_url=f"127.0.0.1:{silent.getsockname()[1]}")
        with MetaMessageSessionFactory(config) as factory:
            producer = factory.create_producer()
            producer.publish("t")
            with pytest.raises(RequestTimeout, match="it may have done it or not") as timeout:
                producer.send_message(Message("t", b"x"), timeout=0.1)
            assert timeout.value.sent


def test_what_was_closed_says_so(config, topic):
    factory = MetaMessageSessionFactory(config)
    producer, other = factory.create_producer(), factory.create_producer()
    producer.publish(topic)
    other.publish(topic)
    producer.shutdown()
    producer.shutdown()
    with pytest.raises(ClientClosed, match="the producer is closed"):
        producer.send_message(Message(topic, b"x"))
    other.send_message(Message(topic, b"x"))
    factory.shutdown()
    factory.shutdown()
    assert other.is_closed
    for call in (
        lambda: other.send_message(Message(topic, b"x")), lambda: other.publish(topic), factory.create_producer,
        factory.get_stats, lambda: factory.get_partitions(topic),
    ):  # fmt: skip
        with pytest.raises(ClientClosed):
            call()


def test_a_shutdown_waits_for_sends_under_way(config, topic, server):
    factory = MetaMessageSessionFactory(config)
    producer = factory.create_producer(at(0))
    producer.publish(topic)
    futures = [producer.submit(Message(topic, b"%d" % number)) for number in range(300)]
    factory.shutdown()
    assert all(future.result(0).message_id for future in futures)
    assert payloads(server.text, topic)[0] == [b"%d" % number for number in range(300)]


def test_a_shutdown_ends_sends_that_have_no_answer(monkeypatch):
    import socket

    monkeypatch.setattr("metaq.metaq1.shared.core.FLUSH_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        factory = MetaMessageSessionFactory(MetaClientConfig(server_url=f"127.0.0.1:{silent.getsockname()[1]}"))
        producer = factory.create_producer()
        producer.publish("t")
        futures = [producer.submit(Message("t", b"x")) for _ in range(3)]
        factory.shutdown()
        assert not wait(futures, PATIENCE).not_done
        for future in futures:
            assert isinstance(future.exception(), ClientClosed)


def test_a_port_where_nobody_listens_is_named():
    config = MetaClientConfig(server_url=f"127.0.0.1:{free_port()}")
    with MetaMessageSessionFactory(config) as factory:
        producer = factory.create_producer()
        producer.publish("t")  # it may come up later
        with pytest.raises(ConnectionFailed, match=rf"cannot connect to {config.address}"):
            producer.send_message(Message("t", b"x"))


def test_a_future_can_be_awaited_in_any_loop(factory, topic):
    """Of the producer for threads, too; when it is done, and before."""
    producer = factory.create_producer()
    producer.publish(topic)

    async def main():
        future = producer.submit(Message(topic, b"x"))
        assert (await future) == (await future)

    asyncio.run(main())


def test_a_raw_connection_and_the_client_see_the_same_partition(factory, topic, server):
    with TextConnection(server.text) as text:
        assert text.ask(f"put {topic} 0 3 0 1", b"raw").code == 200
    producer = factory.create_producer(at(0))
    producer.publish(topic)
    assert producer.send_message(Message(topic, b"x")).offset == 23
    assert payloads(server.text, topic)[0] == [b"raw", b"x"]
