"""Where a group without progress begins, in topics that are young."""

from __future__ import annotations

import asyncio
import itertools
import os
import re

import pytest

from metaq import Consumer, MessageQueue, Producer, PullConsumer, aio
from metaq.admin import Admin
from metaq.in_pieces import finish
from metaq.testing.embedded import EmbeddedBroker
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import reply
from tests.client.cluster import FakeCluster
from tests.client.moments import a_moment
from tests.support import PATIENCE, eventually

_names = itertools.count()


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def producer(broker):
    with Producer(broker.namesrv) as made:
        yield made


@pytest.fixture
def topic(broker) -> str:
    """A topic of two queues."""
    name = f"begun_{os.getpid()}_{next(_names)}"
    make(broker, name, 2)
    return name


def make(broker, topic: str, queues: int) -> None:
    with Admin(broker.namesrv) as admin:
        admin.create_topic(topic, queues=queues)


def queues_of(producer: Producer, topic: str, count: int) -> list[MessageQueue]:
    return eventually(lambda: len(found := producer.queues(topic)) == count and sorted(found))


def fill(producer: Producer, queues: list[MessageQueue], *numbers: int) -> None:
    """A message of each number in each queue."""
    for queue in queues:
        for number in numbers:
            producer.send(queue.topic, b"%d" % number, queue=queue)


def received(consumer: Consumer, count: int) -> list[int]:
    """The next messages, which must be all that there are."""
    found = []
    for _ in range(count):
        message = consumer.receive(PATIENCE)
        assert message is not None
        found.append(int(message.body))
        message.ack()
    assert consumer.receive(0.1) is None
    return sorted(found)


def test_a_moment_holds_in_a_young_topic(broker, producer, topic):
    queues = queues_of(producer, topic, 2)
    fill(producer, queues, *range(10))
    moment = a_moment()
    fill(producer, queues, 10, 11, 12)
    with Consumer(broker.namesrv, group=topic, topics=topic, start=moment) as consumer:
        assert received(consumer, 6) == [10, 10, 11, 11, 12, 12]
        consumer.commit()
    # Nothing is forgotten of where it stands, nor of a progress of 0.
    with Consumer(broker.namesrv, group=topic, topics=topic, start=moment) as consumer:
        fill(producer, queues, 13)
        assert received(consumer, 2) == [13, 13]


def test_a_moment_to_come_gives_nothing_of_before(broker, producer, topic):
    queues = queues_of(producer, topic, 2)
    fill(producer, queues, *range(3))
    with Consumer(broker.namesrv, group=topic, topics=topic, start=a_moment() + 86_400) as consumer:
        consumer.wait_assigned(PATIENCE)
        assert consumer.receive(0.2) is None


def test_latest_is_the_end_of_a_young_topic(broker, producer, topic):
    queues = queues_of(producer, topic, 2)
    fill(producer, queues, *range(10))
    with Consumer(broker.namesrv, group=topic, topics=topic) as consumer:
        consumer.wait_assigned(PATIENCE)
        fill(producer, queues, 10)
        assert received(consumer, 2) == [10, 10]


def test_asyncio_begins_there_too(broker, producer, topic):
    queues = queues_of(producer, topic, 2)
    fill(producer, queues, *range(3))

    async def read() -> list[bytes]:
        async with aio.Consumer(broker.namesrv, group=topic, topics=topic, start="latest") as consumer:
            await consumer.wait_assigned(PATIENCE)
            await asyncio.to_thread(fill, producer, queues[:1], 3)
            message = await consumer.receive(PATIENCE)
            return [message.body]

    assert asyncio.run(read()) == [b"3"]


@pytest.mark.parametrize("told", [True, False], ids=["assigned", "registered"])
@pytest.mark.parametrize("start", ["latest", "moment"])
def test_a_pull_consumer_begins_there_too(broker, producer, topic, start, told):
    """`position` of any queue, also when the group has progress in another; `committed` tells that there is none."""
    queues = queues_of(producer, topic, 2)
    fill(producer, queues, *range(10))
    moment = a_moment()
    fill(producer, queues, *range(10, 13))
    at = 13 if start == "latest" else 10
    with PullConsumer(broker.namesrv, group=topic, start=moment if start == "moment" else start) as consumer:
        assert [consumer.position(queue) for queue in queues] == [at, at]
        if told:
            consumer.assign(queues[:1])
            consumer.commit()
            consumer.update(queues[0], 11)
            consumer.commit()
            assert [consumer.committed(queue) for queue in queues] == [11, None]
            consumer.assign(queues)
            assert [consumer.position(queue) for queue in queues] == [11, at]
        else:
            consumer.register_topics(topic)
            consumer.wait_assigned(PATIENCE)
            assert [consumer.position(queue) for queue in queues] == [at, at]


