"""Pulling by hand with shared work."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time

import pytest

import metaq
from metaq import MessageQueue, Producer, PullConsumer, aio
from metaq.admin import Admin
from metaq.errors import ClientClosed, ConfigError, OffsetOutOfRange
from metaq.testing.embedded import EmbeddedBroker
from tests.client.moments import a_moment
from tests.support import PATIENCE, environment, eventually

_names = itertools.count()


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(options={"messageDelayLevel": " ".join(["1s"] * 18)}) as running:
        yield running


@pytest.fixture
def topic(broker) -> str:
    """A topic of four queues."""
    name = f"pulled_{os.getpid()}_{next(_names)}"
    with Admin(broker.namesrv) as admin:
        admin.create_topic(name, queues=4)
    return name


@pytest.fixture
def producer(broker):
    with Producer(broker.namesrv) as made:
        yield made


def fill(producer: Producer, queue: MessageQueue, count: int, first: int = 0, tag: str | None = None) -> None:
    for number in range(first, first + count):
        producer.send(queue.topic, b"%d" % number, queue=queue, tag=tag)


def assigned(consumer: PullConsumer, count: int) -> None:
    eventually(lambda: len(consumer.queues) == count)


def test_members_share_registered_topics_and_hear_of_it(broker, topic):
    """The listener gets topic, all queues and ours: alone, with a second member, and alone again."""
    heard: list[tuple[str, int, int]] = []
    with PullConsumer(broker.namesrv, group=topic, instance_name="a") as first:
        first.register_topics(topic, lambda name, queues, mine: heard.append((name, len(queues), len(mine))))
        first.wait_assigned(PATIENCE)
        assert len(first.queues) == 4
        with PullConsumer(broker.namesrv, group=topic, instance_name="b", topics=topic) as second:
            assigned(second, 2)
            assigned(first, 2)
            assert not set(first.queues) & set(second.queues)
        assigned(first, 4)
        eventually(lambda: heard == [(topic, 4, 4), (topic, 4, 2), (topic, 4, 4)])


def test_progress_is_what_update_says(broker, producer, topic):
    """position, update, commit; the next member goes on there, and what was consumed can be read again."""
    queue = min(producer.queues(topic))
    fill(producer, queue, 10)
    with PullConsumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        assigned(consumer, 4)
        assert consumer.position(queue) == 0
        batch = consumer.pull(queue, 0, 4)
        assert [message.body for message in batch.messages] == [b"0", b"1", b"2", b"3"]
        assert (batch.next_offset, batch.min_offset, batch.max_offset) == (4, 0, 10)
        consumer.update(queue, batch.next_offset)
        assert consumer.position(queue) == 4
    with PullConsumer(broker.namesrv, group=topic, topics=topic) as consumer:
        assigned(consumer, 4)
        assert consumer.position(queue) == 4
        assert [message.body for message in consumer.pull(queue, 1, 2).messages] == [b"1", b"2"], "read again"


def test_untouched_queues_keep_no_progress(broker, producer, topic):
    """Owning a queue says nothing of it; the broker knows of the one that was told."""
    queue = min(producer.queues(topic))
    fill(producer, queue, 1)
    with PullConsumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        assigned(consumer, 4)
        consumer.update(queue, 1)
    with Admin(broker.namesrv) as admin:
        assert [one.consumed for one in admin.group_progress(topic).queues] == [1, 0, 0, 0]


def test_any_queue_can_be_pulled_but_only_ours_be_updated(broker, producer, topic):
    """Without a registered topic, too; of another's queue the progress is not ours to tell."""
    queue = min(producer.queues(topic))
    fill(producer, queue, 2)
    with PullConsumer(broker.namesrv, group=topic, start="earliest") as consumer:
        assert sorted(producer.queues(topic)) == consumer.all_queues(topic)
        assert len(consumer.pull(queue, 0).messages) == 2
        assert consumer.position(queue) == 0
        assert consumer.kept(queue) == range(2)
        with pytest.raises(ConfigError, match="not this member's now"):
            consumer.update(queue, 1)
        with pytest.raises(ConfigError, match="begin at 0"):
            consumer.update(queue, -1)


