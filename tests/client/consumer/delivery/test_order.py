"""Orderly consumption against a real broker: sequences per queue, failures, locks, members that come and go."""

from __future__ import annotations

import asyncio
import collections
import itertools
import os
import threading
import time

import pytest

import metaq
from metaq import Consumer, Later, Pause, Producer, Reader, Reject, aio
from metaq.client.conversation.groups import LockQueues, UnlockQueues
from metaq.clock import FakeClock
from metaq.model import MessageQueue, QueueLocks
from metaq.testing import EmbeddedBroker
from metaq.wire import bodies
from metaq.wire.codes import RequestCode
from metaq.wire.command import reply
from tests.client.cluster import FakeCluster, refuse
from tests.support import PATIENCE, eventually

_names = itertools.count()


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"order_test_{os.getpid()}_{next(_names)}"


@pytest.fixture
def producer(broker):
    with Producer(broker.namesrv) as made:
        yield made


def fill(producer: Producer, topic: str, keys: int, each: int) -> None:
    """Messages `key number`, in order for each key, behind one that makes the topic."""
    producer.send(topic, b"first -1")
    futures = [
        producer.submit(topic, b"%d %d" % (key, number), ordering_key=str(key))
        for number in range(each)
        for key in range(keys)
    ]
    for future in futures:
        future.result(PATIENCE)


def orderly(broker, topic: str, **options: object) -> Consumer:
    options.setdefault("instance_name", f"member-{next(_names)}")
    return Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", orderly=True, **options)


class Record:
    """What handlers saw, in the order in which they saw it, and whether two of one queue overlapped."""

    def __init__(self, last: int = 0) -> None:
        self.lock, self.last = threading.Lock(), last
        self.seen: list[tuple[int, int]] = []
        self.busy: collections.Counter[int] = collections.Counter()
        self.overlaps = 0

    def begin(self, message) -> None:
        with self.lock:
            self.busy[message.queue_id] += 1
            self.overlaps += self.busy[message.queue_id] > 1
            self.seen.append((message.queue_id, message.queue_offset))

    def end(self, message) -> None:
        with self.lock:
            self.busy[message.queue_id] -= 1

    def check(self, count: int) -> None:
        """Each queue without a gap or a step back."""
        assert self.overlaps == 0
        by_queue: dict[int, list[int]] = collections.defaultdict(list)
        for queue_id, offset in self.seen:
            by_queue[queue_id].append(offset)
        for offsets in by_queue.values():
            assert offsets == list(range(len(offsets)))
        assert len(self.seen) == count


