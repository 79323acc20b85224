"""Our Python client against our broker; with `--rocketmq` (marker `all`) against RocketMQ's own, in plain RocketMQ."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time

import pytest

import metaq
from metaq import Consumer, Later, Message, Producer, PullConsumer, Reader, Reject
from tests.interop.servers import MetaqServer, Server
from tests.support import PATIENCE, eventually

_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"python_{os.getpid()}_{next(_names)}"


def test_every_kind_of_send_is_read_back(server: Server, topic: str) -> None:
    """Single, batched, compressed, flagged, keyed and delayed messages arrive as they were sent."""
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        receipt = producer.send(topic, b"single", tag="t", keys=["k1", "k2"], properties={"a": "5"})
        futures = [producer.submit(topic, b"%d" % number) for number in range(500)]
        assert len({future.result(PATIENCE).message_id for future in futures}) == 500
        producer.send(topic, b"large " * 2000)
        producer.send_batch([Message(topic, b"b1", flag=7), Message(topic, b"b2")])
        keyed = [producer.submit(topic, b"keyed", ordering_key="k").result(PATIENCE).queue for _ in range(3)]
        assert len(set(keyed)) == 1
        delayed = time.monotonic()
        producer.send(topic, b"delayed", delay_level=1)
        with Reader(server.namesrv, topic) as reader:
            got = {}
            for message in reader:
                got.setdefault(message.body, message)
                if message.body == b"delayed":
                    break
            assert time.monotonic() - delayed >= 0.9
    single = got[b"single"]
    assert (single.tag, single.keys, single.properties["a"]) == ("t", ("k1", "k2"), "5")
    assert (single.message_id, single.queue_offset) == (receipt.message_id, receipt.offset)
    assert single.offset_id == receipt.offset_id
    assert got[b"b1"].flag == 7
    assert b"large " * 2000 in got
    assert len(got) == 500 + 6


def test_tables_go_in_and_come_out(server: Server, topic: str) -> None:
    """Rows of every kind by `send_arrow`; a reader's and a consumer's batches hold what was sent; a failed batch comes again."""
    pa = pytest.importorskip("pyarrow")
    count = 5000
    rows = pa.table(
        {
            "body": [b"%d" % number for number in range(count)],
            "tag": ["ab"[number % 2] for number in range(count)],
            "keys": [[f"k{number}", "all"] for number in range(count)],
            "ordering_key": [None if number % 2 else f"{number % 7}" for number in range(count)],
        }
    )
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        sent = producer.send_arrow(rows, topic)
        assert producer.send_arrow(pa.table({"body": [b"5000"], "tag": ["b"]}), topic).rows == 1  # alone in its batch
    assert (sent.rows, sum(sent.statuses.values())) == (count, count)
    with Reader(server.namesrv, topic) as reader:  # RocketMQ's queues grow behind the acknowledgement.
        eventually(lambda: sum(map(len, reader.ranges().values())) == count + 1)
    with Reader(server.namesrv, topic, stop_at_end=True) as reader:
        read = pa.Table.from_batches(reader.arrow_batches(columns=["body", "tag", "keys", "message_id"])).to_pylist()
    assert {int(row["body"]): row["tag"] for row in read} == {number: "ab"[number % 2] for number in range(count)} | {
        5000: "b"
    }
    assert all(row["keys"] == [f"k{int(row['body'])}", "all"] for row in read if row["body"] != b"5000")
    assert len({row["message_id"] for row in read}) == len(read) == count + 1
    failed: set[bytes] = set()
    seen: list[bytes] = []
    with Consumer(server.namesrv, group=topic, topics={topic: "a"}, start="first") as consumer:
        for batch in consumer.arrow_batches():
            with batch:
                bodies = batch.data.column("body").to_pylist()
                if not failed:
                    failed = set(bodies)
                    raise Later(delay_level=1)
                seen += bodies
            if len(seen) >= count // 2 and failed <= set(seen):
                break
    assert sorted(map(int, seen)) == list(range(0, count, 2))


def test_group_progress_retries_and_dead_letters(server: Server, topic: str) -> None:
    """Tags filter, failures come again, rejects are dead letters, and the group's progress is kept."""
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        for number in range(20):
            producer.send(topic, b"%d" % number, tag="even" if number % 2 == 0 else "odd")
    seen: list[tuple[bytes, int]] = []
    with Consumer(server.namesrv, group=topic, topics={topic: "even"}, start="first") as consumer:

        def handler(message: metaq.ReceivedMessage) -> Later | None:
            seen.append((message.body, message.reconsume_times))
            if len(seen) == 11:
                consumer.stop()
            if message.body == b"4" and not message.reconsume_times:
                return Later(delay_level=1)
            if message.body == b"6":
                raise Reject
            return None

        consumer.run(handler, threads=2)
    assert sorted(seen) == sorted([*((b"%d" % number, 0) for number in range(0, 20, 2)), (b"4", 1)])

    def dead() -> bool:
        try:
            with Reader(server.namesrv, f"%DLQ%{topic}", stop_at_end=True) as reader:
                return [message.body for message in reader] == [b"6"]
        except metaq.NoRoute:
            return False

    eventually(dead)
    with Consumer(server.namesrv, group=topic, topics={topic: "even"}, start="first") as consumer:
        assert consumer.receive(2) is None


