"""A program as users write it, for type checkers (test_types.py). Each comment that ignores an error marks one that they must find."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, assert_type

import metaq
from metaq import Json, Text, aio, metaq1


@dataclass
class Order:
    id: int


@dataclass
class Rush(Order):
    until: float


def encode(order: Order) -> bytes:
    return b"%d" % order.id


def decode(body: bytes) -> Order:
    return Order(int(body))


class Own:
    """A serializer of the user's, whose parameters have names of their own."""

    def encode(self, order: Order) -> bytes:
        return encode(order)

    def decode(self, content: bytes) -> Order:
        return decode(content)


# ------------------------------------------------------------------ serializers

assert_type(Json(Order), Json[Order])
assert_type(Json(list[Order]), Json[list[Order]])
assert_type(Json(), Json[Any])
assert_type(Json(Order).decode(b"{}"), Order)
Json(Order).encode("no order")  # type: ignore[arg-type]

# ------------------------------------------------------------------ producers

producer = metaq.Producer("localhost:9876", serialize=Json(Order))
assert_type(producer, metaq.Producer[Order])
assert_type(producer.send("orders", Order(1)), metaq.SendReceipt)
producer.send("orders", Rush(1, 2.0), tag="paid", ordering_key="7")
producer.send(metaq.Message("orders", b"as it is"))
producer.send("orders", 5)  # type: ignore[arg-type]
producer.send("orders", b"{}")  # type: ignore[arg-type]
producer.submit("orders", Order(1)).result()
producer.submit("orders", "no order")  # type: ignore[arg-type]
producer.request("orders", Order(1))
producer.request("orders", {"id": 1})  # type: ignore[arg-type]
producer.send_oneway("orders", Order(1))
producer.send_oneway("orders", 1)  # type: ignore[arg-type]
with producer.atomic() as tx:
    tx.send("orders", Order(1))
    tx.send("orders", 1)  # type: ignore[arg-type]

assert_type(metaq.Producer(serialize=encode), metaq.Producer[Order])
assert_type(metaq.Producer(serialize=Own()), metaq.Producer[Order])
assert_type(metaq.Producer(serialize=Text()), metaq.Producer[str])
metaq.Producer(serialize=Text()).send("lines", b"bytes")  # type: ignore[arg-type]

plain = metaq.Producer("localhost:9876")
plain.send("orders", b"body", tag="paid")
plain.send("orders", bytearray(b"body"))
plain.submit("orders", memoryview(b"body"))
named = metaq.Producer(serialize="json")
named.send("orders", {"id": 1})


def sends(one: metaq.Producer) -> None:
    """A producer without a type is one of anything."""
    one.send("orders", b"body")


def sends_orders(one: metaq.Producer[Order]) -> None:
    one.send("orders", Order(1))


def sends_rush(one: metaq.Producer[Rush]) -> None:
    one.send("orders", Rush(1, 2.0))


sends(plain)
sends(producer)
sends_orders(producer)
sends_orders(plain)
sends_rush(producer)  # what sends any order sends those in a hurry
rushing = metaq.Producer(serialize=Json(Rush))
sends_orders(rushing)  # type: ignore[arg-type]

transactional = metaq.TransactionProducer(
    "localhost:9876", group="payments", check=lambda _: metaq.TransactionOutcome.COMMIT, serialize=Json(Order)
)
assert_type(transactional, metaq.TransactionProducer[Order])
with transactional.transaction("orders", Order(1)) as transaction:
    assert_type(transaction, metaq.Transaction)
transactional.transaction("orders", 1)  # type: ignore[arg-type]

# ------------------------------------------------------------------ consumers

consumer = metaq.Consumer("localhost:9876", group="g", topics="orders", deserialize=Json(Order))
assert_type(consumer, metaq.Consumer[Order])
for message in consumer:
    with message:
        assert_type(message, metaq.ReceivedMessage[Order])
        assert_type(message.value, Order)
        print(message.value.no_field)  # type: ignore[attr-defined]
if (received := consumer.receive(1.0)) is not None:
    assert_type(received.value.id, int)

assert_type(metaq.Consumer(group="g", topics="t", deserialize=decode), metaq.Consumer[Order])
assert_type(metaq.Consumer(group="g", topics="t", deserialize=Own()), metaq.Consumer[Order])
assert_type(metaq.Consumer(group="g", topics="t", deserialize=Text()), metaq.Consumer[str])
assert_type(metaq.Consumer(group="g", topics="t", deserialize=json.loads), metaq.Consumer[Any])
untyped = metaq.Consumer(group="g", topics="t")
for anything in untyped:
    assert_type(anything.value, Any)

puller = metaq.PullConsumer("localhost:9876", group="g", deserialize=Json(Order))
for polled in puller.poll(1.0):
    assert_type(polled.value, Order)
for pulled in puller.pull(puller.queues[0], 0).messages:
    assert_type(pulled, metaq.ReadMessage[Order])
for read in metaq.Reader("localhost:9876", "orders", deserialize=Json(Order)):
    assert_type(read.value, Order)

