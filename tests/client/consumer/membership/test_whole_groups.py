"""What a group can do besides sharing messages: seek, pause, skip, ranks, stores and strategies of the user's."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time

import pytest

from metaq import Consumer, MessageQueue, Producer, Reader, aio
from metaq.admin import Admin
from metaq.admin.groups import GroupNotFound
from metaq.errors import ClientClosed, ConfigError
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
    """A topic of two queues."""
    name = f"whole_{os.getpid()}_{next(_names)}"
    with Admin(broker.namesrv) as admin:
        admin.create_topic(name, queues=2)
    return name


@pytest.fixture
def producer(broker):
    with Producer(broker.namesrv) as made:
        yield made


def queue_of(producer: Producer, topic: str, number: int = 0) -> MessageQueue:
    return sorted(producer.queues(topic))[number]


def fill(producer: Producer, queue: MessageQueue, numbers: range) -> None:
    for future in [producer.submit(queue.topic, b"%d" % number, queue=queue) for number in numbers]:
        future.result(PATIENCE)


def numbers(consumer: Consumer, count: int) -> list[int]:
    """Of the next `count` messages, which are acknowledged."""
    got = []
    for _ in range(count):
        message = consumer.receive(PATIENCE)
        assert message is not None, f"{len(got)} of {count} messages came"
        message.ack()
        got.append(int(message.body))
    return got


def nothing(consumer: Consumer) -> bool:
    return consumer.receive(0.3) is None


def consumed(broker, group: str, queue: MessageQueue) -> int | None:
    """What the broker keeps of the group's progress."""
    with Admin(broker.namesrv) as admin, contextlib.suppress(GroupNotFound):
        return next((one.consumed for one in admin.group_progress(group).queues if one.queue == queue), None)
    return None


# ------------------------------------------------------------------ seek


def test_seek_reads_again_what_was_consumed(broker, producer, topic):
    """By offset and by time, on a running consumer; the progress is kept there at once."""
    queue = queue_of(producer, topic)
    fill(producer, queue, range(10))
    moment = a_moment()
    fill(producer, queue, range(10, 15))
    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        assert numbers(consumer, 15) == list(range(15))
        consumer.seek(queue, offset=4)
        assert consumed(broker, topic, queue) == 4
        assert numbers(consumer, 11) == list(range(4, 15))
        consumer.seek(queue, time=moment)
        assert numbers(consumer, 5) == list(range(10, 15))
        assert nothing(consumer)
    assert consumed(broker, topic, queue) == 15


def test_seek_counts_for_nothing_what_was_in_hand(broker, producer, topic):
    """An ack of a message that was received before the seek moves no progress; its fellows are handed out anew."""
    queue = queue_of(producer, topic)
    fill(producer, queue, range(3))
    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        held = consumer.receive(PATIENCE)
        consumer.seek(queue, offset=0)
        held.ack()
        assert numbers(consumer, 3) == [0, 1, 2]
        assert nothing(consumer)


def test_seek_without_queue_moves_all(broker, producer, topic):
    """Every queue of the member, but not the group's retry topic."""
    for number in (0, 1):
        fill(producer, queue_of(producer, topic, number), range(3))
    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        assert sorted(numbers(consumer, 6)) == [0, 0, 1, 1, 2, 2]
        consumer.seek(offset=1)
        assert sorted(numbers(consumer, 4)) == [1, 1, 2, 2]


def test_seek_of_a_member_that_has_just_joined_waits_for_its_queues(broker, producer, topic):
    """All queues, of which it knows none yet: silence would look like a yes."""
    queue = queue_of(producer, topic)
    fill(producer, queue, range(5))
    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        numbers(consumer, 5)
    with Consumer(broker.namesrv, group=topic, topics=topic) as consumer:
        consumer.seek(offset=3)
        assert numbers(consumer, 2) == [3, 4]


def test_seek_of_what_is_not_ours_is_refused(broker, producer, topic):
    """A queue of another topic, no place or two, an offset before all, a closed consumer."""
    queue = queue_of(producer, topic)
    with Consumer(broker.namesrv, group=topic, topics=topic) as consumer:
        consumer.wait_assigned(PATIENCE)
        with pytest.raises(ConfigError, match=r"other@b:0: not this member's now"):
            consumer.seek(MessageQueue("other", "b", 0), offset=0)
        with pytest.raises(ConfigError, match="either offset= or time="):
            consumer.seek(queue)
        with pytest.raises(ConfigError, match="offsets begin at 0"):
            consumer.seek(queue, offset=-1)
    with pytest.raises(ClientClosed):
        consumer.seek(queue, offset=0)