def test_offset_that_is_not_kept_is_an_error_with_the_range(broker, producer, topic):
    """Nothing is skipped in silence."""
    queue = min(producer.queues(topic))
    fill(producer, queue, 3)
    with PullConsumer(broker.namesrv, group=topic) as consumer:
        with pytest.raises(OffsetOutOfRange) as caught:
            consumer.pull(queue, 7)
        assert caught.value.kept == range(3)
        with pytest.raises(ConfigError, match="at least 1 message"):
            consumer.pull(queue, 0, 0)


def test_tags_of_the_registration_and_of_a_pull(broker, producer, topic):
    """A pull filters as the topic was registered, or as it says itself."""
    queue = min(producer.queues(topic))
    fill(producer, queue, 2, tag="paid")
    fill(producer, queue, 2, first=2, tag="open")
    with PullConsumer(broker.namesrv, group=topic, topics={topic: "paid"}) as consumer:
        assert [message.body for message in consumer.pull(queue, 0).messages] == [b"0", b"1"]
        assert [message.body for message in consumer.pull(queue, 0, tags="open").messages] == [b"2", b"3"]
        assert len(consumer.pull(queue, 0, tags="*").messages) == 4


def test_search_finds_a_moment(broker, producer, topic):
    """The first message stored then or later."""
    queue = min(producer.queues(topic))
    fill(producer, queue, 3)
    moment = a_moment()
    fill(producer, queue, 2, first=3)
    with PullConsumer(broker.namesrv, group=topic) as consumer:
        assert consumer.search(queue, moment) == 3


def test_waiting_pull_is_answered_by_the_next_message(broker, producer, topic):
    """The broker holds it (brokerSuspendMaxTimeMillis), and no longer than it was told."""
    queue = min(producer.queues(topic))
    with PullConsumer(broker.namesrv, group=topic, hold=60.0, hold_timeout=PATIENCE + 60) as consumer:
        assert consumer.pull(queue, 0).messages == []
        timer = threading.Timer(0.2, lambda: fill(producer, queue, 1))
        timer.start()
        assert [message.body for message in consumer.pull(queue, 0, wait=True).messages] == [b"0"]
        timer.join()
    with PullConsumer(broker.namesrv, group=topic, hold=0.3) as consumer:
        began = time.monotonic()
        assert consumer.pull(queue, 1, wait=True).messages == []
        assert time.monotonic() - began >= 0.25


def test_time_outs_are_what_was_wished(topic):
    """consumerPullTimeoutMillis and consumerTimeoutMillisWhenSuspend, against a broker that never answers pulls."""
    from metaq.errors import RequestTimeout
    from metaq.wire.codes import RequestCode
    from tests.client.cluster import FakeCluster, swallow

    with FakeCluster() as cluster:
        cluster.topics = {topic: 1}
        cluster.script[RequestCode.PULL_MESSAGE] = swallow
        queue = MessageQueue(topic, "broker-a", 0)
        with PullConsumer(cluster.namesrv, group="g", pull_timeout=0.2, hold=0.1, hold_timeout=0.4) as consumer:
            for wait, seconds in ((False, 0.2), (True, 0.4)):
                began = time.monotonic()
                with pytest.raises(RequestTimeout):
                    consumer.pull(queue, 0, wait=wait)
                assert time.monotonic() - began > seconds - 0.002  # the loop counts whole milliseconds


