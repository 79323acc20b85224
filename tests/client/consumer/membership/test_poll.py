"""assign, poll, seek, pause and commit of the pull consumer, as users of Kafka know them."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time

import pytest

import metaq
from metaq import MessageQueue, Producer, PullConsumer, aio
from metaq.admin import Admin
from metaq.client.consumer.membership import polling
from metaq.errors import ConfigError
from metaq.testing.embedded import EmbeddedBroker
from tests.support import PATIENCE, eventually

_names = itertools.count()


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic(broker) -> str:
    """A topic of two queues."""
    name = f"polled_{os.getpid()}_{next(_names)}"
    with Admin(broker.namesrv) as admin:
        admin.create_topic(name, queues=2)
    return name


@pytest.fixture
def queues(broker, topic) -> list[MessageQueue]:
    with Producer(broker.namesrv) as producer:
        return eventually(lambda: len(found := producer.queues(topic)) == 2 and sorted(found))


def fill(broker, queue: MessageQueue, count: int, first: int = 0) -> None:
    with Producer(broker.namesrv) as producer:
        for number in range(first, first + count):
            producer.send(queue.topic, b"%d" % number, queue=queue)


def consumer(broker, topic: str, **options: object) -> PullConsumer:
    return PullConsumer(broker.namesrv, **{"group": topic, "start": "earliest", "commit_interval": 0.1, **options})


def drained(member: PullConsumer, count: int) -> list[metaq.StoredMessage]:
    got: list[metaq.StoredMessage] = []
    eventually(lambda: got.extend(member.poll(0.5)) or len(got) >= count)
    return got


def numbers(messages, queue: MessageQueue) -> list[int]:
    return [int(message.body) for message in messages if message.queue == queue]


def test_an_assigned_consumer_polls_in_the_order_of_each_queue(broker, topic, queues):
    """All messages once, whatever the sizes of the polls; then nothing, after the timeout."""
    for queue in queues:
        fill(broker, queue, 50)
    with consumer(broker, topic) as member:
        assert member.poll(0.05) == [], "nothing is assigned"
        member.assign(queues)
        assert member.queues == queues
        got = []
        while len(got) < 100:
            polled = member.poll(PATIENCE, count=7)
            assert 1 <= len(polled) <= 7
            got += polled
        for queue in queues:
            assert numbers(got, queue) == list(range(50))
            assert member.position(queue) == 50
        began = time.monotonic()
        assert member.poll(0.3) == []
        assert time.monotonic() - began >= 0.25


def test_a_poll_that_waits_gets_a_message_at_once(broker, topic, queues):
    with consumer(broker, topic) as member:
        member.assign(queues)
        assert member.poll(0.1) == []
        timer = threading.Timer(0.3, fill, (broker, queues[1], 1))
        timer.start()
        assert [message.body for message in member.poll(PATIENCE)] == [b"0"]
        timer.join()


def test_what_was_polled_counts_with_the_next_poll_or_a_commit(broker, topic, queues):
    """A member that dies in the middle of its batch loses nothing: the next one begins with that batch."""
    queue = queues[0]
    fill(broker, queue, 9)
    with consumer(broker, topic) as member:
        member.assign([queue])
        assert len(member.poll(PATIENCE, count=3)) == 3
        member._core.thread.run(member._member.persist())
        assert member.committed(queue) in (None, 0), "nobody has said that they are consumed"
        assert len(member.poll(PATIENCE, count=3)) == 3
        eventually(lambda: member.committed(queue) == 3)
    with consumer(broker, topic) as member:
        member.assign([queue])
        assert numbers(member.poll(PATIENCE, count=4), queue) == [3, 4, 5, 6]
        member.commit()
        assert member.committed(queue) == 7
    with consumer(broker, topic) as member:
        member.assign([queue])
        assert numbers(drained(member, 2), queue) == [7, 8]


def test_seek_moves_the_polls_and_the_progress(broker, topic, queues):
    """By offset, by time, to both ends; what waited to be handed out is dropped."""
    queue = queues[0]
    fill(broker, queue, 10)
    with consumer(broker, topic) as member:
        member.assign(queues)
        assert len(drained(member, 10)) == 10
        member.seek(queue, 6)
        assert member.position(queue) == 6
        assert numbers(drained(member, 4), queue) == [6, 7, 8, 9]
        member.seek_to_beginning()
        first = member.poll(PATIENCE, count=1)
        assert numbers(first, queue) == [0]
        member.seek(queue, time=time.time() + 3600)
        assert member.poll(0.2) == []
        member.seek_to_beginning([queue])
        member.seek_to_end([queue])
        assert (member.poll(0.2), member.position(queue)) == ([], 10)
        member.seek(queue, 8)
        member.commit()
        assert member.committed(queue) == 8
        member.seek(queue, 1_000_000)
        member.poll(0.3)
        fill(broker, queue, 1, first=10)
        assert numbers(drained(member, 1), queue) == [10], "the end is where it goes on"


def test_paused_queues_hand_out_nothing(broker, topic, queues):
    for queue in queues:
        fill(broker, queue, 3)
    with consumer(broker, topic) as member:
        member.assign(queues)
        member.pause([queues[0]])
        assert member.paused == [queues[0]]
        assert {message.queue for message in drained(member, 3)} == {queues[1]}
        assert member.poll(0.2) == []
        member.resume([queues[0]])
        assert numbers(drained(member, 3), queues[0]) == [0, 1, 2]


def test_members_that_register_share_the_queues_and_poll(broker, topic, queues):
    """Everything once; and what one has polled is not the other's when it takes over."""
    with consumer(broker, topic, topics=topic, instance_name="one") as one:
        eventually(lambda: one.queues == queues)
        with consumer(broker, topic, topics=topic, instance_name="two") as two:
            eventually(lambda: len(one.queues) == len(two.queues) == 1)
            for queue in queues:
                fill(broker, queue, 5)
            mine, theirs = drained(one, 5), drained(two, 5)
            assert sorted(message.queue for message in mine + theirs) == sorted(queues * 5)
            assert one.poll(0.1) == []
            two.commit()
        eventually(lambda: one.queues == queues)
        assert one.poll(0.3) == []