# ------------------------------------------------------------------ pause and resume


def test_paused_queue_hands_out_nothing_and_the_other_goes_on(broker, producer, topic):
    """Not even what was pulled already; resumed, nothing is missing and the order of the queue is kept."""
    first, second = queue_of(producer, topic, 0), queue_of(producer, topic, 1)
    fill(producer, first, range(100))
    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        assert numbers(consumer, 10) == list(range(10))
        consumer.pause(first)
        assert consumer.paused == [first]
        fill(producer, second, range(500, 503))
        assert numbers(consumer, 3) == [500, 501, 502]
        fill(producer, first, range(100, 110))
        assert nothing(consumer)
        consumer.resume([first, second])
        assert consumer.paused == []
        assert numbers(consumer, 100) == list(range(10, 110))


def test_paused_queue_can_be_moved_and_stays_paused(broker, producer, topic):
    """As in Kafka: seek does not resume."""
    queue = queue_of(producer, topic)
    fill(producer, queue, range(5))
    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        numbers(consumer, 5)
        consumer.pause([queue])
        consumer.seek(queue, offset=3)
        assert nothing(consumer)
        consumer.resume(queue)
        assert numbers(consumer, 2) == [3, 4]


def test_pause_lasts_over_a_rebalance_only_while_the_queue_stays(broker, producer, topic):
    """A queue that went to another member and came back is not paused; one that stayed is."""
    with Consumer(broker.namesrv, group=topic, topics=topic, instance_name="a") as consumer:
        eventually(lambda: len(ours(consumer)) == 2)
        stays, goes = ours(consumer)
        consumer.pause([stays, goes])
        with Consumer(broker.namesrv, group=topic, topics=topic, instance_name="b"):
            eventually(lambda: ours(consumer) == [stays])
            assert consumer.paused == [stays]
        eventually(lambda: len(ours(consumer)) == 2)
        assert consumer.paused == [stays]
        fill(producer, stays, range(1))
        fill(producer, goes, range(7, 8))
        assert numbers(consumer, 1) == [7]
        assert nothing(consumer)


def ours(consumer: Consumer) -> list[MessageQueue]:
    """Its queues without those of the retry topic."""
    return [queue for queue in consumer.queues if not queue.topic.startswith("%")]


def test_pausing_what_is_not_ours_is_refused(broker, topic):
    """Kafka raises as well: a silent no would look like a pause."""
    with Consumer(broker.namesrv, group=topic, topics=topic) as consumer:
        with pytest.raises(ConfigError, match="not this member's now"):
            consumer.pause(MessageQueue("other", "b", 0))
        with pytest.raises(TypeError, match="no MessageQueue"):
            consumer.pause("orders")


def test_handler_may_pause_its_own_queue(broker, producer, topic):
    """The rest of what its thread has of the queue is not handed out; another thread resumes."""
    queue = queue_of(producer, topic)
    fill(producer, queue, range(20))
    got: list[int] = []

    def handler(message) -> None:
        got.append(int(message.body))
        if len(got) == 5:
            consumer.pause(message.queue)
        if len(got) == 20:
            consumer.stop()

    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        worker = threading.Thread(target=consumer.run, args=(handler,))
        worker.start()
        eventually(lambda: len(got) == 5 and consumer.paused == [queue])
        eventually(lambda: consumer._member.windows[queue].parked)
        assert len(got) == 5
        consumer.resume(queue)
        worker.join(PATIENCE)
    assert got == list(range(20))


def test_asyncio_consumer_does_the_same(broker, producer, topic):
    """seek is awaited; pause and resume are not."""
    queue = queue_of(producer, topic)
    fill(producer, queue, range(4))

    async def scenario() -> list[int]:
        got = []
        async with aio.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
            got += [int((await consumer.receive(PATIENCE)).body) for _ in range(2)]
            consumer.pause(queue)
            assert await consumer.receive(0.2) is None
            consumer.resume(queue)
            got += [int((await consumer.receive(PATIENCE)).body) for _ in range(2)]
            await consumer.seek(queue, offset=1)
            got += [int((await consumer.receive(PATIENCE)).body) for _ in range(3)]
        return got

    assert asyncio.run(scenario()) == [0, 1, 2, 3, 1, 2, 3]


# ------------------------------------------------------------------ skipping a backlog