def test_message_sent_back_comes_to_the_retry_topic(broker, producer, topic):
    """Which a pulling group registers by its name."""
    queue = min(producer.queues(topic))
    fill(producer, queue, 1)
    with PullConsumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        [message] = consumer.pull(queue, 0).messages
        consumer.send_back(message)
        retry = f"%RETRY%{topic}"
        [again] = eventually(lambda: consumer.all_queues(retry))
        batch = eventually(lambda: (got := consumer.pull(again, 0)).messages and got)
        assert batch.messages[0].body == b"0"
        assert batch.messages[0].reconsume_times == 1


def test_message_with_much_in_its_properties_can_be_retried_and_rejected(broker, producer, topic):
    """32 700 bytes as they are stored: a retry's own properties do not fit."""
    big = "x" * (32_700 - len("UNIQ_KEY=") - 32 - len("=CLUSTER=DefaultCluster=big="))
    producer.send(topic, b"good", properties={"big": big})
    with metaq.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        first = consumer.receive(PATIENCE)
        assert 32_680 < len(first.properties_raw) <= 32_700
        first.retry()
        again = consumer.receive(PATIENCE)
        assert (again.topic, again.reconsume_times, again.properties["big"]) == (topic, 1, big)
        again.reject()
        with metaq.Reader(broker.namesrv, f"%DLQ%{topic}", start="earliest") as reader:
            assert reader.receive(PATIENCE).properties["big"] == big


# ------------------------------------------------------------------ the scheduled form


def test_scheduled_form_calls_one_function_per_owned_queue(broker, producer, topic):
    """Every queue again and again, never twice at a time; all messages arrive, two members share the work."""
    queues = sorted(producer.queues(topic))
    for queue in queues:
        fill(producer, queue, 20)
    got: list[tuple[int, bytes]] = []
    inside: set[MessageQueue] = set()
    doubled = []

    def consume(consumer: PullConsumer, queue: MessageQueue) -> float:
        if queue in inside:
            doubled.append(queue)
        inside.add(queue)
        batch = consumer.pull(queue, consumer.position(queue), 3)
        got.extend((queue.queue_id, message.body) for message in batch.messages)
        consumer.update(queue, batch.next_offset)
        inside.discard(queue)
        return 0.0 if batch.messages else 0.05

    with PullConsumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        worker = threading.Thread(target=consumer.run, args=(lambda queue: consume(consumer, queue), 8))
        worker.start()
        eventually(lambda: len(got) == 80)
        consumer.stop()
        worker.join(PATIENCE)
        assert not worker.is_alive()
    assert not doubled
    assert sorted(got) == sorted((queue.queue_id, b"%d" % number) for queue in queues for number in range(20))
    with PullConsumer(broker.namesrv, group=topic, topics=topic) as consumer:
        assert [consumer.position(queue) for queue in queues] == [20] * 4


def test_scheduled_form_follows_the_share(broker, topic):
    """A queue that goes to another member is called there."""
    called: dict[str, list[MessageQueue]] = {"a": [], "b": []}
    with (
        PullConsumer(broker.namesrv, group=topic, topics=topic, instance_name="a") as first,
        PullConsumer(broker.namesrv, group=topic, instance_name="b") as second,
    ):
        workers = [
            threading.Thread(target=consumer.run, args=(lambda queue, name=name: called[name].append(queue) or 0.01,))
            for name, consumer in (("a", first), ("b", second))
        ]
        for worker in workers:
            worker.start()
        eventually(lambda: len(set(called["a"])) == 4)
        second.register_topics(topic)
        eventually(lambda: len(set(called["b"])) == 2)
        assigned(first, 2)
        gone = set(called["b"])
        called["a"].clear()
        eventually(lambda: len(called["a"]) > 20)
        assert not gone & set(called["a"][10:])
        for consumer in (first, second):
            consumer.stop()
        for worker in workers:
            worker.join(PATIENCE)


