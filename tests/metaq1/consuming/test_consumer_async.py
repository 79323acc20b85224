"""The consumer for asyncio: listeners in the user's loop."""

from __future__ import annotations

import asyncio

import pytest

from metaq.metaq1 import Message, MetaClientConfig, Partition, ReceivedMessage, aio
from metaq.metaq1.consuming.handing import HandedBack, Handing, Single, Work
from metaq.metaq1.consuming.subscriptions import subscription
from tests.metaq1.conftest import at
from tests.metaq1.consuming.conftest import quick
from tests.support import PATIENCE


async def sent(factory: aio.MetaMessageSessionFactory, topic: str, *bodies: bytes) -> None:
    async with factory.create_producer(at(0)) as producer:
        await producer.publish(topic)
        for body in bodies:
            await producer.send_message(Message(topic, body))


def test_coroutines_are_called_in_the_users_loop_in_order(config: MetaClientConfig, topic: str) -> None:
    async def program() -> None:
        got: list[bytes] = []
        done = asyncio.Event()
        here = asyncio.get_running_loop()

        async def listener(message: ReceivedMessage) -> None:
            assert asyncio.get_running_loop() is here
            await asyncio.sleep(0)
            got.append(message.data)
            if message.data == b"b" and got.count(b"b") == 1:
                raise ValueError("once")
            if message.data == b"c":
                done.set()

        async with aio.MetaMessageSessionFactory(config) as factory:
            await sent(factory, topic, b"a", b"b", b"c")
            async with factory.create_consumer(quick()).subscribe(topic, 1 << 20, listener) as consumer:
                await consumer.complete_subscribe()
                async with asyncio.timeout(PATIENCE):
                    await done.wait()
            assert got == [b"a", b"b", b"b", b"c"]

    asyncio.run(program())


def test_rejected_messages_of_coroutines(config: MetaClientConfig, topic: str) -> None:
    """Kept in a file, and tried again by the coroutine; a reject handler may be one, too."""

    async def program() -> None:
        got: list[bytes] = []
        handled: list[bytes] = []
        failing = True
        done, again = asyncio.Event(), asyncio.Event()

        async def listener(message: ReceivedMessage) -> None:
            if message.data == b"bad" and failing:
                raise ValueError("bad")
            got.append(message.data)
            (done if message.data == b"end" else again).set()

        async def handler(message: ReceivedMessage, consumer: object) -> None:
            await asyncio.sleep(0)
            handled.append(message.data)

        async with aio.MetaMessageSessionFactory(config) as factory:
            await sent(factory, topic, b"bad", b"end")
            for group, recover in (("own", handler), ("g", "local")):
                done.clear()
                consumer = factory.create_consumer(quick(group, max_fetch_retries=0), recover=recover)
                consumer.subscribe(topic, 1 << 20, listener)
                await consumer.complete_subscribe()
                async with asyncio.timeout(PATIENCE):
                    await done.wait()
                    if recover == "local":
                        failing = False
                        await again.wait()
                await consumer.shutdown()
        assert handled == [b"bad"]
        assert got == [b"end", b"end", b"bad"]

    asyncio.run(program())


def test_get_and_browse(config: MetaClientConfig, topic: str) -> None:
    async def program() -> None:
        async with aio.MetaMessageSessionFactory(config) as factory:
            await sent(factory, topic, b"a", b"b")
            found = await factory.create_consumer(quick()).get(topic, "0-0", 0)
            assert found is not None
            assert [message.data for message in found] == [b"a", b"b"]
            assert [message.data async for message in factory.create_topic_browser(topic)] == [b"a", b"b"]

    asyncio.run(program())


def test_a_block_that_a_closing_loop_forgets_is_handed_back() -> None:
    """The loop has been told of the block, and is closed before its next round: the consumer must not wait for that for ever."""

    async def never(message: ReceivedMessage) -> None:
        raise AssertionError("the loop is closed")

    def ignore(message: ReceivedMessage) -> None:
        del message

    async def main() -> None:
        loop = asyncio.new_event_loop()
        one = subscription("t", 1 << 20, never, None, None, auto_ack=True, asyncio_allowed=True)
        work = Work(Single(ReceivedMessage("t", b"a", None, 1, 0, Partition(0, 0), 0, 30)), one, ignore, skip=False)
        handed = asyncio.create_task(Handing(1, loop).hand(work))
        await asyncio.sleep(0)
        loop.close()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(HandedBack, match="the event loop has ended"):
                await handed

    asyncio.run(main())


def test_a_loop_that_has_ended_loses_nothing(config: MetaClientConfig, topic: str) -> None:
    """The messages are handed to whoever comes next."""
    got: list[bytes] = []

    async def begin() -> aio.MetaMessageSessionFactory:
        factory = aio.MetaMessageSessionFactory(config)

        async def never(message: ReceivedMessage) -> None:
            await asyncio.Event().wait()

        await sent(factory, topic, b"a")
        await factory.create_consumer(quick()).subscribe(topic, 1 << 20, never).complete_subscribe()
        return factory

    async def go_on(factory: aio.MetaMessageSessionFactory) -> None:
        await factory.shutdown()
        done = asyncio.Event()

        async def listener(message: ReceivedMessage) -> None:
            got.append(message.data)
            done.set()

        async with aio.MetaMessageSessionFactory(config) as other:
            await other.create_consumer(quick()).subscribe(topic, 1 << 20, listener).complete_subscribe()
            async with asyncio.timeout(PATIENCE):
                await done.wait()

    factory = asyncio.run(begin())
    asyncio.run(go_on(factory))
    assert got == [b"a"]