def test_backlog_beyond_the_limit_is_skipped_and_told(broker, producer, topic, caplog):
    """on_skip gets the offsets, the log and `skipped` the number; the newest messages up to the limit are handed out."""
    queue = queue_of(producer, topic)
    fill(producer, queue, range(1000))
    told = []
    with Consumer(
        broker.namesrv, group=topic, topics=topic, start="earliest", skip_when_behind=100,
        on_skip=lambda one, gone: told.append((one, gone)),
    ) as consumer:  # fmt: skip
        assert numbers(consumer, 100) == list(range(900, 1000))
        assert nothing(consumer)
        assert consumer.skipped == 900
    assert told == [(queue, range(900))]
    assert f"900 messages of {queue} are skipped, because more than 100 wait there" in caplog.text
    assert consumed(broker, topic, queue) == 1000


def test_consumer_that_falls_behind_skips(broker, producer, topic):
    """Not only at the start; what it had pulled before is still handed out."""
    queue = queue_of(producer, topic)
    fill(producer, queue, range(10))
    with Consumer(
        broker.namesrv, group=topic, topics=topic, start="earliest", skip_when_behind=50, queue_messages_max=10,
        pull_count=10,
    ) as consumer:  # fmt: skip
        assert numbers(consumer, 1) == [0]
        fill(producer, queue, range(10, 200))
        assert numbers(consumer, 9) == list(range(1, 10))
        assert numbers(consumer, 50)[-1] == 199
        assert consumer.skipped > 0


def test_backlog_is_skipped_in_orderly_consumption_too(broker, producer, topic):
    """What is left comes in order."""
    queue = queue_of(producer, topic)
    fill(producer, queue, range(300))
    with Consumer(
        broker.namesrv, group=topic, topics=topic, start="earliest", orderly=True, skip_when_behind=100
    ) as consumer:
        assert numbers(consumer, 100) == list(range(200, 300))
        assert consumer.skipped == 200
    assert consumed(broker, topic, queue) == 300


@pytest.mark.parametrize("orderly", [False, True])
def test_messages_that_come_again_are_never_skipped(broker, producer, topic, orderly):
    """What waits in the retry topic has failed before, however many there are."""
    fill(producer, queue_of(producer, topic), range(30))
    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        for _ in range(30):
            message = consumer.receive(PATIENCE)
            assert message is not None
            message.retry(1)
        retries = MessageQueue(f"%RETRY%{topic}", consumer.queues[0].broker, 0)
        eventually(lambda: end_of(broker, retries) == 30, what="all of them wait there")
    with Consumer(
        broker.namesrv, group=topic, topics=topic, start="earliest", orderly=orderly, skip_when_behind=5
    ) as consumer:
        assert sorted(numbers(consumer, 30)) == list(range(30))
        assert consumer.skipped == 0


def end_of(broker: EmbeddedBroker, queue: MessageQueue) -> int:
    with Reader(broker.namesrv, queue.topic, start="earliest") as reader:
        return reader.ranges()[queue].stop


def test_a_skip_listener_that_raises_harms_nothing(broker, producer, topic, caplog):
    """It is logged."""
    fill(producer, queue_of(producer, topic), range(30))
    with Consumer(
        broker.namesrv, group=topic, topics=topic, start="earliest", skip_when_behind=10, on_skip=lambda *_: 1 / 0
    ) as consumer:
        assert numbers(consumer, 10) == list(range(20, 30))
    assert "on_skip raised" in caplog.text


# ------------------------------------------------------------------ shares


def test_listener_hears_of_every_change_of_the_share_and_may_seek(broker, producer, topic):
    """(topic, all its queues, ours): as the member joins, when another comes, and when that goes."""
    queue = queue_of(producer, topic)
    fill(producer, queue, range(5))
    heard: list[tuple[str, list[MessageQueue], list[MessageQueue]]] = []

    def listener(name: str, everything: list[MessageQueue], mine: list[MessageQueue]) -> None:
        heard.append((name, everything, mine))
        if len(heard) == 1:
            consumer.seek(queue, offset=3)

    made = threading.Event()

    def patient(*args) -> None:
        made.wait(PATIENCE)
        listener(*args)

    with Consumer(
        broker.namesrv, group=topic, topics=topic, start="earliest", instance_name="a", on_share=patient
    ) as consumer:
        made.set()
        assert numbers(consumer, 2) == [3, 4], "nothing is handed out before the listener has returned"
        both = sorted(producer.queues(topic))
        assert heard == [(topic, both, both)]
        with Consumer(broker.namesrv, group=topic, topics=topic, instance_name="b"):
            eventually(lambda: len(heard) == 2)
            assert len(heard[1][2]) == 1
        eventually(lambda: len(heard) == 3)
        assert heard[2] == (topic, both, both)


