"""Consuming in groups, against a real broker."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest

import metaq
from metaq import Consumer, Later, Producer, Reader, Reject
from metaq.testing.embedded import EmbeddedBroker
from tests.support import PATIENCE, environment, eventually, process

_names = itertools.count()


@pytest.fixture(scope="module")
def broker():
    """Delay levels of a second, so that retries are quick."""
    with EmbeddedBroker(options={"messageDelayLevel": " ".join(["1s"] * 18)}) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"consumer_test_{os.getpid()}_{next(_names)}"


@pytest.fixture
def producer(broker):
    with Producer(broker.namesrv) as made:
        yield made


def fill(producer: Producer, topic: str, count: int, **options: object) -> None:
    for future in [producer.submit(topic, b"%d" % number, **options) for number in range(count)]:
        future.result(PATIENCE)


def take(consumer: Consumer, count: int, timeout: float = PATIENCE) -> list[metaq.ReceivedMessage]:
    """`count` messages, each acknowledged."""
    got: list[metaq.ReceivedMessage] = []
    deadline = time.monotonic() + timeout
    while len(got) < count and time.monotonic() < deadline:
        if (message := consumer.receive(0.5)) is not None:
            message.ack()
            got.append(message)
    return got


def only(consumer: Consumer, count: int) -> list[metaq.ReceivedMessage]:
    """`count` messages, and no more after them."""
    got = take(consumer, count)
    assert consumer.receive(0.3) is None
    return got


def test_every_message_arrives_once_with_its_fields(broker, producer, topic):
    """A group from the first message on gets all; a received message knows where it was."""
    receipt = producer.send(topic, b"hello", tag="t", keys=["k1", "k2"], properties={"a": "5"})
    fill(producer, topic, 500)
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:
        got = take(consumer, 501)
    assert sorted(message.body for message in got) == sorted([b"hello", *(b"%d" % number for number in range(500))])
    [first] = [message for message in got if message.body == b"hello"]
    assert (first.topic, first.tag, first.keys, first.properties["a"]) == (topic, "t", ("k1", "k2"), "5")
    assert (first.message_id, first.queue, first.queue_offset) == (receipt.message_id, receipt.queue, receipt.offset)
    assert first.offset_id == receipt.offset_id
    assert first.backlog == first.max_offset - first.queue_offset > 0
    assert first.store_ms >= first.born_ms > 0


def test_progress_is_kept(broker, producer, topic):
    """A second member of the group begins where the first one closed; another group gets everything."""
    fill(producer, topic, 100)
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:
        assert len(take(consumer, 100)) == 100
    producer.send(topic, b"new")
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:
        assert [message.body for message in only(consumer, 1)] == [b"new"]
    with Consumer(broker.namesrv, group=topic + "_other", topics=topic, start="first") as consumer:
        assert len(take(consumer, 101)) == 101


def test_leaving_the_loop_early_loses_nothing(broker, producer, topic):
    """`break` in the middle of what was pulled: the next loop goes on there."""
    fill(producer, topic, 50, ordering_key="k")
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:
        bodies = []
        for _ in range(5):
            for message in consumer:
                with message:
                    bodies.append(int(message.body))
                if len(bodies) % 10 == 0:
                    break
    assert bodies == list(range(50))


def test_tags_filter(broker, producer, topic):
    """Only the tags of the expression arrive."""
    for tag in ("paid", "refunded", "open", "paid"):
        producer.send(topic, tag.encode(), tag=tag)
    with Consumer(broker.namesrv, group=topic, topics={topic: "paid || refunded"}, start="first") as consumer:
        assert sorted(message.body for message in only(consumer, 3)) == [b"paid", b"paid", b"refunded"]


def test_start_last_and_start_at_a_time(broker, producer, topic):
    """ "last" begins behind what is there; a moment begins at the first message not older. Also on queues that are not young."""
    with EmbeddedBroker(options={"accessMessageInMemoryMaxRatio": 0}) as fresh, Producer(fresh.namesrv) as sender:
        fill(sender, topic, 20)
        moment = time.time()
        eventually(lambda: time.time() > moment + 0.01)
        fill(sender, topic, 5)
        with Consumer(fresh.namesrv, group="at", topics=topic, start=moment) as consumer:
            assert len(only(consumer, 5)) == 5
        with Consumer(fresh.namesrv, group="last", topics=topic, start="last") as consumer:
            consumer.wait_assigned(10)
            sender.send(topic, b"new")
            assert [message.body for message in only(consumer, 1)] == [b"new"]


def test_failing_message_is_retried_then_handled(broker, producer, topic, caplog):
    """Raising inside `with` sends it back; it comes again with its count, its topic and its id."""
    receipt = producer.send(topic, b"x", keys="k")
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:
        seen = []
        for message in consumer:
            with message:
                seen.append((message.reconsume_times, message.topic, message.message_id, message.keys))
                if len(seen) < 3:
                    raise ValueError("not yet")
                consumer.stop()
    assert seen == [(times, topic, receipt.message_id, ("k",)) for times in range(3)]
    assert "not yet" in caplog.text


def test_reject_goes_to_the_dead_letters(broker, producer, topic):
    """`Reject` files the message under %DLQ%group, at once."""
    producer.send(topic, b"poison")
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:
        for message in consumer:
            with message:
                consumer.stop()
                raise Reject
    with Reader(broker.namesrv, f"%DLQ%{topic}", stop_at_end=True) as reader:
        assert [message.body for message in reader] == [b"poison"]


def test_too_many_failures_end_in_the_dead_letters(broker, producer, topic):
    """After max_reconsume_times the message is a dead letter."""
    producer.send(topic, b"hopeless")
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first", max_reconsume_times=1) as consumer:
        for _ in range(2):
            message = consumer.receive(PATIENCE)
            with message:
                raise ValueError

        def dead() -> bool:
            with Reader(broker.namesrv, f"%DLQ%{topic}", stop_at_end=True) as reader:
                return [message.body for message in reader] == [b"hopeless"]

        eventually(lambda: _quietly(dead))


def _quietly(probe):
    try:
        return probe()
    except metaq.MetaqError:
        return False


def test_listener_results(broker, producer, topic, caplog):
    """A3: None acknowledges, Later and any exception retry, anything else counts as failed and is logged with its value."""
    for body in (b"none", b"later", b"raised later", b"true", b"reject"):
        producer.send(topic, body)
    calls: list[tuple[bytes, int]] = []

    def handler(message):
        calls.append((message.body, message.reconsume_times))
        if len(calls) == 8:
            consumer.stop()
        if message.reconsume_times:
            return None
        if message.body == b"later":
            return Later(delay_level=1)
        if message.body == b"raised later":
            raise Later(1)
        if message.body == b"reject":
            raise Reject
        return True if message.body == b"true" else None

    with (
        caplog.at_level(logging.WARNING, "metaq.client"),
        Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer,
    ):
        consumer.run(handler, threads=3)
    assert sorted(calls) == sorted(
        [
            (b"none", 0),
            (b"reject", 0),
            *((body, times) for body in (b"later", b"raised later", b"true") for times in (0, 1)),
        ]
    )
    assert "returned True" in caplog.text
    assert "Later" not in caplog.text.replace("need None, Later, Pause or Reject", "")


def test_threads_share_one_queue(broker, producer, topic):
    """A2: several threads work on one queue side by side."""
    fill(producer, topic, 8, ordering_key="one queue")
    together = threading.Barrier(4)
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:
        done, calls = [], itertools.count()

        def handler(message):
            if next(calls) < 4:
                together.wait(PATIENCE)
            done.append(message.queue)
            if len(done) == 8:
                consumer.stop()

        consumer.run(handler, threads=4)
    assert len(set(done)) == 1


def test_thirty_two_threads_handle_every_message_once(broker, producer, topic):
    """A4: the threads of `run` neither lose nor share a message, and the progress is complete."""
    fill(producer, topic, 3000)
    seen: list[int] = []
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:

        def handler(message):
            seen.append(int(message.body))
            if len(seen) == 3000:
                consumer.stop()

        consumer.run(handler, threads=32)
    assert sorted(seen) == list(range(3000))
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:
        assert consumer.receive(0.5) is None


def test_backlog_is_bounded_by_what_is_unfinished(broker, producer, topic):
    """A consumer that acknowledges nothing holds at most queue_messages_max messages of a queue."""
    fill(producer, topic, 500, ordering_key="k")
    options = {"queue_messages_max": 50, "pull_count": 20}
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first", **options) as consumer:
        got = [consumer.receive(PATIENCE)]
        while (message := consumer.receive(PATIENCE if len(got) < 20 else 0.7)) is not None:
            got.append(message)
        assert 20 <= len(got) <= 50
        for message in got:
            message.ack()
        assert len(take(consumer, 450)) == 450


def test_span_is_bounded_by_the_smallest_unfinished(broker, producer, topic):
    """A2: one message that is never finished stops its queue span_max further on, until it is finished."""
    fill(producer, topic, 500, ordering_key="k")
    options = {"span_max": 100, "pull_count": 20}
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first", **options) as consumer:
        slow = consumer.receive(PATIENCE)
        count = 1
        while (message := consumer.receive(PATIENCE if count < 100 else 0.7)) is not None:
            message.ack()
            count += 1
        assert 100 <= count <= 120
        slow.ack()
        assert len(take(consumer, 500 - count)) == 500 - count


KILLED = """
import sys, metaq
with metaq.Consumer(sys.argv[1], group=sys.argv[2], topics=sys.argv[2], start="first") as consumer:
    for number, message in enumerate(consumer):
        if number % 3:
            with message:
                print(message.body.decode(), flush=True)
        if number == 90:
            consumer.commit()
            print("killed", flush=True)
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_consumer_killed_with_gaps_loses_nothing(broker, producer, topic):
    """A2: kill -9 with every third message unfinished; the next member gets all that was not finished."""
    fill(producer, topic, 200)
    command = [sys.executable, "-c", KILLED, broker.namesrv, topic]
    child = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False)
    lines = child.stdout.split()
    assert lines[-1] == "killed", child.stderr
    finished = {int(line) for line in lines[:-1]}
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:
        rest: set[int] = set()
        deadline = time.monotonic() + PATIENCE
        while len(finished | rest) < 200 and time.monotonic() < deadline:
            if (message := consumer.receive(0.5)) is not None:
                message.ack()
                rest.add(int(message.body))
    assert finished | rest == set(range(200))


