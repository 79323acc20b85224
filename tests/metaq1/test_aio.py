"""`metaq.metaq1.aio`: the same names and arguments, in any loop."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from metaq import metaq1
from metaq.errors import BrokerError, ClientError, NoRoute
from metaq.metaq1 import Message, Partition, aio
from metaq.metaq1.producing.transactions import TransactionState
from tests.client.test_aio import NOT_SHARED, parameters, public
from tests.metaq1.conftest import at
from tests.metaq1.stored import payloads
from tests.support import PATIENCE


def run(main) -> None:
    async def bounded():
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(bounded())


@pytest.mark.parametrize("name", aio.__all__)
def test_twins_have_the_same_methods_and_parameters(name):
    """Defaults are the same objects; what waits in one is awaited in the other."""
    sync, asynchronous = getattr(metaq1, name), getattr(aio, name)
    assert set(public(sync)) - NOT_SHARED == set(public(asynchronous)) - NOT_SHARED
    for method, function in public(sync).items():
        if method not in NOT_SHARED:
            assert parameters(function) == parameters(public(asynchronous)[method]), method
    awaited = {method for method, function in public(asynchronous).items() if inspect.iscoroutinefunction(function)}
    assert {"send_message", "publish", "commit"} <= awaited or name != "MessageProducer"
    assert "submit" not in awaited


def test_sends_are_awaited(config, topic, server):
    async def main():
        async with aio.MetaMessageSessionFactory(config) as factory, factory.create_producer(at(1)) as producer:
            await producer.publish(topic)
            assert (await producer.send_message(Message(topic, b"one", "blue"))).partition == Partition(-1, 1)
            futures = [producer.submit(Message(topic, b"%d" % number)) for number in range(200)]
            offsets = [(await future).offset for future in futures]
            assert offsets == sorted(offsets)
            assert await factory.get_partitions(topic)
            assert list(await factory.get_stats(topic)) == [server.text]
            with pytest.raises(NoRoute):
                await producer.send_message(Message(f"{topic}-none", b"x"))
            await producer.set_default_topic(topic)
            with pytest.raises(BrokerError):
                await producer.send_message(Message(f"{topic}-none", b"x"))

    run(main)
    assert payloads(server.text, topic)[1] == [b"one", *(b"%d" % number for number in range(200))]


def by_name(topic, partitions, message):
    return Partition(-1, int(message.data[-1:]))


def test_a_transaction_belongs_to_its_task_and_to_those_that_it_starts(config, topic, server):
    """Not to one that was there before, or begins its own."""

    async def main():
        async with aio.MetaMessageSessionFactory(config) as factory:
            producer = factory.create_producer(by_name)
            await producer.publish(topic)
            inside, sent = asyncio.Event(), asyncio.Event()

            async def other():
                await inside.wait()
                await producer.send_message(Message(topic, b"other 2"))
                sent.set()

            task = asyncio.create_task(other())
            await asyncio.sleep(0)
            with pytest.raises(KeyError):
                async with producer.transaction() as transaction:
                    inside.set()
                    await asyncio.gather(*(producer.send_message(Message(topic, b"%d" % n)) for n in range(3)))
                    await sent.wait()
                    with pytest.raises(ClientError, match="is awaited"):
                        producer.submit(Message(topic, b"0"))
                    raise KeyError
            await task
            assert (transaction.state, transaction.messages) == (TransactionState.ROLLED_BACK, 3)
            await producer.begin_transaction()
            await producer.send_message(Message(topic, b"mine 0"))
            await producer.commit()
            await producer.begin_transaction()
            await producer.send_message(Message(topic, b"never 0"))
            await producer.rollback()

    run(main)
    assert payloads(server.text, topic) == [[b"mine 0"], [], [b"other 2"]]


def test_a_task_that_outlives_the_block_sends_for_itself(config, topic, server):
    """One that the block has started."""

    async def main():
        async with aio.MetaMessageSessionFactory(config) as factory:
            producer = factory.create_producer(by_name)
            await producer.publish(topic)
            over = asyncio.Event()

            async def later():
                await over.wait()
                await producer.send_message(Message(topic, b"later 1"))

            async with producer.transaction():
                await producer.send_message(Message(topic, b"0"))
                task = asyncio.create_task(later())
            over.set()
            await task

    run(main)
    assert payloads(server.text, topic) == [[b"0"], [b"later 1"], []]


def test_a_cancelled_block_rolls_back(config, topic, server):
    async def main():
        async with aio.MetaMessageSessionFactory(config) as factory:
            producer = factory.create_producer(by_name)
            await producer.publish(topic)
            reached = asyncio.Event()
            transactions = []

            async def work():
                async with producer.transaction() as transaction:
                    transactions.append(transaction)
                    await producer.send_message(Message(topic, b"0"))
                    reached.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert transactions[0].state is TransactionState.ROLLED_BACK

    run(main)
    assert payloads(server.text, topic) == [[], [], []]


def test_the_caller_s_loop_stays_free(config, topic):
    """While publish and a send wait."""

    async def main():
        async with aio.MetaMessageSessionFactory(config) as factory:
            producer = factory.create_producer()
            turns = 0

            async def count():
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            await producer.publish(topic)
            await producer.send_message(Message(topic, b"x"))
            counting.cancel()
            assert turns > 2

    run(main)