@pytest.mark.parametrize("wrong", ["raises", "returns None"])
def test_strategy_that_fails_is_told_and_costs_no_queue(broker, producer, topic, caplog, wrong):
    """The member keeps what it has; when the strategy works again, so does the sharing."""
    failing = threading.Event()

    def strategy(queues, members, me):
        if failing.is_set():
            if wrong == "raises":
                raise LookupError("no table of rooms")
            return None
        return list(queues) if me == members[0] else []

    with Consumer(broker.namesrv, group=topic, topics=topic, strategy=strategy, instance_name="a") as consumer:
        eventually(lambda: len(ours(consumer)) == 2)
        failing.set()
        consumer._core.thread.post(consumer._member.rebalance_soon)
        eventually(lambda: "the allocation strategy of group" in caplog.text)
        assert len(ours(consumer)) == 2
        assert "keeps the queues that it has" in caplog.text
        fill(producer, queue_of(producer, topic), range(1))
        assert numbers(consumer, 1) == [0]


def test_strategy_that_takes_anothers_queues_is_told_and_no_queue_has_two_owners(broker, topic, caplog):
    """Both members' shares are all queues: the first gets them, the second hears why it has none."""

    def everything(queues, _members, _me):
        return list(queues)

    with (
        Consumer(broker.namesrv, group=topic, topics=topic, strategy=everything, instance_name="a") as first,
        Consumer(broker.namesrv, group=topic, topics=topic, strategy=everything, instance_name="b") as second,
    ):
        eventually(lambda: "gives to another member as well" in caplog.text)
        eventually(lambda: sorted([len(ours(first)), len(ours(second))]) == [0, 2])


# ------------------------------------------------------------------ where progress is kept


class Table:
    """A user's store: a dictionary, which a process would lose."""

    def __init__(self) -> None:
        self.kept: dict[MessageQueue, int] = {}
        self.told: dict[MessageQueue, int] = {}
        self.broken = threading.Event()

    def load(self, queue):
        if self.broken.is_set():
            raise OSError("the database is down")
        return self.kept.get(queue)

    def update(self, queue, offset):
        self.told[queue] = offset

    def persist(self):
        self.kept |= self.told


def test_progress_in_a_store_of_the_users(broker, producer, topic):
    """The next member goes on where the store says, whatever the broker has; nothing of it is at the broker."""
    queue, table = queue_of(producer, topic), Table()
    fill(producer, queue, range(10))
    table.kept[queue] = 6
    with Consumer(broker.namesrv, group=topic, topics=topic, offset_store=table) as consumer:
        assert numbers(consumer, 4) == [6, 7, 8, 9]
        consumer.commit()
        assert table.kept[queue] == 10
        fill(producer, queue, range(10, 11))
        assert numbers(consumer, 1) == [10]
    assert table.kept[queue] == 11
    assert not consumed(broker, topic, queue)


def test_store_that_is_down_delays_the_start_and_nothing_else(broker, producer, topic, caplog):
    """No queue is begun at a guess; when the store is back, all are begun where it says."""
    queue, table = queue_of(producer, topic), Table()
    fill(producer, queue, range(10))
    table.kept[queue] = 8
    table.broken.set()
    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", offset_store=table) as consumer:
        eventually(lambda: "the database is down" in caplog.text)
        assert nothing(consumer)
        table.broken.clear()
        assert numbers(consumer, 2) == [8, 9]


def test_progress_in_a_file(broker, producer, topic, tmp_path):
    """A path, for a group of one member: clustering, but its progress is with the program."""
    queue, path = queue_of(producer, topic), tmp_path / "progress" / "orders.json"
    fill(producer, queue, range(4))
    for expected in ([0, 1, 2, 3], [4]):
        with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", offset_store=path) as consumer:
            assert numbers(consumer, len(expected)) == expected
        fill(producer, queue, range(4, 5))
    assert path.exists()
    assert not consumed(broker, topic, queue)


def test_progress_is_kept_as_often_as_wished(broker, producer, topic):
    """commit_interval, without anybody calling commit."""
    queue, table = queue_of(producer, topic), Table()
    fill(producer, queue, range(3))
    with Consumer(
        broker.namesrv, group=topic, topics=topic, start="earliest", offset_store=table, commit_interval=0.1
    ) as consumer:
        numbers(consumer, 3)
        eventually(lambda: table.kept.get(queue) == 3)


# ------------------------------------------------------------------ ranks