TERMINATED = """
import os, sys, threading, metaq
consumer = metaq.Consumer(sys.argv[1], group=sys.argv[2], topics=sys.argv[2], start="first")
release = threading.Event()
def handler(message):
    os.write(1, b"begin\\n")  # whole lines, whichever thread comes first
    release.wait(1.0)
    os.write(1, b"end\\n")
with consumer:
    consumer.run(handler, threads=2)
print("left", flush=True)
"""


def test_sigterm_drains(broker, producer, topic):
    """SIGTERM lets the handlers finish, commits, and ends `run` normally."""
    fill(producer, topic, 20)
    command = [sys.executable, "-c", TERMINATED, broker.namesrv, topic]
    with process(*command) as child:
        assert child.stdout.readline() == "begin\n"
        child.send_signal(signal.SIGTERM)
        lines = ["begin", *child.stdout.read().split()]
        assert child.wait(PATIENCE) == 0
    assert lines[-1] == "left"
    assert lines.count("begin") == lines.count("end") <= 4
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:
        assert len(take(consumer, 20 - lines.count("end"))) == 20 - lines.count("end")
        assert consumer.receive(0.5) is None


def test_members_share_the_queues_and_take_over(broker, producer, topic):
    """Two members split the queues evenly; when one leaves, the other has all."""
    fill(producer, topic, 1)
    with Consumer(broker.namesrv, group=topic, topics=topic, instance_name="one") as one:
        own = lambda consumer: [queue for queue in consumer.queues if queue.topic == topic]  # noqa: E731
        eventually(lambda: len(own(one)) == 4)
        with Consumer(broker.namesrv, group=topic, topics=topic, instance_name="two") as two:
            eventually(lambda: len(own(one)) == len(own(two)) == 2)
            assert not set(own(one)) & set(own(two))
        eventually(lambda: len(own(one)) == 4)