def test_a_queue_that_was_another_s_meanwhile_goes_on_where_that_one_came_to(broker, topic, queues):
    """What was polled of it before, and waits or was handed out, is forgotten: it neither comes again nor sets the progress back."""
    queue = queues[0]
    fill(broker, queue, 6)
    with consumer(broker, topic, instance_name="one") as one, consumer(broker, topic, instance_name="two") as two:
        one.assign([queue])
        assert numbers(eventually(lambda: one.poll(0.5, count=2)), queue) == [0, 1]
        one.assign([])
        two.assign([queue])
        assert numbers(drained(two, 6), queue) == list(range(6))
        two.commit()
        two.assign([])
        one.assign([queue])
        assert one.position(queue) == 6
        fill(broker, queue, 1, first=6)
        assert numbers(eventually(lambda: one.poll(0.5)), queue) == [6]
        one.commit()
        assert one.committed(queue) == 7


def test_what_a_filter_passes_over_counts_as_consumed(broker, topic, queues):
    """Else a group that wants little would lag behind for ever, and look through everything again when it starts."""
    queue = queues[0]
    fill(broker, queue, 6)
    with consumer(broker, topic, topics={topic: metaq.Sql("colour = 'blue'")}, hold=0.2) as one:
        eventually(lambda: one.queues == queues)
        eventually(lambda: one.poll(0.1) == [] and one.position(queue) == 6)
        eventually(lambda: one.poll(0.1) == [] and one.committed(queue) == 6)