def test_topics_of_higher_rank_are_drained_first(broker, producer, topic):
    """Both wait in full; the lower one gets its share meanwhile, and everything comes once."""
    urgent = f"{topic}_urgent"
    with Admin(broker.namesrv) as admin:
        admin.create_topic(urgent, queues=2)
    for name in (topic, urgent):
        for number in (0, 1):
            fill(producer, queue_of(producer, name, number), range(400))
    with Consumer(
        broker.namesrv, group=topic, topics=[topic, urgent], start="earliest", ranks={urgent: 1}, low_share=0.2
    ) as consumer:
        eventually(lambda: sum(window.unfinished for window in consumer._member.windows.values()) == 1600)
        got = []
        for _ in range(1600):
            message = consumer.receive(PATIENCE)
            message.ack()
            got.append(message.topic)
        assert nothing(consumer)
    assert 150 <= got[:800].count(topic) <= 240
    assert got.count(topic) == got.count(urgent) == 800


# ------------------------------------------------------------------ limits


def test_limits_of_a_topic_are_shared_by_its_queues(broker, producer, topic):
    """pullThresholdForTopic: 100 messages for two queues are 50 each, whatever the queue's own limit."""
    for number in (0, 1):
        fill(producer, queue_of(producer, topic, number), range(300))
    with Consumer(
        broker.namesrv, group=topic, topics=topic, start="earliest", topic_messages_max=100, pull_count=10
    ) as consumer:
        eventually(lambda: sum(window.unfinished for window in consumer._member.windows.values()) == 100)
        assert all(window.unfinished in {0, 50} for window in consumer._member.windows.values())
        assert len(numbers(consumer, 600)) == 600


def test_bytes_of_a_topic_are_limited(broker, producer, topic):
    """pullThresholdSizeForTopic: no further pull while so many bytes are unfinished."""
    queue = queue_of(producer, topic)
    for future in [producer.submit(topic, bytes(1000), queue=queue) for _ in range(200)]:
        future.result(PATIENCE)
    with Consumer(
        broker.namesrv, group=topic, topics=topic, start="earliest", topic_bytes_max=40_000, pull_count=5
    ) as consumer:
        window = eventually(lambda: consumer._member.windows.get(queue))
        eventually(lambda: window.paused)
        assert window.unfinished < 50