@pytest.mark.parametrize("how", ["run", "batch", "iterate", "receive"])
def test_threads_share_the_queues_and_each_queue_is_in_order(broker, producer, topic, how):
    """One message, or batch, of a queue in hand at a time; no gap, no step back."""
    fill(producer, topic, keys=12, each=25)
    record, count = Record(), 301
    with orderly(broker, topic) as consumer:

        def one(message) -> None:
            record.begin(message)
            time.sleep(0.0002)
            record.end(message)
            if len(record.seen) >= count:
                consumer.stop()

        def several(messages) -> None:
            assert len({message.queue_id for message in messages}) == 1
            assert 1 <= len(messages) <= 7
            for message in messages:
                one(message)

        def iterate() -> None:
            for message in consumer:
                with message:
                    one(message)

        def receive() -> None:
            while (message := consumer.receive(PATIENCE)) is not None:
                with message:
                    one(message)

        if how == "run":
            consumer.run(one, threads=4)
        elif how == "batch":
            consumer.run(several, threads=4, batch=7)
        else:
            threads = [threading.Thread(target=iterate if how == "iterate" else receive) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
    record.check(count)


@pytest.mark.parametrize("how", ["run", "batch", "iterate"])
def test_tasks_share_the_queues_and_each_queue_is_in_order(broker, producer, topic, how):
    """The same in asyncio."""
    fill(producer, topic, keys=12, each=10)
    record, count = Record(), 121

    async def main() -> None:
        async with aio.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", orderly=True) as consumer:

            async def one(message) -> None:
                record.begin(message)
                await asyncio.sleep(0)
                record.end(message)
                if len(record.seen) >= count:
                    consumer.stop()

            async def several(messages) -> None:
                for message in messages:
                    await one(message)

            if how == "run":
                await consumer.run(one, tasks=8)
            elif how == "batch":
                await consumer.run(several, tasks=8, batch=5)
            else:
                async for message in consumer:
                    async with message:
                        await one(message)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    record.check(count)


def test_failing_message_blocks_its_queue_and_no_other(broker, producer, topic):
    """It comes again after a second, then two; those behind it wait; Later and exceptions alike."""
    fill(producer, topic, keys=8, each=5)
    record, times, queue_id = Record(), [], producer.send(topic, b"3 5", ordering_key="3").queue.queue_id
    with orderly(broker, topic) as consumer:

        def handler(message):
            if message.body == b"3 1":
                times.append((time.monotonic(), message.reconsume_times))
                if len(times) < 3:
                    if len(times) == 1:
                        return Later(18)
                    raise ValueError("not yet")
            record.begin(message)
            record.end(message)
            if len(record.seen) >= 42:
                consumer.stop()
            return None

        consumer.run(handler, threads=3)
    record.check(42)
    assert [count for _, count in times] == [0, 1, 2]
    assert times[1][0] - times[0][0] >= 0.9
    assert times[2][0] - times[1][0] >= 1.9
    last = max(index for index, (one, _) in enumerate(record.seen) if one != queue_id)
    assert all(one == queue_id for one, _ in record.seen[last + 1 :])
    assert len(record.seen) - last > 4, "the other queues did not wait"


def dead_letters(broker, topic: str, count: int) -> list[metaq.StoredMessage]:
    with Reader(broker.namesrv, f"%DLQ%{topic}", start="earliest") as reader:
        return [reader.receive(PATIENCE) for _ in range(count)]


@pytest.mark.parametrize("retries", [0, 1])
def test_message_that_fails_too_often_goes_to_the_dead_letters_and_its_queue_goes_on(broker, producer, topic, retries):
    """As RocketMQ's orderly consumer files it: after max_reconsume_times retries, with its topic and its first id."""
    fill(producer, topic, keys=1, each=3)
    seen = []
    with orderly(broker, topic, max_reconsume_times=retries) as consumer:

        def handler(message):
            seen.append((message.body, message.reconsume_times))
            if message.body == b"0 2":
                consumer.stop()
            if message.body == b"0 1":
                raise ValueError("never")

        consumer.run(handler)
    failures = [(b"0 1", times) for times in range(retries + 1)]
    assert [one for one in seen if one[0] != b"first -1"] == [(b"0 0", 0), *failures, (b"0 2", 0)]
    [dead] = dead_letters(broker, topic, 1)
    assert (dead.body, dead.reconsume_times) == (b"0 1", retries)
    assert dead.properties["RETRY_TOPIC"] == topic
    assert dead.properties["DELAY"] == str(3 + retries), "as RocketMQ keeps it"
    assert dead.properties["ORIGIN_MESSAGE_ID"] == dead.message_id


def test_rejected_message_goes_to_the_dead_letters_at_once(broker, producer, topic):
    """Without a limit of retries too."""
    fill(producer, topic, keys=1, each=2)
    seen = []
    with orderly(broker, topic) as consumer:

        def handler(message):
            seen.append(message.body)
            if message.body == b"0 1":
                consumer.stop()
            return Reject if message.body == b"0 0" else None

        consumer.run(handler)
    assert [body for body in seen if body != b"first -1"] == [b"0 0", b"0 1"]
    assert [dead.body for dead in dead_letters(broker, topic, 1)] == [b"0 0"]


def test_pause_stops_the_queue_without_spending_a_retry(broker, producer, topic):
    """With no retry to spend: the message comes again all the same."""
    fill(producer, topic, keys=1, each=2)
    seen = []
    with orderly(broker, topic, max_reconsume_times=0) as consumer:

        def handler(message):
            seen.append((message.body, message.reconsume_times, time.monotonic()))
            if message.body == b"0 1":
                consumer.stop()
            return Pause(0.3) if [body for body, _, _ in seen].count(b"0 0") == 1 else None

        consumer.run(handler)
    seen = [one for one in seen if one[0] != b"first -1"]
    assert [(body, times) for body, times, _ in seen] == [(b"0 0", 0), (b"0 0", 0), (b"0 1", 0)]
    assert seen[1][2] - seen[0][2] > 0.29, "event loops keep time by the millisecond"


def test_message_whose_handling_is_broken_off_comes_again_at_once(broker, producer, topic):
    """A cancelled task leaves the message unfinished; it would hold its queue for ever."""
    fill(producer, topic, keys=1, each=2)

    async def main() -> list[tuple[bytes, int]]:
        seen = []
        async with aio.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", orderly=True) as consumer:
            message = await consumer.receive(PATIENCE)
            while message.body == b"first -1":
                message.ack()
                message = await consumer.receive(PATIENCE)

            async def broken_off() -> None:
                async with message:
                    await asyncio.sleep(PATIENCE)

            task = asyncio.create_task(broken_off())
            await asyncio.sleep(0)
            task.cancel()
            while len(seen) < 2:
                again = await consumer.receive(PATIENCE)
                if again.body != b"first -1":
                    seen.append((again.body, again.reconsume_times))
                again.ack()
        return seen

    assert asyncio.run(main()) == [(b"0 0", 0), (b"0 1", 0)]


# ---------------------------------------------------------------- members


def test_members_come_and_go_and_no_sequence_has_a_gap_or_a_step_back(broker, producer, topic):
    """Three members, joined and closed while messages are sent and handled."""
    fill(producer, topic, keys=16, each=1)
    record, count = Record(), 17 + 16 * 40

    def work(consumer: Consumer) -> threading.Thread:
        def handler(message) -> None:
            record.begin(message)
            time.sleep(0.001)
            record.end(message)

        thread = threading.Thread(target=consumer.run, args=(handler, 4))
        thread.start()
        return thread

    first = orderly(broker, topic)
    threads = [work(first)]
    eventually(lambda: len(record.seen) >= 17)
    others = []
    for number in range(40):
        for key in range(16):
            producer.submit(topic, b"%d %d" % (key, number), ordering_key=str(key))
        producer.flush(PATIENCE)
        if number in (5, 15):
            others.append(orderly(broker, topic))
            threads.append(work(others[-1]))
            eventually(lambda: others[-1].queues)
        if number == 25:
            first.close()
    eventually(lambda: len(record.seen) >= count)
    for consumer in others:
        consumer.close()
    for thread in threads:
        thread.join(PATIENCE)
    record.check(count)


def test_queue_moves_on_when_its_message_in_hand_is_finished(broker, producer, topic):
    """The member that gives it up finishes what it has begun, and the next one begins behind that."""
    fill(producer, topic, keys=16, each=3)
    with orderly(broker, topic) as first:
        held = {}
        while len(held) < len(producer.queues(topic)):
            message = first.receive(PATIENCE)
            held[message.queue_id] = message
        with orderly(broker, topic) as second:
            eventually(lambda: len(first.queues) < len(held) + 1)
            assert second.receive(0.5) is None, "it was handed out although its queue is in hand elsewhere"
            for message in held.values():
                assert not message.lost
                message.ack()
            message = second.receive(PATIENCE)
            assert message.queue_offset == held[message.queue_id].queue_offset + 1
            message.ack()


def test_queue_that_another_client_has_locked_is_waited_for(broker, producer, topic):
    """A dead client's lock ends after a minute; given back, the queue is taken within a second or two."""
    fill(producer, topic, keys=1, each=2)
    queue = producer.send(topic, b"0 2", ordering_key="0").queue
    locks = QueueLocks(topic, "somebody@else", (queue,))
    core = producer._core
    assert core.thread.run(core.ask_broker(queue.broker, LockQueues(locks))) == {queue}
    with orderly(broker, topic) as consumer:
        eventually(lambda: len(consumer.queues) >= len(producer.queues(topic)) - 1)
        assert queue not in consumer.queues
        core.thread.run(core.ask_broker(queue.broker, UnlockQueues(locks)))
        eventually(lambda: queue in consumer.queues)


# ---------------------------------------------------------------- locks that end

GROUP = "mailers"


class Locks:
    """Answers 41 as it is told."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.grant, self.asked, self.freed = True, 0, 0
        cluster.script[RequestCode.LOCK_BATCH_MQ] = self.lock
        cluster.script[RequestCode.UNLOCK_BATCH_MQ] = self.unlock

    def lock(self, session, command):
        self.asked += 1
        if self.grant is None:
            return None
        queues = bodies.queue_locks_of(command.body).queues if self.grant else ()
        return reply(command, body=bodies.locked_queues(queues))

    def unlock(self, session, command):
        self.freed += 1
        return reply(command)


@pytest.fixture
def cluster():
    with FakeCluster() as running:
        running.topics = {"orders": 1}
        running.store(*(b"%d" % number for number in range(5)))
        yield running


def member(cluster: FakeCluster, clock: FakeClock) -> Consumer:
    return Consumer(cluster.namesrv, group=GROUP, topics="orders", start="first", orderly=True, clock=clock)


def test_lost_lock_ends_the_queue_at_once_and_the_ack_in_hand_is_void(cluster, caplog):
    """Another member has it: nothing is committed, for that could put the group's progress back."""
    locks, clock = Locks(cluster), FakeClock()
    with member(cluster, clock) as consumer:
        consumer.receive(PATIENCE).ack()
        message = consumer.receive(PATIENCE)
        consumer.commit()
        assert cluster.committed["orders", 0] == 1
        locks.grant = False
        clock.advance(20)
        eventually(lambda: message.lost)
        message.ack()
        assert consumer.receive(0.2) is None
        assert consumer.queues == []
        consumer.commit()
        assert "what was said of offset 1 of orders@broker-a:0 is ignored" in caplog.text
        assert "went to another member" in caplog.text
    assert cluster.committed["orders", 0] == 1


def test_lock_that_cannot_be_renewed_ends_after_thirty_seconds_and_nothing_acknowledged_comes_again(cluster, caplog):
    """What was finished before is not handed out twice, although it could not be committed."""
    locks, clock = Locks(cluster), FakeClock()
    with member(cluster, clock) as consumer:
        consumer.receive(PATIENCE).ack()
        locks.grant = None
        clock.advance(29)
        eventually(lambda: locks.asked > 1)
        consumer.receive(PATIENCE).ack()
        message = consumer.receive(PATIENCE)
        clock.advance(1)
        eventually(lambda: message.lost)
        assert "could not be renewed in time" in caplog.text
        locks.grant = True
        message.ack()
        assert consumer.receive(PATIENCE).body == b"2", "the first that was not acknowledged in time"


def test_progress_that_was_put_back_while_a_lock_was_out_counts(cluster, caplog):
    """Another member, or an administrator, has moved it meanwhile: what we had finished before is handed out again."""
    locks, clock = Locks(cluster), FakeClock()
    with member(cluster, clock) as consumer:
        consumer.receive(PATIENCE).ack()
        consumer.commit()
        assert cluster.committed["orders", 0] == 1
        locks.grant = None
        consumer.receive(PATIENCE).ack()
        message = consumer.receive(PATIENCE)
        clock.advance(30)
        eventually(lambda: message.lost)
        cluster.committed["orders", 0] = 0
        locks.grant = True
        message.ack()
        assert consumer.receive(PATIENCE).body == b"0"
    assert "could not be renewed in time" in caplog.text


def test_queue_that_was_moved_and_then_went_to_another_member_is_unlocked(cluster):
    """Its message in hand was never finished, but nobody waits for a lock of sixty seconds because of that."""
    locks, clock = Locks(cluster), FakeClock()
    with member(cluster, clock) as consumer:
        message = consumer.receive(PATIENCE)
        consumer.seek(message.queue, offset=4)
        cluster.members[GROUP].add("0.0.0.0@first")
        asked = cluster.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        eventually(lambda: cluster.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP) > asked + 1)
        assert locks.freed == 0
        clock.advance(21)
        eventually(lambda: locks.freed)
        assert consumer.queues == []