def test_function_that_fails_is_called_again_and_its_end_ends_run(broker, topic, caplog):
    """An exception is logged; what is none ends `run`, which raises it."""
    calls = []

    def function(queue: MessageQueue) -> None:
        calls.append(queue)
        if len(calls) > 4:
            raise SystemExit(3)
        raise LookupError("no such table")

    with PullConsumer(broker.namesrv, group=topic, topics=topic) as consumer:
        assigned(consumer, 4)
        with pytest.raises(SystemExit):
            consumer.run(function, threads=1)
    assert len(calls) == 5
    assert "no such table" in caplog.text


def test_close_lets_the_functions_end_and_keeps_what_they_told(broker, producer, topic, caplog):
    """A function in hand can still pull and update; `run` ends without an error."""
    queue = min(producer.queues(topic))
    fill(producer, queue, 1)
    began, go_on = threading.Event(), threading.Event()

    def function(one: MessageQueue) -> float:
        if one == queue:
            began.set()
            go_on.wait(PATIENCE)
            consumer.update(one, consumer.pull(one, 0).next_offset)
        return 0.01

    consumer = PullConsumer(broker.namesrv, group=topic, topics=topic, start="earliest")
    running = threading.Thread(target=consumer.run, args=(function, 2))
    running.start()
    assert began.wait(PATIENCE)
    with pytest.raises(ConfigError, match="under way already"):
        consumer.run(function)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    eventually(lambda: consumer.stopped)
    go_on.set()
    closing.join(PATIENCE)
    running.join(PATIENCE)
    assert not closing.is_alive()
    assert not running.is_alive()
    assert "failed" not in caplog.text
    with PullConsumer(broker.namesrv, group=topic, topics=topic) as again:
        assert again.position(queue) == 1


def test_asyncio_consumer_does_the_same(broker, producer, topic):
    """Pulls, progress and the scheduled form."""
    queues = sorted(producer.queues(topic))
    for queue in queues:
        fill(producer, queue, 5)

    async def scenario() -> int:
        count = 0
        async with aio.PullConsumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:

            async def function(queue: MessageQueue) -> float:
                nonlocal count
                batch = await consumer.pull(queue, await consumer.position(queue))
                consumer.update(queue, batch.next_offset)
                count += len(batch.messages)
                if count == 20:
                    consumer.stop()
                return 0.01

            await consumer.run(function, tasks=3)
            assert [await consumer.position(queue) for queue in queues] == [5] * 4
        return count

    assert asyncio.run(asyncio.wait_for(scenario(), PATIENCE)) == 20


def test_closed_consumer_says_so(broker, topic):
    """Every call."""
    consumer = PullConsumer(broker.namesrv, group=topic)
    consumer.close()
    consumer.close()
    queue = MessageQueue(topic, "b", 0)
    for call in (
        lambda: consumer.pull(queue, 0),
        lambda: consumer.update(queue, 0),
        lambda: consumer.position(queue),
        lambda: consumer.register_topics(topic),
        lambda: consumer.run(print),
        consumer.commit,
    ):
        with pytest.raises(ClientClosed):
            call()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"hold": 30, "hold_timeout": 30}, "must be longer"),
        ({"pull_timeout": 0}, "pull_timeout"),
        ({"strategy": "best"}, "no allocation strategy"),
        ({"topics": [f"t{n}" for n in range(1001)]}, "1001 topics"),
        ({"broadcast": True, "offset_store": "broker"}, "progress of its own"),
    ],
)
def test_wrong_options_are_told(wrong, text):
    """Before anything is connected."""
    with pytest.raises(ConfigError, match=text):
        PullConsumer("127.0.0.1:1", group="g", **wrong)


def test_too_many_topics_together_are_refused(broker, topic):
    """Registered one after the other, the sum counts."""
    many = [f"t{number}" for number in range(900)]
    with (
        PullConsumer(broker.namesrv, group=topic, topics=many) as consumer,
        pytest.raises(ConfigError, match="1001 topics"),
    ):
        consumer.register_topics([f"u{number}" for number in range(101)])