def test_pulls_can_be_spaced(broker, producer, topic):
    """pullInterval: seconds between two pulls of one queue."""
    queue = queue_of(producer, topic)
    fill(producer, queue, range(6))
    with Consumer(
        broker.namesrv, group=topic, topics=topic, start="earliest", pull_count=2, pull_interval=0.3
    ) as consumer:
        began = time.monotonic()
        numbers(consumer, 6)
        assert time.monotonic() - began >= 0.5


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"topic_messages_max": 0}, "must be positive"),
        ({"skip_when_behind": 0}, "must be positive"),
        ({"pull_interval": -1}, "pull_interval"),
        ({"commit_interval": 0}, "commit_interval"),
        ({"ranks": {"nope": 1}}, "nope is not among the topics"),
        ({"ranks": {"t": 1}, "low_share": 1}, "low_share"),
        ({"keep_queues": 30}, "needs an instance_name"),
        ({"keep_queues": 3000, "instance_name": "a"}, "at most 600 s"),
        ({"keep_queues": 30, "instance_name": "a", "broadcast": True}, "all queues anyway"),
        ({"offset_store": "nowhere"}, "offset_store"),
        ({"topics": [f"t{number}" for number in range(10_000)]}, "10000 topics for one consumer: at most 1000"),
    ],
)
def test_wrong_options_are_told_before_anything_is_connected(wrong, text):
    """The text names the option."""
    with pytest.raises(ConfigError, match=text):
        Consumer("127.0.0.1:1", group="g", **{"topics": "t", **wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"pull_count": 2.5}, {"pull_count": "5"}, {"pull_count": True}, {"pull_bytes": 1e6}, {"queue_messages_max": 1.5},
        {"span_max": 2.5}, {"skip_when_behind": 10.5}, {"max_reconsume_times": 2.5}, {"max_reconsume_times": "3"},
        {"on_skip": 5}, {"on_share": 5}, {"on_skip": asyncio.sleep}, {"on_share": asyncio.sleep}, {"orderly": "no"}, {"broadcast": "no"}, {"low_share": "x"}, {"ranks": ["t"]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)  # fmt: skip
def test_options_of_a_wrong_type_are_refused_by_name(wrong):
    """A half would be refused by the broker only, pull after pull, and "no" is true."""
    with pytest.raises(TypeError, match=next(iter(wrong))):
        Consumer("127.0.0.1:1", group="g", **{"topics": "t", **wrong})


@pytest.mark.parametrize(
    "wrong", [{"threads": "8"}, {"threads": 2.5}, {"batch": 2.5}, {"batch": True}, {"processes": 1.0}]
)
def test_numbers_of_run_are_whole(wrong):
    """Told before the first message."""
    with Consumer("127.0.0.1:1", group="g", topics="t") as consumer, pytest.raises(TypeError, match=next(iter(wrong))):
        consumer.run(lambda message: None, **wrong)


@pytest.mark.parametrize("option", ["on_share", "strategy"])
def test_listener_that_exits_ends_no_client(broker, producer, topic, caplog, option):
    """SystemExit in a function of the application's is logged as its error; the client's thread goes on."""

    def leave(*_):
        raise SystemExit(3)

    fill(producer, queue_of(producer, topic), range(1))
    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", **{option: leave}) as consumer:
        eventually(lambda: "SystemExit" in caplog.text)
        if option == "on_share":
            assert numbers(consumer, 1) == [0]
    fill(producer, queue_of(producer, topic), range(1))


# ------------------------------------------------------------------ static membership


def test_member_that_restarts_in_time_keeps_its_queues(broker, producer, topic, caplog):
    """The others hear of nothing, so no queue moves; the one that is back goes on where it was."""
    heard = []
    options = {"group": topic, "topics": topic, "start": "earliest", "keep_queues": 60.0}
    with Consumer(
        broker.namesrv, instance_name=f"{topic}-a", on_share=lambda *told: heard.append(told), **options
    ) as stays:
        eventually(lambda: len(ours(stays)) == 2)
        with Consumer(broker.namesrv, instance_name=f"{topic}-b", **options) as leaves:
            eventually(lambda: len(ours(stays)) == len(ours(leaves)) == 1)
            [queue] = ours(leaves)
            fill(producer, queue, range(3))
            assert numbers(leaves, 3) == [0, 1, 2]
        before = len(heard)
        fill(producer, queue, range(3, 5))
        assert nothing(stays), "its queues are kept, not taken over"
        with Consumer(broker.namesrv, instance_name=f"{topic}-b", **options) as back:
            assert numbers(back, 2) == [3, 4]
            assert ours(back) == [queue]
            assert len(heard) == before
    assert "does not keep" not in caplog.text


def test_member_that_does_not_restart_in_time_loses_its_queues(broker, producer, topic):
    """After keep_queues seconds the others take over."""
    options = {"group": topic, "topics": topic, "start": "earliest", "keep_queues": 1.0}
    with Consumer(broker.namesrv, instance_name=f"{topic}-a", **options) as stays:
        with Consumer(broker.namesrv, instance_name=f"{topic}-b", **options) as leaves:
            eventually(lambda: len(ours(stays)) == len(ours(leaves)) == 1)
        eventually(lambda: len(ours(stays)) == 2)


# ------------------------------------------------------------------ an administrator skips what waits


def test_administrator_skips_everything_that_waits_of_members_online(broker, producer, topic):
    """They go on with what comes from now on; what they have in hand counts no more."""
    queue = queue_of(producer, topic)
    fill(producer, queue, range(20))
    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", queue_messages_max=5) as consumer:
        assert numbers(consumer, 1) == [0]
        consumer.commit()
        with Admin(broker.namesrv) as admin:
            skipped = {one.queue: one for one in admin.skip_backlog(topic, topic)}
        assert skipped[queue].offset == 20
        assert skipped[queue].online
        eventually(lambda: consumed(broker, topic, queue) == 20)
        fill(producer, queue, range(20, 23))
        got = numbers(consumer, 1)
        while got[-1] != 22:  # What was handed out already may still come.
            got += numbers(consumer, 1)
        assert [number for number in got if number >= 20] == [20, 21, 22]
        assert max((number for number in got if number < 20), default=0) < 10


def test_administrator_moves_a_member_that_is_just_beginning(broker, producer, topic, monkeypatch):
    """Where its queues begin is what it was told, not what it had asked for before."""
    from metaq.client.consumer.membership import group as groups

    queue = queue_of(producer, topic)
    fill(producer, queue, range(20))
    options = {"group": topic, "topics": topic, "start": "earliest"}
    with Consumer(broker.namesrv, **options) as consumer:
        assert numbers(consumer, 2) == [0, 1]
    asked, told, may = threading.Event(), threading.Event(), threading.Event()
    offset, reset_offsets = groups.Starting.offset, groups.GroupMember.reset_offsets

    async def slowly(*args):
        found = await offset(*args)
        asked.set()
        await asyncio.to_thread(may.wait, PATIENCE)
        return found

    def reset(self, offsets):
        reset_offsets(self, offsets)
        told.set()

    monkeypatch.setattr(groups.Starting, "offset", slowly)
    monkeypatch.setattr(groups.GroupMember, "reset_offsets", reset)
    with Consumer(broker.namesrv, **options) as consumer:
        assert asked.wait(PATIENCE)
        with Admin(broker.namesrv) as admin:
            assert any(one.queue == queue and one.online for one in admin.skip_backlog(topic, topic))
        assert told.wait(PATIENCE)
        may.set()
        fill(producer, queue, range(20, 22))
        assert numbers(consumer, 2) == [20, 21]
        consumer.commit()
    assert consumed(broker, topic, queue) == 22


def test_administrator_skips_for_a_group_that_is_offline(broker, producer, topic):
    """The broker's table is written."""
    queue = queue_of(producer, topic)
    fill(producer, queue, range(10))
    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        assert numbers(consumer, 2) == [0, 1]
    with Admin(broker.namesrv) as admin:
        [skipped] = [one for one in admin.skip_backlog(topic, topic) if one.queue == queue]
        assert (skipped.online, skipped.offset) == (False, 10)
        with pytest.raises(GroupNotFound, match="nothing to skip"):
            admin.skip_backlog("nobody", topic)
    fill(producer, queue, range(10, 11))
    with Consumer(broker.namesrv, group=topic, topics=topic) as consumer:
        assert numbers(consumer, 1) == [10]


# ------------------------------------------------------------------ the rest of what a group promises


def test_surplus_members_idle_and_take_over_when_another_dies(broker, producer, topic):
    """Three members, two queues: one has none, until one of the others goes."""
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(Consumer(broker.namesrv, group=topic, topics=topic, instance_name=f"{topic}-{name}"))
            for name in "abc"
        ]
        eventually(lambda: [len(ours(member)) for member in members] == [1, 1, 0])
        members[0].close()
        eventually(lambda: [len(ours(member)) for member in members[1:]] == [1, 1])
        assert not set(ours(members[1])) & set(ours(members[2]))