def test_progress_of_zero_is_progress(broker, producer, topic):
    queues = queues_of(producer, topic, 2)
    with Consumer(broker.namesrv, group=topic, topics=topic) as consumer:
        consumer.wait_assigned(PATIENCE)
        consumer.commit()
    fill(producer, queues, 0, 1)
    with Consumer(broker.namesrv, group=topic, topics=topic) as consumer:
        assert received(consumer, 4) == [0, 0, 1, 1]


def test_a_topic_that_comes_later_is_read_from_its_first_message(broker, producer):
    """Whether its name or a pattern was subscribed to."""
    name = f"begun_{os.getpid()}_{next(_names)}"
    common = {"poll_name_server_interval": 0.2}
    with (
        Consumer(broker.namesrv, group=name, topics=name, instance_name=f"{name}-1", **common) as named,
        Consumer(
            broker.namesrv, group=f"{name}-p", topics=re.compile(f"{name}(-old)?"), instance_name=f"{name}-2", **common
        ) as matching,
    ):
        eventually(lambda: named._member._starting._there.get(name) == frozenset())
        eventually(lambda: matching._member._discovery._looked)
        make(broker, name, 1)
        fill(producer, queues_of(producer, name, 1), 0, 1)
        assert received(named, 2) == received(matching, 2) == [0, 1]


def test_a_topic_that_a_pattern_finds_at_once_is_read_from_the_end(broker, producer, topic):
    queues = queues_of(producer, topic, 2)
    fill(producer, queues, 0, 1)
    with Consumer(broker.namesrv, group=topic, topics=re.compile(topic)) as consumer:
        eventually(lambda: len(consumer.queues) >= 2)
        fill(producer, queues, 2)
        assert received(consumer, 2) == [2, 2]


def test_queues_that_are_added_are_read_from_their_first_message(broker, producer, topic):
    """While a member runs, and while none does: the group has progress in the others."""
    with Consumer(broker.namesrv, group=topic, topics=topic, poll_name_server_interval=0.2) as consumer:
        consumer.wait_assigned(PATIENCE)
        make(broker, topic, 3)
        fill(producer, queues_of(producer, topic, 3)[2:], 0, 1)
        assert received(consumer, 2) == [0, 1]
        consumer.commit()
    make(broker, topic, 4)
    fill(producer, queues_of(producer, topic, 4)[3:], 2, 3)
    with Consumer(broker.namesrv, group=topic, topics=topic) as consumer:
        assert received(consumer, 2) == [2, 3]


def test_in_a_namespace_it_is_the_same(broker):
    name = f"begun_{os.getpid()}_{next(_names)}"
    make(broker, f"shop%{name}", 2)
    options = {"group": name, "topics": name, "namespace": "shop"}
    with Producer(broker.namesrv, namespace="shop") as producer:
        queues = queues_of(producer, name, 2)
        fill(producer, queues, 0, 1)
        with Consumer(broker.namesrv, **options) as consumer:
            consumer.wait_assigned(PATIENCE)
            fill(producer, queues, 2)
            assert received(consumer, 2) == [2, 2]
        make(broker, f"shop%{name}", 3)
        fill(producer, queues_of(producer, name, 3)[2:], 3)
        with Consumer(broker.namesrv, **options) as consumer:
            assert received(consumer, 1) == [3]


# ------------------------------------------------------------------ RocketMQ 4


@pytest.fixture
def foreign():
    """A RocketMQ 4: it answers 0 for young queues, whatever else the question says."""

    def position(session, command):
        key = command.ext["topic"], int(command.ext["queueId"])
        return reply(command, 0, headers.OffsetReplyHeader(offset=cluster.committed.get(key, 0)))

    def stats(session, command):
        offsets = {
            MessageQueue(topic, "broker-a", queue_id): bodies.ConsumeStats(0, offset, 0)
            for (topic, queue_id), offset in cluster.committed.items()
        }
        return reply(command, body=finish(bodies.consume_stats(offsets.items(), 0.0)))

    with FakeCluster() as cluster:
        cluster.topics = {"orders": 1}
        cluster.store(b"0", b"1", b"2")
        cluster.script |= {RequestCode.QUERY_CONSUMER_OFFSET: position, RequestCode.GET_CONSUME_STATS: stats}
        yield cluster


@pytest.mark.parametrize(("start", "count"), [("latest", 1), (0.001, 3), (0.002, 2), (4e9, 1)])
def test_a_rocketmq_4_is_asked_whether_the_group_has_begun(foreign, start, count):
    """Its messages were stored at 0, 1 and 2 ms."""
    with Consumer(foreign.namesrv, group="g", topics="orders", start=start) as consumer:
        consumer.wait_assigned(PATIENCE)
        foreign.store(b"3")
        assert received(consumer, count) == list(range(4 - count, 4))


def test_zero_at_a_rocketmq_4_may_be_progress(foreign):
    foreign.committed["orders", 0] = 0
    with Consumer(foreign.namesrv, group="g", topics="orders") as consumer:
        assert received(consumer, 3) == [0, 1, 2]