# ------------------------------------------------------------------ handlers


def takes_message(message: metaq.Message) -> None:
    """What a received message has in common with one to send."""
    print(message.topic, message.body, message.tag, message.keys, message.properties, message.flag)
    print(message.delay_level, message.wait_store_ok)


def takes_received(message: metaq.ReceivedMessage) -> object:
    return metaq.Later() if message.reconsume_times else None


def takes_order(message: metaq.ReceivedMessage[Order]) -> None:
    print(message.value.id)


def takes_text(message: metaq.ReceivedMessage[str]) -> None:
    print(message.value.upper())


def takes_orders(messages: list[metaq.ReceivedMessage[Order]]) -> None:
    print(sum(message.value.id for message in messages))


def takes_messages(messages: list[metaq.Message]) -> None:
    print(len(messages))


def takes_number(number: int) -> None:
    print(number)


consumer.run(takes_message, threads=8)
consumer.run(takes_received)
consumer.run(takes_order)
consumer.run(takes_orders, batch=32)
consumer.run(takes_messages, batch=32)
consumer.run(takes_text)  # type: ignore[arg-type]
consumer.run(takes_number)  # type: ignore[arg-type]
untyped.run(takes_message)
untyped.run(takes_order)

# ------------------------------------------------------------------ asyncio


async def awaits_message(message: aio.Message) -> None:
    print(message.body)


async def awaits_order(message: aio.ReceivedMessage[Order]) -> None:
    print(message.value.id)


async def awaits_text(message: aio.ReceivedMessage[str]) -> None:
    print(message.value.upper())


async def awaits_orders(messages: list[aio.ReceivedMessage[Order]]) -> None:
    print(len(messages))


async def main() -> None:
    async with aio.Producer("localhost:9876", serialize=Json(Order)) as sender:
        assert_type(sender, aio.Producer[Order])
        assert_type(await sender.send("orders", Order(1)), aio.SendReceipt)
        await sender.send(aio.Message("orders", b"as it is"))
        await sender.send("orders", 5)  # type: ignore[arg-type]
        await sender.request("orders", "no order")  # type: ignore[arg-type]
        async with sender.atomic() as several:
            await several.send("orders", Order(1))
            await several.send("orders", 1)  # type: ignore[arg-type]
    async with aio.Producer() as anything:
        await anything.send("orders", b"body")
    async with aio.Consumer(group="g", topics="orders", deserialize=Json(Order)) as receiver:
        async for message in receiver:
            async with message:
                assert_type(message.value, Order)
        await receiver.run(awaits_message, tasks=8)
        await receiver.run(awaits_order)
        await receiver.run(awaits_orders, batch=32)
        await receiver.run(takes_order, processes=8)
        await receiver.run(awaits_text)  # type: ignore[arg-type]
    async with aio.PullConsumer(group="g", deserialize=Json(Order)) as polling:
        assert_type(await polling.poll(), list[metaq.ReadMessage[Order]])
    async with aio.Reader(topic="orders", deserialize=Json(Order)) as reader:
        async for read_message in reader:
            assert_type(read_message.value, Order)


checked: Awaitable[None] = main()


def second_of(topic: str, partitions: Sequence[metaq1.Partition], message: metaq1.Message) -> metaq1.Partition:
    return partitions[1]


async def first_generation(config: metaq1.MetaClientConfig) -> None:
    message = metaq1.Message("orders", b"body", "paid")
    with metaq1.MetaMessageSessionFactory(config) as sessions, sessions.create_producer(second_of) as sync:
        sync.publish("orders")
        assert_type(sync.send_message(message, timeout=1), metaq1.SendResult)
        assert_type(sync.submit(message).result().partition, metaq1.Partition)
        assert_type(sessions.get_partitions("orders"), list[metaq1.Partition])
        with sync.transaction(timeout=1) as transaction:
            assert_type(transaction.key, str)
        sync.send_message(b"body")  # type: ignore[arg-type]
        sessions.create_producer(5)  # type: ignore[arg-type]
    with metaq1.AsyncMetaMessageSessionFactory(config) as unwaited:
        assert_type(unwaited.create_async_producer(window=9).send_message(message), metaq1.SendResult)
    with metaq1.OrderedMetaMessageSessionFactory(config, order_config=lambda _topic: "0:3") as orderly:
        assert_type(orderly.create_producer(second_of).send_message(message), metaq1.SendResult)
    async with metaq1.aio.OrderedMetaMessageSessionFactory(config, partitions_file="partitions.ini") as orderly_too:
        assert_type(await orderly_too.create_producer(second_of).send_message(message), metaq1.SendResult)
    async with metaq1.aio.MetaMessageSessionFactory(config) as factory:
        producer = factory.create_producer()
        await producer.publish("orders")
        assert_type(await producer.send_message(message), metaq1.SendResult)
        assert_type(await producer.submit(message), metaq1.SendResult)
        async with producer.transaction():
            await producer.send_message(message)
