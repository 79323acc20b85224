"""Producers and consumers over HTTP, at the gateway of a broker of this clone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.errors import BrokerError, ClientClosed, ClientError, ConfigError, InvalidMessage
from metaq.metaq1 import (
    RANDOM_PARTITION,
    ConsumerConfig,
    LocalFileOffsetStorage,
    Message,
    MetaClientConfig,
    MetaMessageSessionFactory,
    Partition,
    ReceivedMessage,
)
from metaq.metaq1.http import HttpClientConfig, HttpMessageConsumer, HttpMessageSessionFactory, aio
from tests.interop.metaq1 import OurServer
from tests.support import PATIENCE, eventually

SIZE = 1 << 16


@pytest.fixture
def config(server: OurServer, tmp_path: Path) -> HttpClientConfig:
    return HttpClientConfig(
        server_url=server.http, offsets_path=str(tmp_path / "offsets"), recover_path=str(tmp_path / "recover")
    )


@pytest.fixture
def factory(config: HttpClientConfig) -> Iterator[HttpMessageSessionFactory]:
    with HttpMessageSessionFactory(config) as made:
        yield made


def consuming(
    factory: HttpMessageSessionFactory, topic: str, partitions: list[str], got: list[ReceivedMessage], **options: object
) -> HttpMessageConsumer:
    consumer = factory.create_consumer(
        ConsumerConfig("httpgroup", max_delay_fetch_time=0.05, commit_offset_period=0.05, **options)
    )
    consumer.subscribe(topic, SIZE, got.append, partitions=partitions)
    consumer.complete_subscribe()
    return consumer


def test_what_is_sent_is_consumed_in_order(factory: HttpMessageSessionFactory, topic: str) -> None:
    producer = factory.create_producer()
    sent = [
        producer.send_message(Message(topic, b"%d" % number, "odd" if number % 2 else None), "0-1")
        for number in range(20)
    ]
    assert [one.partition for one in sent] == [Partition(0, 1)] * 20
    assert sent[0].offset == 0 and len({one.message_id for one in sent}) == 20
    got: list[ReceivedMessage] = []
    consumer = consuming(factory, topic, ["0-0", "0-1"], got)
    assert consumer.partitions == {(topic, Partition(0, 0)), (topic, Partition(0, 1))}
    eventually(lambda: len(got) == 20, what="all messages")
    assert [(one.data, one.attribute, one.message_id, one.offset) for one in got] == [
        (b"%d" % number, "odd" if number % 2 else None, sent[number].message_id, sent[number].offset)
        for number in range(20)
    ]


def test_a_message_may_go_anywhere(factory: HttpMessageSessionFactory, topic: str) -> None:
    producer = factory.create_producer()
    futures = [producer.submit(Message(topic, b"x")) for _ in range(30)]
    partitions = {future.result(PATIENCE).partition for future in futures}
    assert partitions == {Partition(-1, number) for number in range(3)}


def test_the_clients_of_both_protocols_share_a_topic(
    factory: HttpMessageSessionFactory, server: OurServer, topic: str
) -> None:
    with MetaMessageSessionFactory(MetaClientConfig(server_url=f"meta://{server.text}")) as other:
        producer = other.create_producer(lambda topic, partitions, message: Partition(-1, 2))
        producer.publish(topic)
        producer.send_message(Message(topic, b"by the text protocol"))
        factory.create_producer().send_message(Message(topic, b"by HTTP"), Partition(0, 2))
        got: list[ReceivedMessage] = []
        consuming(factory, topic, ["0-2"], got)
        eventually(lambda: len(got) == 2, what="both messages")
        assert [one.data for one in got] == [b"by the text protocol", b"by HTTP"]


def test_offsets_are_kept_and_the_next_goes_on_there(config: HttpClientConfig, topic: str) -> None:
    for first in (0, 3):
        with HttpMessageSessionFactory(config) as factory:
            producer = factory.create_producer()
            for number in range(3):
                producer.send_message(Message(topic, b"%d" % (first + number)), "0-0")
            got: list[ReceivedMessage] = []
            consuming(factory, topic, ["0-0"], got)
            eventually(lambda got=got: len(got) >= 3, what="the messages")
        assert [one.data for one in got] == [b"%d" % (first + number) for number in range(3)]
    stored = LocalFileOffsetStorage(config.offsets_path).load(topic, "httpgroup", Partition(0, 0))
    assert stored is not None and stored.offset == 6 * 21 and stored.message_id == got[-1].message_id


def test_who_begins_at_the_end_follows_the_301(factory: HttpMessageSessionFactory, topic: str) -> None:
    """The end is where a get at the largest offset is moved to."""
    producer = factory.create_producer()
    producer.send_message(Message(topic, b"before"), "0-0")
    got: list[ReceivedMessage] = []
    consumer = consuming(factory, topic, ["0-0"], got, consume_from_max_offset=True)
    storage = LocalFileOffsetStorage(factory.config.offsets_path)
    eventually(lambda: storage.load(topic, "httpgroup", Partition(0, 0)), what="the end to be known")
    producer.send_message(Message(topic, b"after"), "0-0")
    eventually(lambda: got, what="the message")
    assert [one.data for one in got] == [b"after"]
    assert consumer.group == "httpgroup"


def test_a_message_that_fails_comes_again(factory: HttpMessageSessionFactory, topic: str) -> None:
    factory.create_producer().send_message(Message(topic, b"x"), "0-0")
    tries = threading.Semaphore(0)
    count = 0

    def listen(message: ReceivedMessage) -> None:
        nonlocal count
        count += 1
        tries.release()
        if count < 3:
            raise ValueError(message.data)

    consumer = factory.create_consumer(ConsumerConfig("again", max_delay_fetch_time=0.05))
    consumer.subscribe(topic, SIZE, listen, partitions=[Partition(0, 0)])
    consumer.complete_subscribe()
    for _ in range(3):
        assert tries.acquire(timeout=PATIENCE)


def test_a_get_returns_messages_or_nothing(factory: HttpMessageSessionFactory, topic: str) -> None:
    consumer = factory.create_consumer()
    assert consumer.get(topic, "0-0", 0) is None
    factory.create_producer().send_message(Message(topic, b"x"), "0-0")
    found = consumer.get(topic, "0-0", 0)
    assert found is not None and [one.data for one in found] == [b"x"] and found.offset == 21
    assert consumer.get(topic, "0-0", 21) is None
    with pytest.raises(ConfigError):
        consumer.get(topic, "0-0", 0, 0)


def test_refusals_are_errors_with_the_servers_code(factory: HttpMessageSessionFactory, topic: str) -> None:
    producer = factory.create_producer()
    with pytest.raises(BrokerError, match="wrong partition 9") as caught:
        producer.send_message(Message(topic, b"x"), "0-9")
    assert caught.value.code == 500
    with pytest.raises(BrokerError, match="do not accept topic nobody"):
        producer.submit(Message("nobody", b"x")).result(PATIENCE)
    with pytest.raises(InvalidMessage):
        producer.send_message(Message(topic, b"x"), "first")
    with pytest.raises(InvalidMessage, match="too large"):
        producer.send_message(Message(topic, b"x" * (1 << 20)))
    with pytest.raises(TypeError):
        producer.send_message(b"x")


def test_partitions_are_named(factory: HttpMessageSessionFactory, topic: str) -> None:
    consumer = factory.create_consumer()
    with pytest.raises(ConfigError, match="name them"):
        consumer.subscribe(topic, SIZE, print)
    with pytest.raises(ConfigError, match="any partition"):
        consumer.subscribe(topic, SIZE, print, partitions=[RANDOM_PARTITION])
    with pytest.raises(InvalidMessage):
        consumer.subscribe(topic, SIZE, print, partitions=["x"])
    with pytest.raises(TypeError):
        consumer.subscribe(topic, SIZE, print, partitions="0-0")
    with pytest.raises(ClientError, match="does not tell"):
        factory.create_producer()._core.run(lambda: factory._partitions(topic))
    named = factory.create_consumer(ConsumerConfig("g", partition="0-2"))
    named.subscribe(topic, SIZE, print)
    named.complete_subscribe()
    assert named.partitions == {(topic, Partition(0, 2))}


def test_what_is_closed_takes_nothing(factory: HttpMessageSessionFactory, config: HttpClientConfig, topic: str) -> None:
    producer, consumer = factory.create_producer(), factory.create_consumer()
    producer.close()
    consumer.close()
    for call in (lambda: producer.send_message(Message(topic, b"x")), lambda: consumer.get(topic, "0-0", 0)):
        with pytest.raises(ClientClosed):
            call()
    with HttpMessageSessionFactory(config) as short:
        futures = [short.create_producer().submit(Message(topic, b"%d" % number), "0-0") for number in range(50)]
    assert {future.result(PATIENCE).partition for future in futures} == {Partition(0, 0)}, (
        "what is under way still ends"
    )
    with pytest.raises(ClientClosed):
        short.create_producer()


def test_asyncio_has_the_same(config: HttpClientConfig, topic: str) -> None:
    async def act() -> None:
        async with aio.HttpMessageSessionFactory(config) as factory:
            producer = factory.create_producer()
            await producer.send_message(Message(topic, b"one"), "0-0")
            await producer.submit(Message(topic, b"two"), "0-0")
            got: asyncio.Queue[bytes] = asyncio.Queue()

            async def listen(message: ReceivedMessage) -> None:
                await got.put(message.data)

            consumer = factory.create_consumer(ConsumerConfig("httpgroup", max_delay_fetch_time=0.05))
            consumer.subscribe(topic, SIZE, listen, partitions=["0-0"])
            await consumer.complete_subscribe()
            async with asyncio.timeout(PATIENCE):
                assert [await got.get(), await got.get()] == [b"one", b"two"]
            found = await consumer.get(topic, "0-0", 0)
            assert found is not None and [one.data for one in found] == [b"one", b"two"]

    asyncio.run(act())