def test_an_assign_of_queues_that_do_not_exist_changes_nothing(broker, topic, queues):
    """They are named; the topic's own go on. A topic that there is not is no route; nothing is made of either."""
    fill(broker, queues[0], 1)
    with consumer(broker, topic) as member:
        member.assign([queues[0]])
        wrong = [queues[1], MessageQueue(topic, queues[0].broker, 7), MessageQueue(topic, "elsewhere", 0)]
        with pytest.raises(ConfigError, match=rf"no queue .*7.*: topic {topic} has 2"):
            member.assign(wrong)
        with pytest.raises(metaq.NoRoute, match="no-such-topic"):
            member.assign([MessageQueue("no-such-topic", queues[0].broker, 0)])
        with pytest.raises(TypeError, match="no MessageQueue"):
            member.assign(["orders:0"])
        assert member.queues == [queues[0]]
        assert len(drained(member, 1)) == 1
    with Admin(broker.namesrv) as admin:
        assert "no-such-topic" not in admin.list_topics()


def test_wrong_values_are_refused(broker, topic, queues):
    with consumer(broker, topic) as member:
        member.assign([queues[0]])
        for wrong in (lambda: member.seek(queues[1], 0), lambda: member.pause([queues[1]])):
            with pytest.raises(ConfigError, match="is not this member's now"):
                wrong()
        for wrong in (
            lambda: member.seek(queues[0], -1),
            lambda: member.seek(queues[0]),
            lambda: member.seek(queues[0], 1, time=1.0),
            lambda: member.poll(-1),
            lambda: member.poll(1, count=0),
            lambda: member.register_topics(topic),
        ):
            with pytest.raises(ConfigError):
                wrong()
        with pytest.raises(TypeError):
            member.poll(1, count=1.5)
    with consumer(broker, topic, topics=topic) as member, pytest.raises(ConfigError, match="registered"):
        member.assign(queues)
    with pytest.raises(metaq.ClientClosed):
        member.poll()


def test_two_polls_at_a_time_are_refused(broker, topic, queues):
    with consumer(broker, topic) as member:
        member.assign(queues)
        started = threading.Thread(target=member.poll, args=(1.0,))
        started.start()
        eventually(lambda: member._polling._busy)
        with pytest.raises(ConfigError, match="another poll"):
            member.poll(0.1)
        started.join()


def test_no_more_is_pulled_than_the_buffer_takes(broker, topic, queues, monkeypatch):
    """Of all queues together; what is asked for makes room."""
    monkeypatch.setattr(polling, "BUFFER_BYTES_MAX", 0)
    for queue in queues:
        fill(broker, queue, 3)
    with consumer(broker, topic) as member:
        member.assign(queues)
        assert len(drained(member, 6)) == 6
        assert member._polling._waiting_bytes == 0


def test_asyncio_polls_too(broker, topic, queues):
    fill(broker, queues[0], 5)

    async def main() -> None:
        async with aio.PullConsumer(broker.namesrv, group=topic, start="earliest") as member:
            await member.assign(queues)
            got = []
            while len(got) < 5:
                got += await member.poll(PATIENCE, 2)
            assert numbers(got, queues[0]) == [0, 1, 2, 3, 4]
            await member.seek(queues[0], 4)
            assert [message.body for message in await member.poll(PATIENCE)] == [b"4"]
            await member.commit()
            assert await member.committed(queues[0]) == 5
            await member.pause([queues[0]])
            await member.seek_to_beginning()
            assert await member.poll(0.2) == []
            await member.resume([queues[0]])
            assert await member.poll(PATIENCE)
            await member.seek_to_end()
            assert await member.poll(0.2) == []

    asyncio.run(main())


def test_a_cancelled_poll_loses_nothing(broker, topic, queues):
    """What came is handed out by the next one."""

    async def main() -> None:
        async with aio.PullConsumer(broker.namesrv, group=topic, start="earliest") as member:
            await member.assign(queues)
            waiting = asyncio.create_task(member.poll(PATIENCE))
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            fill(broker, queues[0], 1)
            got = []
            while not got:
                got = await member.poll(PATIENCE)
            assert [message.body for message in got] == [b"0"]

    asyncio.run(main())