def test_renewed_locks_last(cluster):
    """Every 20 s; and closing gives them back."""
    locks, clock = Locks(cluster), FakeClock()
    with member(cluster, clock) as consumer:
        for number in range(5):
            message = consumer.receive(PATIENCE)
            assert message.body == b"%d" % number
            asked = locks.asked
            clock.advance(21)
            eventually(lambda before=asked: locks.asked > before)
            message.ack()
        assert consumer.queues == [MessageQueue("orders", "broker-a", 0)]
        assert locks.freed == 0
    assert locks.freed == 1
    assert cluster.committed["orders", 0] == 5


def test_lock_of_a_queue_that_was_not_taken_is_given_back(cluster):
    """Its start could not be found out, and then it went to another member, who must not wait for us."""
    locks, clock = Locks(cluster), FakeClock()
    cluster.script[RequestCode.QUERY_CONSUMER_OFFSET] = refuse(1)
    with member(cluster, clock) as consumer:
        eventually(lambda: locks.asked > 1)
        cluster.members[GROUP].add("0.0.0.0@first")
        asked = cluster.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        eventually(lambda: cluster.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP) > asked + 1)
        clock.advance(21)
        eventually(lambda: locks.freed)
        assert consumer.queues == []


def test_moved_queue_begins_again_when_its_message_in_hand_is_finished(cluster, caplog):
    """`seek` while a handler is at work: what it says counts no more, and nobody works beside it."""
    Locks(cluster)
    with member(cluster, FakeClock()) as consumer:
        consumer.receive(PATIENCE).ack()
        message = consumer.receive(PATIENCE)
        consumer.seek(MessageQueue("orders", "broker-a", 0), offset=4)
        assert consumer.receive(0) is None
        assert message.lost
        message.ack()
        assert consumer.receive(PATIENCE).body == b"4"
    assert "what was said of offset 1 of orders@broker-a:0 is ignored" in caplog.text