def test_reader_finds_a_moment(server: Server, topic: str) -> None:
    """Reading from a moment on is exact, whatever the broker's own search says."""
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        for future in [producer.submit(topic, b"%d" % number) for number in range(200)]:
            future.result(PATIENCE)
        moment = time.time()
        eventually(lambda: time.time() > moment + 0.01)
        for future in [producer.submit(topic, b"%d" % number) for number in range(200, 230)]:
            future.result(PATIENCE)
    with Reader(server.namesrv, topic, start=moment, stop_at_end=True) as reader:
        assert sorted(int(message.body) for message in reader) == list(range(200, 230))


def test_members_share_and_take_over(server: Server, topic: str) -> None:
    """Two members split four queues; when one leaves, the other has all."""
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        producer.send(topic, b"x")

    def own(consumer: Consumer) -> int:
        return sum(queue.topic == topic for queue in consumer.queues)

    with Consumer(server.namesrv, group=topic, topics=topic, instance_name="one") as one:
        eventually(lambda: own(one) == 4)
        with Consumer(server.namesrv, group=topic, topics=topic, instance_name="two") as two:
            eventually(lambda: own(one) == own(two) == 2)
        eventually(lambda: own(one) == 4)


def test_pull_consumers_share_queues_and_keep_progress(server: Server, topic: str) -> None:
    """Registered topics, pulls by hand, held and not, progress at the broker, a message sent back."""
    bodies = {b"%d" % number for number in range(40)}
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        producer.send(topic, b"0")  # which makes the topic
        queues = sorted(producer.queues(topic))
        for number in range(1, 40):
            producer.send(topic, b"%d" % number, queue=queues[number % len(queues)])
    with (
        PullConsumer(server.namesrv, group=f"{topic}-p", topics=topic, start="earliest", instance_name="one") as one,
        PullConsumer(server.namesrv, group=f"{topic}-p", topics=topic, start="earliest", instance_name="two") as two,
    ):
        eventually(lambda: [len(one.queues), len(two.queues)] == [2, 2])
        assert not set(one.queues) & set(two.queues)
        got = set()
        for consumer in (one, two):
            for queue in consumer.queues:
                while (batch := consumer.pull(queue, consumer.position(queue))).messages:
                    got |= {message.body for message in batch.messages}
                    consumer.update(queue, batch.next_offset)
        assert got == bodies
        [first, *_] = one.queues
        again = one.pull(first, 0, 1).messages
        one.send_back(again[0])
        held = PullConsumer(server.namesrv, group=f"{topic}-h", hold=PATIENCE, hold_timeout=2 * PATIENCE)
        with held, Producer(server.namesrv, timeout=PATIENCE) as producer:
            end = held.kept(first).stop
            asked = threading.Timer(0.2, lambda: producer.send(topic, b"later", queue=first))
            asked.start()
            batch = held.pull(first, end, wait=True)
            assert [message.body for message in batch.messages] == [b"later"]
            asked.join()
    with PullConsumer(server.namesrv, group=f"{topic}-p", topics=[topic, f"%RETRY%{topic}-p"]) as consumer:
        eventually(lambda: len([queue for queue in consumer.queues if queue.topic == topic]) == 4)
        assert sum(consumer.position(queue) for queue in consumer.queues if queue.topic == topic) == len(bodies)

        def returned() -> set[bytes]:
            retries = [queue for queue in consumer.queues if queue.topic != topic]
            return {message.body for queue in retries for message in consumer.pull(queue, 0).messages}

        assert eventually(returned) == {again[0].body}


def test_several_messages_are_delivered_all_or_none_or_are_not_supported(server: Server, topic: str) -> None:
    """Our broker has them; a RocketMQ is told from it, and gets nothing."""
    ours = isinstance(server, MetaqServer)
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        producer.send(topic, b"plain")
        with contextlib.ExitStack() as refused:
            if not ours:
                refused.enter_context(pytest.raises(metaq.NotSupported, match="is a RocketMQ"))
            with producer.atomic() as tx:
                tx.send(topic, b"a")
                tx.send(topic, b"b", ordering_key="k")
    with Reader(server.namesrv, topic, stop_at_end=True) as reader:
        assert sorted(message.body for message in reader) == [*([b"a", b"b"] if ours else []), b"plain"]