def test_second_member_in_one_client_is_refused(broker, topic):
    """One client is a member of a group once; the error names the way out."""
    with Consumer(broker.namesrv, group=topic, topics=topic), pytest.raises(metaq.ConfigError, match="instance_name"):
        Consumer(broker.namesrv, group=topic, topics=topic)


def test_broadcasting_gives_everybody_everything(broker, producer, topic, tmp_path, monkeypatch):
    """Each member gets each message; progress is in a file of the member's own and survives."""
    monkeypatch.setenv("HOME", str(tmp_path))
    fill(producer, topic, 30)
    options = {"group": topic, "topics": topic, "start": "first", "broadcast": True}
    with (
        Consumer(broker.namesrv, instance_name="one", **options) as one,
        Consumer(broker.namesrv, instance_name="two", **options) as two,
    ):
        assert len(take(one, 30)) == len(take(two, 30)) == 30
    producer.send(topic, b"new")
    with Consumer(broker.namesrv, instance_name="one", **options) as one:
        assert [message.body for message in only(one, 1)] == [b"new"]


def test_waiting_for_a_topic_says_so(broker, producer, topic, caplog):
    """A topic that does not exist yet is waited for, with a warning; once there it is consumed."""
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:
        eventually(lambda: "waits for topic" in caplog.text)
        producer.send(topic, b"x")
        assert len(take(consumer, 1)) == 1
    assert "cannot find its share" not in caplog.text


def test_handled_messages_are_freed_without_the_garbage_collector(broker, producer, topic):
    """A message and its chunk do not keep each other alive once all of the chunk was handed out."""
    fill(producer, topic, 50, ordering_key="k")
    gc.collect()
    gc.disable()
    try:
        with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:
            bodies = set()
            for message in consumer:
                with message:
                    bodies.add(message.body)
                if len(bodies) == 50:
                    del message
                    break
            alive = sum(type(item) is metaq.ReceivedMessage and item.topic == topic for item in gc.get_objects())
    finally:
        gc.enable()
    assert alive == 0