def test_paused_queue_waits_and_ranked_topics_too(broker, producer, topic):
    """`pause` of single queues and `ranks` hold for ordered queues as well."""
    fill(producer, topic, keys=4, each=10)
    record = Record()
    with orderly(broker, topic, ranks={topic: 1}) as consumer:
        consumer.wait_assigned(PATIENCE)
        first, *_ = [queue for queue in consumer.queues if queue.topic == topic]
        consumer.pause(first)

        def handler(message) -> None:
            record.begin(message)
            record.end(message)

        running = threading.Thread(target=consumer.run, args=(handler, 2))
        running.start()
        with Reader(broker.namesrv, topic) as reader:
            held = len(reader.ranges()[first])
        eventually(lambda: len(record.seen) >= 41 - held)
        assert first.queue_id not in {queue_id for queue_id, _ in record.seen}
        consumer.resume(first)
        eventually(lambda: len(record.seen) >= 41)
        consumer.stop()
        running.join(PATIENCE)
    record.check(41)


def test_broadcast_in_order_needs_no_lock_and_passes_over_what_fails(
    broker, producer, topic, caplog, tmp_path, monkeypatch
):
    """B18: every member gets each message, in order; a failed one is logged and not sent again."""
    monkeypatch.setenv("HOME", str(tmp_path))
    fill(producer, topic, keys=1, each=3)
    for name in ("one", "two"):
        seen = []
        with orderly(broker, topic, broadcast=True, instance_name=name) as consumer:

            def handler(message, seen=seen, consumer=consumer):
                if message.body != b"first -1":
                    seen.append(message.body)
                if len(seen) == 3:
                    consumer.stop()
                if message.body == b"0 1":
                    raise ValueError("never")

            consumer.run(handler)
        assert seen == [b"0 0", b"0 1", b"0 2"]
    assert "a broadcast message is not sent again" in caplog.text


def test_queue_with_a_message_in_hand_is_given_back_after_twenty_seconds_all_the_same(cluster, caplog):
    """Its next owner must not wait for ever; the message comes again there."""
    locks, clock = Locks(cluster), FakeClock()
    with member(cluster, clock) as consumer:
        consumer.receive(PATIENCE).ack()
        message = consumer.receive(PATIENCE)
        cluster.members[GROUP].add("0.0.0.0@first")
        consumer._core.thread.post(consumer._member.rebalance_soon)
        eventually(lambda: not consumer.queues)
        clock.advance(19)
        assert not message.lost
        assert not locks.freed
        clock.advance(1)
        eventually(lambda: message.lost)
        eventually(lambda: locks.freed)
        assert cluster.committed["orders", 0] == 1
        message.ack()
        assert "still in hand after 20 s" in caplog.text
    assert cluster.committed["orders", 0] == 1
