"""Calls that wait end when their object is closed or stopped."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from metaq import Consumer, Message, Producer, PullConsumer, Reader, aio
from metaq.admin import Admin
from metaq.errors import ClientClosed, MetaqError
from metaq.wire.codes import RequestCode, ResponseCode
from tests.client.cluster import FakeCluster, refuse, swallow
from tests.support import PATIENCE, eventually

_names = itertools.count()

LONG = 10 * PATIENCE
"""Seconds that no test waits: a call that takes as long has not been ended."""


@pytest.fixture
def cluster():
    """An empty topic of one queue. Another client stays connected, so that closing the one under test closes no connection."""
    with FakeCluster() as running:
        running.topics["orders"] = 1
        yield running


@pytest.fixture
def beside(cluster):
    """What keeps the connections that all clients share."""
    with Producer(cluster.namesrv) as producer:
        producer.send("orders", b"there")
        yield producer


def member_of(kind: type, cluster: FakeCluster, **options: object):
    return kind(cluster.namesrv, group=f"g{next(_names)}", topics="orders", **options)


def waiting(call: Callable[[], object], pool: ThreadPoolExecutor) -> Future:
    """The call in a thread, once it waits."""
    begun = threading.Event()

    def run() -> object:
        begun.set()
        return call()

    future = pool.submit(run)
    assert begun.wait(PATIENCE)
    time.sleep(0.05)  # most of the way into the call; the outcome is the same if it has not come so far
    assert not future.done()
    return future


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.mark.parametrize("end", ["stop", "close"])
def test_poll_and_held_pulls_end(cluster, beside, pool, end):
    cluster.script[RequestCode.PULL_MESSAGE] = swallow  # held
    with member_of(PullConsumer, cluster, hold=60, hold_timeout=LONG) as consumer:
        consumer.wait_assigned(PATIENCE)
        (queue,) = consumer.queues
        poll = waiting(lambda: consumer.poll(LONG), pool)
        pull = waiting(lambda: consumer.pull(queue, 0, wait=True), pool)
        del cluster.script[RequestCode.PULL_MESSAGE]
        getattr(consumer, end)()
        assert poll.result(PATIENCE) == []
        if end == "stop":  # asked again, without waiting at the broker
            assert [message.body for message in pull.result(PATIENCE).messages] == [b"there"]
            assert consumer.poll(LONG) == []
        else:
            with contextlib.suppress(ClientClosed):  # answered just before the end, or not
                pull.result(PATIENCE)


@pytest.mark.parametrize("end", ["stop", "close"])
@pytest.mark.parametrize("kind", [Consumer, PullConsumer])
def test_wait_assigned_ends(cluster, beside, pool, kind, end):
    cluster.script[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = swallow
    with member_of(kind, cluster) as consumer:
        assigned = waiting(lambda: consumer.wait_assigned(None), pool)
        getattr(consumer, end)()
        with pytest.raises(ClientClosed, match="was stopped"):
            assigned.result(PATIENCE)
        with pytest.raises(ClientClosed):
            consumer.wait_assigned(None)


@pytest.mark.parametrize("kind", [Consumer, PullConsumer])
def test_commit_ends(cluster, beside, pool, kind):
    with member_of(kind, cluster, commit_interval=LONG) as consumer:
        consumer.wait_assigned(PATIENCE)
        if kind is PullConsumer:
            consumer.update(consumer.queues[0], 1)
        cluster.script[RequestCode.UPDATE_CONSUMER_OFFSET] = refuse(ResponseCode.SYSTEM_BUSY)
        commit = waiting(lambda: consumer.commit(None), pool)
        consumer.close()
        with pytest.raises(ClientClosed, match="was closed"):
            commit.result(PATIENCE)


@pytest.mark.parametrize("end", ["stop", "close"])
def test_receiving_and_iterating_end(cluster, beside, pool, end):
    consumer = member_of(Consumer, cluster)
    received = [waiting(lambda: consumer.receive(LONG), pool), waiting(lambda: consumer.receive(), pool)]
    iterated = waiting(lambda: list(consumer), pool)
    getattr(consumer, end)()
    assert [one.result(PATIENCE) for one in received] == [None, None]
    assert iterated.result(PATIENCE) == []
    consumer.close()


def test_readers_end(cluster, beside, pool):
    """Where they wait for a message, and where they wait for an answer before the first."""
    reader = Reader(cluster.namesrv, "orders", start="latest")
    reader.seek(offset=1)
    received = waiting(lambda: reader.receive(LONG), pool)
    reader.close()
    assert received.result(PATIENCE) is None
    for call in (lambda one: one.receive(LONG), list, lambda one: one.ranges()):
        cluster.script[RequestCode.GET_MIN_OFFSET] = swallow
        reader = Reader(cluster.namesrv, "orders")
        begun = waiting(lambda: call(reader), pool)  # noqa: B023  called before the next turn
        reader.close()
        with pytest.raises(ClientClosed, match="the reader of topic orders was closed"):
            begun.result(PATIENCE)


def test_requests_end(cluster, beside, pool):
    """The first waits until brokers know the producer, a later one for its reply, another for the acknowledgement."""
    for code in (RequestCode.GET_BROKER_CLUSTER_INFO, None, RequestCode.SEND_MESSAGE_V2):
        producer = Producer(cluster.namesrv, group=f"g{next(_names)}")
        if code is not None:
            cluster.script[code] = swallow
        request = waiting(lambda: producer.request("orders", b"?", timeout=LONG), pool)  # noqa: B023
        closing = pool.submit(producer.close)
        with pytest.raises(ClientClosed, match="the producer was closed"):
            request.result(PATIENCE)
        cluster.script.clear()
        cluster.drop_connections()  # what was sent has its outcome, for which `close` waits
        closing.result(PATIENCE)


def test_a_send_that_waits_for_room_ends(cluster, beside, pool):
    cluster.script[RequestCode.SEND_MESSAGE_V2] = swallow
    producer = Producer(cluster.namesrv, max_pending_bytes=1, timeout=LONG)
    first = producer.submit("orders", b"1")
    eventually(lambda: cluster.count(RequestCode.SEND_MESSAGE_V2) >= 2)
    second = waiting(lambda: producer.submit("orders", b"2"), pool)
    closing = pool.submit(producer.close)
    with pytest.raises(ClientClosed):
        second.result(PATIENCE)
    cluster.script.clear()
    cluster.drop_connections()
    first.result(PATIENCE)
    closing.result(PATIENCE)


def test_an_admin_s_calls_end(cluster, beside, pool):
    cluster.script[RequestCode.GET_BROKER_CLUSTER_INFO] = swallow
    admin = Admin(cluster.namesrv)
    listed = waiting(admin.list_brokers, pool)
    admin.close()
    with pytest.raises(ClientClosed, match="this Admin was closed"):
        listed.result(PATIENCE)


def test_asyncio_s_calls_end(cluster, beside):
    cluster.script[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = swallow

    async def ended(call: Awaitable[object], end: Callable[[], object]) -> object:
        """What becomes of a call that waits when its object ends."""
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0.05)
        assert not task.done()
        if asyncio.iscoroutine(ending := end()):
            await ending
        try:
            return await asyncio.wait_for(task, PATIENCE)
        except MetaqError as error:
            return type(error)

    async def each(iterator) -> list[object]:
        return [one async for one in iterator]

    async def tell() -> list[object]:
        found: list[object] = []
        for name in ("stop", "close"):
            for call in (lambda one: one.receive(LONG), each, lambda one: one.wait_assigned()):
                async with member_of(aio.Consumer, cluster) as one:
                    found.append(await ended(call(one), getattr(one, name)))
            async with member_of(aio.PullConsumer, cluster) as one:
                found.append(await ended(one.poll(LONG), getattr(one, name)))
            async with member_of(aio.PullConsumer, cluster) as one:
                found.append(await ended(one.wait_assigned(), getattr(one, name)))
        reader = aio.Reader(cluster.namesrv, "orders", start="latest")
        found.append(await ended(reader.receive(LONG), reader.close))
        producer = aio.Producer(cluster.namesrv, group="asking")
        found.append(await ended(producer.request("orders", b"?", timeout=LONG), producer.close))
        return found

    once = [None, [], ClientClosed, [], ClientClosed]
    assert asyncio.run(tell()) == [*once, *once, None, ClientClosed]


def test_asyncio_s_send_that_waits_for_room_ends(cluster, beside):
    cluster.script[RequestCode.SEND_MESSAGE_V2] = swallow

    async def tell() -> None:
        producer = aio.Producer(cluster.namesrv, max_pending_bytes=1, timeout=LONG)
        producer.submit(Message("orders", b"1"))
        await asyncio.to_thread(eventually, lambda: cluster.count(RequestCode.SEND_MESSAGE_V2) >= 2)
        second = asyncio.ensure_future(producer.send("orders", b"2"))
        await asyncio.sleep(0.1)
        assert not second.done()
        closing = asyncio.ensure_future(producer.close())
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(second, PATIENCE)
        cluster.script.clear()
        cluster.drop_connections()
        await closing

    asyncio.run(tell())