def test_sharing_goes_on_after_whatever_went_wrong_in_it(broker, producer, topic, caplog, monkeypatch):
    """A member that shares no more would be silent for good."""
    from metaq.client.consumer.membership import sharing

    failing = threading.Event()
    real = sharing.checked_share
    failing.set()

    def share(*args):
        if failing.is_set():
            return 1  # has no queues: an error of ours
        return real(*args)

    monkeypatch.setattr(sharing, "checked_share", share)
    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        eventually(lambda: "sharing out the queues of group" in caplog.text)
        failing.clear()
        fill(producer, queue_of(producer, topic), range(1))
        assert numbers(consumer, 1) == [0]


def test_broadcast_message_that_fails_is_logged_with_its_id_and_does_not_come_again(
    broker, producer, topic, caplog, tmp_path
):
    """Every member gets it all the same, once."""
    queue = queue_of(producer, topic)
    receipts = [producer.send(topic, body, queue=queue) for body in (b"bad", b"good")]
    for name in ("a", "b"):
        with Consumer(
            broker.namesrv, group=topic, topics=topic, start="earliest", broadcast=True, instance_name=f"{topic}-{name}",
            offset_store=tmp_path / f"{name}.json", commit_interval=0.1,
        ) as consumer:  # fmt: skip
            bad, good = consumer.receive(PATIENCE), consumer.receive(PATIENCE)
            assert (bad.body, good.body) == (b"bad", b"good")
            good.ack()
            bad.retry()
            eventually(lambda: consumer._member.windows[queue].unfinished == 0)
            assert nothing(consumer)
        assert f"message_id='{receipts[0].message_id}'" in caplog.text
        assert "a broadcast message is not sent again" in caplog.text
        caplog.clear()
        with Consumer(
            broker.namesrv, group=topic, topics=topic, start="earliest", broadcast=True, instance_name=f"{topic}-{name}",
            offset_store=tmp_path / f"{name}.json",
        ) as consumer:  # fmt: skip
            assert nothing(consumer)


def test_bytes_of_a_queue_are_limited(broker, producer, topic):
    """pullThresholdSizeForQueue: no further pull while so much is unfinished."""
    queue = queue_of(producer, topic)
    for future in [producer.submit(topic, bytes(1000), queue=queue) for _ in range(200)]:
        future.result(PATIENCE)
    with Consumer(
        broker.namesrv, group=topic, topics=topic, start="earliest", queue_bytes_max=20_000, pull_count=5
    ) as consumer:
        window = eventually(lambda: consumer._member.windows.get(queue))
        eventually(lambda: window.paused)
        assert 15 <= window.unfinished < 30