def test_wrong_arguments_are_told(broker):
    """Names, tags, start and strategy are checked before anything is connected."""
    for wrong in (
        {"topics": "a/b"},
        {"topics": []},
        {"topics": {"t": "||"}},
        {"topics": "t", "start": "begin"},
        {"topics": "t", "strategy": "best"},
        {"topics": "t", "group": "a b"},
        {"topics": {"t": "a,b"}},
        {"topics": {"t": "a > 5"}},
        {"topics": {"t": ["a|b"]}},
    ):
        with pytest.raises(metaq.ConfigError):
            Consumer(broker.namesrv, **{"group": "g", **wrong})
    for wrong in ({"topics": 5}, {"topics": [5]}, {"topics": {"t": 5}}, {"topics": "t", "group": 5}):
        with pytest.raises(TypeError):
            Consumer(broker.namesrv, **{"group": "g", **wrong})
    with pytest.raises(metaq.ConfigError, match=r"write .a \|\| b"):
        Reader(broker.namesrv, "t", tags="a OR b")
    with pytest.raises(ValueError, match="delay_level"):
        Later(99)


def test_list_of_tags_reaches_tags_that_no_expression_spells(broker, producer, topic):
    """Other producers' tags may hold a comma or a blank: a list takes them as they are."""
    for tag in ("a,b", "c d", "a"):
        producer.send(topic, tag.encode(), tag=tag)
    with Consumer(broker.namesrv, group=topic, topics={topic: ["a,b", "c d"]}, start="first") as consumer:
        assert sorted(message.body for message in only(consumer, 2)) == [b"a,b", b"c d"]


def test_two_subscriptions_of_one_group_are_warned_of(broker, topic, caplog):
    """Both are named; the same tags in another order are the same."""

    def consumer(name: str, tags: str) -> Consumer:
        return Consumer(broker.namesrv, group=topic, topics={topic: tags}, instance_name=name)

    with consumer("one", "paid || open"), consumer("two", "open||paid"):
        assert "subscribe differently" not in caplog.text
        with consumer("three", "refunded"):
            told = [record.getMessage() for record in caplog.records if "subscribe differently" in record.getMessage()]
            assert len(told) == 2
            assert all(topic in text and "open || paid" in text and "'refunded'" in text for text in told)


def test_forgotten_consumer_is_a_resource_warning(broker, topic):
    """It warns and leaves the group."""
    consumer = Consumer(broker.namesrv, group=topic, topics=topic)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del consumer

        def warned():
            gc.collect()  # The loop may have it in its hands for a moment more.
            return any(issubclass(warning.category, ResourceWarning) for warning in caught)

        eventually(warned)


def test_broken_body_goes_to_the_dead_letters(broker, producer, topic):
    """A body that claims to be compressed and is not, or expands without end, stops nobody."""
    import zlib

    from metaq.client.conversation.sending.sending import Outgoing

    for body in (b"no zlib stream", zlib.compress(bytes(64 * 1024 * 1024))):
        outgoing = Outgoing(topic, body, sys_flag=1, properties="")
        producer._core.thread.run(producer._sender.send(outgoing, 5.0))
    producer.send(topic, b"good")
    with Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer:
        assert [message.body for message in take(consumer, 1)] == [b"good"]

        def dead() -> bool:
            with Reader(broker.namesrv, f"%DLQ%{topic}") as reader:
                return sum(len(held) for held in reader.ranges().values()) == 2

        eventually(lambda: _quietly(dead))


def test_broker_restart_is_ridden_over(topic):
    """Producer and consumer go on after kill -9 and restart of the broker; nothing acknowledged is lost."""
    with (
        EmbeddedBroker() as broker,
        Producer(broker.namesrv, timeout=PATIENCE, retries=100) as producer,
        Consumer(broker.namesrv, group=topic, topics=topic, start="first") as consumer,
    ):
        fill(producer, topic, 100)
        seen = {message.body for message in take(consumer, 100)}
        broker.kill()
        futures = [producer.submit(topic, b"after %d" % number) for number in range(100)]
        broker.start()
        ids = {future.result(PATIENCE).message_id for future in futures}
        assert len(ids) == 100
        wanted = {b"after %d" % number for number in range(100)}
        deadline = time.monotonic() + PATIENCE
        while not wanted <= seen and time.monotonic() < deadline:
            if (message := consumer.receive(0.5)) is not None:
                message.ack()
                seen.add(message.body)
    assert wanted <= seen
