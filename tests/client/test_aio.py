"""The asyncio fallback: the same signatures, in any loop."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import threading

import pytest

import metaq
from metaq import aio
from tests.client.cluster import FakeCluster, swallow
from tests.support import PATIENCE

_names = itertools.count()
PAIRS = [
    (metaq.Producer, aio.Producer),
    (metaq.Consumer, aio.Consumer),
    (metaq.PullConsumer, aio.PullConsumer),
    (metaq.Reader, aio.Reader),
    (metaq.TransactionProducer, aio.TransactionProducer),
    (metaq.Transaction, aio.Transaction),
    (metaq.Atomic, aio.Atomic),
]
RENAMED = {"threads": "tasks"}
NOT_SHARED = {"__iter__", "__enter__", "__exit__", "__aiter__", "__anext__", "__aenter__", "__aexit__"}


@pytest.fixture
def topic() -> str:
    return f"aio_test_{os.getpid()}_{next(_names)}"


def public(cls: type) -> dict[str, object]:
    return {
        name: getattr(cls, name)
        for name in dir(cls)
        if (not name.startswith("_") or name == "__init__") and callable(getattr(cls, name))
    }


def parameters(function) -> list[tuple[str, object, object]]:
    return [
        (RENAMED.get(parameter.name, parameter.name), parameter.kind, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_twins_have_the_same_methods_and_parameters(sync, asynchronous):
    """Name by name, kind by kind, default by default; and what waits in one is awaited in the other."""
    assert set(public(sync)) == set(public(asynchronous))
    for name, method in public(sync).items():
        fallback = public(asynchronous)[name]
        assert parameters(method) == parameters(fallback), name
        if method is not fallback and name != "__init__":
            returned = str(inspect.signature(fallback).return_annotation)
            waits = inspect.iscoroutinefunction(fallback) or returned.startswith(("Awaitable[", "AsyncIterator["))
            assert waits or returned.partition("[")[0] == "Atomic", name  # whose own methods are awaited
        if method is not fallback:
            assert fallback.__doc__, name


def test_round_trip(metaq_broker, topic):
    """Send alone, together and by submit; read; consume by iteration and by handler tasks."""

    async def main() -> None:
        async with aio.Producer(metaq_broker.namesrv) as producer:
            await asyncio.gather(*(producer.send(topic, b"%d" % number) for number in range(100)))
            futures = [producer.submit(topic, b"%d" % number) for number in range(100, 200)]
            assert len({(await future).message_id for future in futures}) == 100
            await producer.send_batch([metaq.Message(topic, b"200"), metaq.Message(topic, b"201")])
            keyed = [await producer.send(topic, b"%d" % number, ordering_key="k") for number in range(202, 206)]
            assert len({receipt.queue for receipt in keyed}) == 1
        async with aio.Reader(metaq_broker.namesrv, topic, stop_at_end=True) as reader:
            assert sorted([int(message.body) async for message in reader]) == list(range(206))
        seen: set[int] = set()
        async with aio.Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="first") as consumer:
            async for message in consumer:
                async with message:
                    seen.add(int(message.body))
                if len(seen) == 100:
                    break

            async def handler(message: metaq.ReceivedMessage) -> None:
                await asyncio.sleep(0)
                seen.add(int(message.body))
                if len(seen) == 206:
                    consumer.stop()

            await asyncio.wait_for(consumer.run(handler, tasks=5), PATIENCE)
        assert seen == set(range(206))

    asyncio.run(main())


def test_failing_handler_retries_and_cancelling_leaves_messages_unfinished(metaq_broker, topic):
    """A cancelled task neither acknowledges nor sends back."""

    async def main() -> None:
        async with aio.Producer(metaq_broker.namesrv) as producer:
            await producer.send(topic, b"x")
        async with aio.Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="first") as consumer:
            began = asyncio.Event()

            async def handler(message: metaq.ReceivedMessage) -> None:
                began.set()
                await asyncio.sleep(60)

            task = asyncio.create_task(consumer.run(handler))
            await asyncio.wait_for(began.wait(), PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with aio.Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="first") as consumer:
            message = await consumer.receive(PATIENCE)
            assert message is not None
            assert message.reconsume_times == 0
            message.ack()

    asyncio.run(main())


def test_tasks_of_run_share_one_queue(metaq_broker, topic):
    """All of them are busy at a time, though the messages came in one chunk."""

    async def main() -> None:
        async with aio.Producer(metaq_broker.namesrv) as producer:
            for number in range(8):
                await producer.send(topic, b"%d" % number, ordering_key="one queue")
        async with aio.Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
            barrier = asyncio.Barrier(8)

            async def handler(message: metaq.ReceivedMessage) -> None:
                await barrier.wait()
                consumer.stop()

            await asyncio.wait_for(consumer.run(handler, tasks=8), PATIENCE)

    asyncio.run(main())


def test_receive_that_times_out_leaves_nothing_behind(metaq_broker, topic):
    """A program may ask for ever; and what is there already comes without waiting."""

    async def main() -> None:
        async with aio.Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
            for _ in range(100):
                assert await consumer.receive(0.0005) is None
            assert consumer._handover._waiting == []
            async with aio.Producer(metaq_broker.namesrv) as producer:
                await producer.send(topic, b"x")
            message = await consumer.receive(PATIENCE)
            assert message is not None
            message.ack()

    asyncio.run(main())


def test_one_process_many_loops_one_connection():
    """A4 for tasks: producers made in several event loops share the client core."""
    with FakeCluster() as cluster:

        async def main() -> None:
            async with aio.Producer(cluster.namesrv, instance_name="shared") as producer:
                await asyncio.gather(*(producer.send("orders", b"%d" % number) for number in range(320)))

        with metaq.Producer(cluster.namesrv, instance_name="shared") as other:
            other.send("orders", b"x")
            for _ in range(3):
                asyncio.run(main())
            assert cluster.accepted == 2
        assert sum(map(len, cluster.stored.values())) == 961


def test_tasks_that_are_cancelled_take_nobody_with_them():
    """Of a thousand sends of two loops every third is cancelled while it waits: the others have their own receipts, and no
    message is stored twice.
    """
    with FakeCluster() as cluster, metaq.Producer(cluster.namesrv, instance_name="shared") as first:
        first.send("orders", b"first")
        receipts: dict[bytes, metaq.SendReceipt] = {}
        failed: list[BaseException] = []
        shared = aio.Producer(cluster.namesrv, instance_name="shared", timeout=PATIENCE)

        async def main(loop_number: int) -> None:
            async def send(number: int) -> None:
                body = b"%d-%d" % (loop_number, number)
                receipts[body] = await shared.send("orders", body, tag=f"t{number % 3}")

            for turn in range(5):
                tasks = [asyncio.create_task(send(100 * turn + number)) for number in range(100)]
                await asyncio.sleep(0)  # all of them wait
                for task in tasks[::3]:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                failed.extend(one for one in ended if isinstance(one, BaseException))

        threads = [threading.Thread(target=lambda n=n: asyncio.run(main(n)), daemon=True) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        asyncio.run(shared.close())
        assert len(failed) == 2 * 5 * 34
        assert {type(error) for error in failed} == {asyncio.CancelledError}
        assert len(receipts) == 2 * 5 * 66
        for body, receipt in receipts.items():
            _, stored, text = cluster.stored["orders", receipt.queue.queue_id][receipt.offset]
            assert stored == body
            assert receipt.message_id in text.decode()
        bodies = [body for log in cluster.stored.values() for _, body, _ in log]
        assert len(bodies) == len(set(bodies))


def test_awaited_sends_check_what_they_are_given():
    """The short way takes what it knows, and the careful one says what is wrong, also once a batch is open."""
    with FakeCluster() as cluster:

        async def main() -> None:
            async with aio.Producer(cluster.namesrv) as producer:
                await producer.send("orders", b"first")
                opens = [asyncio.create_task(producer.send("orders", b"%d" % number)) for number in range(3)]
                await asyncio.sleep(0)
                for error, body, options in (
                    (TypeError, "text", {}), (TypeError, 5, {}), (TypeError, b"x", {"tag": ["t"]}),
                    (metaq.errors.InvalidMessage, b"", {}), (metaq.errors.InvalidMessage, b"x", {"tag": "a|b"}),
                ):  # fmt: skip
                    with pytest.raises(error):
                        await producer.send("orders", body, **options)
                with pytest.raises(TypeError):
                    await producer.send(5, b"x")
                await asyncio.gather(*opens)
                sent = [producer.send("orders", bytearray(b"array")), producer.send("orders", memoryview(b"view"))]
                await asyncio.gather(*sent)
            with pytest.raises(metaq.ClientClosed):
                await producer.send("orders", b"late")

        asyncio.run(main())
        assert sorted(body for log in cluster.stored.values() for _, body, _ in log) == [
            b"0",
            b"1",
            b"2",
            b"array",
            b"first",
            b"view",
        ]


def test_full_buffer_never_blocks_the_loop():
    """submit raises BufferFull; send waits, and the loop goes on meanwhile."""
    with FakeCluster() as cluster:
        from metaq.wire.codes import RequestCode

        cluster.script[RequestCode.SEND_BATCH_MESSAGE] = cluster.script[RequestCode.SEND_MESSAGE_V2] = swallow

        async def main() -> None:
            limits = {"max_pending_bytes": 10_000, "batch_bytes": 5_000, "timeout": 1.0}
            async with aio.Producer(cluster.namesrv, **limits) as producer:
                with pytest.raises(metaq.BufferFull):
                    for _ in range(1000):
                        producer.submit("orders", bytes(100))
                waiting = asyncio.create_task(producer.send("orders", b"x"))
                await asyncio.sleep(0.05)
                assert not waiting.done()
                cluster.script.clear()
                assert (await asyncio.wait_for(waiting, PATIENCE)).offset >= 0

        asyncio.run(main())


def test_waits_end_on_time(metaq_broker, topic):
    """receive(timeout) gives None, wait_assigned and flush raise RequestTimeout."""

    async def main() -> None:
        async with aio.Consumer(metaq_broker.namesrv, group=topic, topics=topic) as consumer:
            assert await consumer.receive(0.05) is None
            with pytest.raises(metaq.RequestTimeout):
                await consumer.wait_assigned(0.05)

    asyncio.run(main())