def test_broadcasting_member_owns_all_queues_and_its_own_progress(broker, producer, topic, tmp_path):
    """In a file of its own."""
    queue = min(producer.queues(topic))
    fill(producer, queue, 3)
    for name, start in (("a", 0), ("b", 0), ("a", 2)):
        with PullConsumer(
            broker.namesrv, group=topic, topics=topic, broadcast=True, start="earliest", instance_name=name,
            offset_store=tmp_path / f"{name}.json",
        ) as consumer:  # fmt: skip
            assigned(consumer, 4)
            assert consumer.position(queue) == start
            consumer.update(queue, 2)


def test_public_name():
    """metaq.PullConsumer is the class of the threads, metaq.aio.PullConsumer that of asyncio."""
    assert metaq.PullConsumer is PullConsumer
    assert aio.PullConsumer is not PullConsumer


# ------------------------------------------------------------------ what is left behind

FORGETS = """
import sys, metaq
consumer = metaq.PullConsumer(sys.argv[1], group=sys.argv[2], topics=sys.argv[2], start="earliest", commit_interval=600)
consumer.wait_assigned(60)
for queue in consumer.queues:
    consumer.update(queue, consumer.kept(queue).stop)
print("done", flush=True)
"""


def test_forgotten_consumer_keeps_its_progress_at_exit(broker, producer, topic):
    """With a warning, as `metaq.Consumer` does it."""
    [first, *_] = sorted(producer.queues(topic))
    fill(producer, first, 7)
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", FORGETS, broker.namesrv, topic],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(),
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    assert "ResourceWarning: PullConsumer of group" in ended.stderr
    with PullConsumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        consumer.wait_assigned(PATIENCE)
        assert consumer.position(first) == 7


INTERRUPTED = """
import os, signal, sys, threading, metaq
pressed = threading.Event()

def press():
    os.kill(os.getpid(), signal.SIGINT)
    pressed.set()

def work(queue):
    threading.Timer(0.3, press).start()
    pressed.wait()
    while not consumer.stopped:
        pressed.wait(0.01)
    consumer.update(queue, 5)
    print("returned", flush=True)

with metaq.PullConsumer(sys.argv[1], group=sys.argv[2], topics=sys.argv[2], start="earliest") as consumer:
    consumer.wait_assigned(60)
    try:
        consumer.run(work, threads=1)
    except KeyboardInterrupt:
        print("ended", flush=True)
"""


def test_ctrl_c_ends_run_behind_the_call_in_hand(broker, topic):
    """And what it says of the progress still counts."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, broker.namesrv, topic],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(),
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "returned\nended\n"), ended.stderr
    with PullConsumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        consumer.wait_assigned(PATIENCE)
        assert sorted(map(consumer.position, consumer.queues)) == [0, 0, 0, 5]


def test_listener_that_nobody_could_call_is_refused(broker, topic):
    """In asyncio too: it is called in a thread."""
    for wrong in (asyncio.sleep, 5):
        with pytest.raises(TypeError, match="on_share"):
            PullConsumer(broker.namesrv, group=topic, topics=topic, on_share=wrong)
        with PullConsumer(broker.namesrv, group=topic) as consumer, pytest.raises(TypeError, match="the listener"):
            consumer.register_topics(topic, wrong)


def test_function_of_the_wrong_kind_is_refused(broker, topic):
    """Not called again and again with an error in the log each time."""

    async def asynchronous(queue):
        """Nobody would await it."""

    with PullConsumer(broker.namesrv, group=topic, topics=topic) as consumer:
        for wrong in (asynchronous, 5, lambda: None):
            with pytest.raises(TypeError, match="the function"):
                consumer.run(wrong)

    async def main():
        async with aio.PullConsumer(broker.namesrv, group=topic, topics=topic) as consumer:
            for wrong in (lambda: None, 5, lambda queue: 1.0):
                with pytest.raises(TypeError, match="the function"):
                    await consumer.run(wrong)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