def test_count_of_a_pull_is_what_was_wished(broker, producer, topic):
    """pullBatchSize: a chunk that is handed over has no more."""
    fill(producer, queue_of(producer, topic), range(50))
    with Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", pull_count=7) as consumer:
        eventually(lambda: sum(window.unfinished for window in consumer._member.windows.values()) == 50)
        [window] = [window for window in consumer._member.windows.values() if window.unfinished]
        assert max(len(chunk.flags) for chunk in window._chunks) == 7


@pytest.mark.parametrize("orderly", [False, True])
def test_ranks_lose_nothing_in_any_kind_of_consumption(broker, producer, topic, orderly):
    """Batches, orderly or not: every message once."""
    urgent = f"{topic}_urgent"
    with Admin(broker.namesrv) as admin:
        admin.create_topic(urgent, queues=2)
    for name in (topic, urgent):
        for number in (0, 1):
            fill(producer, queue_of(producer, name, number), range(100))
    got: list[tuple[str, int, int]] = []

    def handler(messages) -> None:
        got.extend((message.topic, message.queue_id, int(message.body)) for message in messages)
        if len(got) == 400:
            consumer.stop()

    with Consumer(
        broker.namesrv, group=topic, topics=[topic, urgent], start="earliest", ranks={urgent: 1}, orderly=orderly
    ) as consumer:
        worker = threading.Thread(target=consumer.run, args=(handler, 3), kwargs={"batch": 16})
        worker.start()
        worker.join(PATIENCE)
        assert not worker.is_alive()
    assert sorted(got) == sorted(
        (name, number, body) for name in (topic, urgent) for number in (0, 1) for body in range(100)
    )


def test_groups_in_a_namespace_can_all_of_it(broker, topic):
    """Seek, pulling by hand and shares speak of plain names."""
    from metaq import PullConsumer

    with Admin(broker.namesrv) as admin:
        admin.create_topic(f"ns1%{topic}", queues=2)
    heard = []
    with (
        Producer(broker.namesrv, namespace="ns1") as inside,
        Consumer(
            broker.namesrv, group=topic, topics=topic, namespace="ns1", start="earliest",
            on_share=lambda *told: heard.append(told),
        ) as consumer,
        PullConsumer(broker.namesrv, group=f"{topic}-p", topics=topic, namespace="ns1", start="earliest") as pulling,
    ):  # fmt: skip
        queue = min(inside.queues(topic))
        assert queue.topic == topic
        for number in range(3):
            inside.send(topic, b"%d" % number, queue=queue)
        assert numbers(consumer, 3) == [0, 1, 2]
        consumer.seek(queue, offset=2)
        assert numbers(consumer, 1) == [2]
        assert heard[0][0] == topic
        eventually(lambda: queue in pulling.queues)
        assert len(pulling.pull(queue, pulling.position(queue)).messages) == 3
        pulling.update(queue, 3)
        pulling.commit()
    assert consumed(broker, f"ns1%{topic}-p", queue._replace(topic=f"ns1%{topic}")) == 3


STATIC = """
import sys
import metaq

namesrv, topic = sys.argv[1:]
with metaq.Consumer(
    namesrv, group=topic, topics=topic, start="earliest", instance_name=f"{topic}-b", keep_queues=120, commit_interval=0.1
) as consumer:
    for message in consumer:
        with message:
            print(int(message.body), flush=True)
"""


def test_member_that_is_killed_and_restarted_in_time_keeps_its_queues(broker, producer, topic):
    """kill -9 in a rolling deploy: the other member takes nothing, and loses nothing."""
    heard: list[tuple[str, list[MessageQueue], list[MessageQueue]]] = []

    def child() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", STATIC, broker.namesrv, topic]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())

    with Consumer(
        broker.namesrv, group=topic, topics=topic, start="earliest", instance_name=f"{topic}-a", keep_queues=120,
        on_share=lambda *told: heard.append(told),
    ) as stays:  # fmt: skip
        eventually(lambda: len(ours(stays)) == 2)
        first = child()
        eventually(lambda: len(ours(stays)) == 1)
        [queue] = set(producer.queues(topic)) - set(ours(stays))
        before = len(heard)
        fill(producer, queue, range(3))
        assert [int(first.stdout.readline()) for _ in range(3)] == [0, 1, 2]
        eventually(lambda: consumed(broker, topic, queue) == 3)
        first.kill()
        first.communicate(timeout=PATIENCE)
        fill(producer, queue, range(3, 5))
        second = child()
        try:
            assert [int(second.stdout.readline()) for _ in range(2)] == [3, 4]
        finally:
            second.kill()
            second.communicate(timeout=PATIENCE)
        assert len(heard) == before
        assert nothing(stays)
