"""Every group's lag in one call, a topic's figures, and bytes that nobody reads the messages for."""

from __future__ import annotations

import asyncio

import pytest

import metaq
from metaq.admin import Admin, TopicNotFound
from metaq.admin.figures import sizes
from metaq.admin.figures.sizes import MessagesSize, size_of, total
from metaq.client.conversation.reading.offsets import GetMinOffset
from metaq.errors import BrokerError
from metaq.model import MessageQueue, Perm
from metaq.model.inspection import QueueUnit, QueueUnits
from tests.support import PATIENCE, eventually

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def admin(metaq_broker):
    with Admin(metaq_broker.namesrv) as opened:
        yield opened


def send(broker, topic, bodies):
    with metaq.Producer(broker.namesrv) as producer:
        for body in bodies:
            producer.send(topic, body)


def consume(broker, topic, group, number):
    with metaq.Consumer(broker.namesrv, group=group, topics=topic, start="earliest") as consumer:
        for _ in range(number):
            consumer.receive(PATIENCE).ack()


def test_all_groups_have_lag_in_messages_bytes_and_seconds(admin, metaq_broker):
    """As `group_progress` has it, which asks about one; the bytes are those of the records in the log."""
    topic = "figures-lag"
    admin.create_topic(topic, queues=1)
    send(metaq_broker, topic, [b"x" * 100] * 3)
    consume(metaq_broker, topic, "figures-behind", 1)
    consume(metaq_broker, topic, "figures-done", 3)
    found = {one.group: one for one in admin.list_groups()}
    behind, done = found["figures-behind"], found["figures-done"]
    assert (behind.lag, done.lag, done.lag_seconds, done.waiting) == (2, 0, 0.0, MessagesSize(0))
    with metaq.Reader(metaq_broker.namesrv, topic, stop_at_end=True) as reader:
        one = next(iter(reader))
    records = admin.topic_stats(topic).size
    assert behind.waiting == MessagesSize(records.bytes * 2 // 3)
    assert behind.waiting.bytes > 2 * len(one.body)
    assert behind.lag_seconds > 0
    assert not behind.members
    assert {queue.topic for queue in behind.unread} == {one.queue.topic for one in behind.queues} >= {topic}
    assert "TOOLS_CONSUMER" not in found
    assert "TOOLS_CONSUMER" in {one.group for one in admin.list_groups(system=True)}
    assert sorted(found) == list(found)


def test_queues_that_members_read_no_more_are_marked(admin, metaq_broker):
    """A group that has changed its subscription keeps progress in what it has left."""
    for topic in ("figures-left", "figures-kept"):
        admin.create_topic(topic, queues=2)
        send(metaq_broker, topic, [b"x"] * 2)
        consume(metaq_broker, topic, "figures-moves", 2)
    with metaq.Consumer(
        metaq_broker.namesrv, group="figures-moves", topics="figures-kept", start="earliest"
    ) as consumer:
        consumer.wait_assigned(PATIENCE)
        group = eventually(
            lambda: next((one for one in admin.list_groups() if one.group == "figures-moves" and one.members), None)
        )
        assert {queue.topic for queue in group.unread} == {"figures-left"}
        assert admin.topic_stats("figures-kept").readers == ("figures-moves",)
        assert admin.topic_stats("figures-left").stopped == ("figures-moves",)


def test_a_topic_in_figures(admin, metaq_broker):
    """Bounds, bytes, last message, and which queues nobody reads."""
    topic = "figures-topic"
    [broker] = admin.create_topic(topic, queues=2)
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for body in (b"1", b"22"):
            producer.send(topic, body, queue=MessageQueue(topic, broker, 0))
    stats = admin.topic_stats(topic)
    first, second = stats.queues
    assert (first.begin, first.end, first.messages, second.messages, second.last_ms) == (0, 2, 2, 0, 0)
    assert 0 < first.last_ms <= stats.now_ms + 1000
    assert first.size.exact
    assert first.size.bytes > 2 * 91
    assert all(stats.unread(one) for one in stats.queues)
    with metaq.Consumer(metaq_broker.namesrv, group="figures-reads", topics=topic) as consumer:
        consumer.wait_assigned(PATIENCE)
        stats = eventually(lambda: found if (found := admin.topic_stats(topic)).readers else None)
        assert not any(stats.unread(one) for one in stats.queues)
        admin.update_topic(topic, perm=int(Perm.WRITE))
        stats = eventually(lambda: found if not (found := admin.topic_stats(topic)).queues[0].readable else None)
        assert all(stats.unread(one) for one in stats.queues)
    with pytest.raises(TopicNotFound):
        admin.topic_stats("figures-no-such-topic")


def test_a_large_range_is_estimated(admin, metaq_broker):
    """From 512 of its messages: right where they are alike, and marked as an estimate."""
    topic, count = "figures-large", 1500
    [broker] = admin.create_topic(topic, queues=1)
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send_batch(
            [metaq.Message(topic, b"x" * 50) for _ in range(count)], queue=MessageQueue(topic, broker, 0)
        )
        producer.send(topic, b"x" * 50, queue=MessageQueue(topic, broker, 0))
    size = admin.topic_stats(topic).size
    assert not size.exact
    with Admin(metaq_broker.namesrv) as other:
        core, address = other._open, other.list_brokers()[0].address
        exact = other._run(sizes._exactly(core, address, MessageQueue(topic, broker, 0), 0, count + 1))
    assert abs(size.bytes - exact.bytes) < exact.bytes / 50


class Core:
    """A broker whose units [low, high) are 10 bytes each, 1024 of which it tells at once; `refuses`: it tells nothing."""

    def __init__(self, low, high, refuses=False):
        self.low, self.high, self.refuses = low, high, refuses

    async def ask(self, _address, call):
        if self.refuses:
            raise BrokerError(16, "no permission")
        if isinstance(call, GetMinOffset):
            return self.low
        count = min(call.index + call.count, self.high, call.index + 1024) - call.index
        kept = self.low <= call.index < self.high
        return QueueUnits(self.low, self.high, [QueueUnit(0, 10, 0)] * count) if kept else QueueUnits(0, 0, [])


@pytest.mark.parametrize(
    ("core", "start", "end", "size"),
    [
        (Core(0, 50), 10, 50, MessagesSize(400)),
        (Core(0, 50), 50, 50, MessagesSize(0)),
        (Core(20, 50), 0, 50, MessagesSize(300)),  # what retention has taken is not counted
        (Core(0, 50), 40, 90, MessagesSize(100)),  # the end was told a moment later than it is here
        (Core(0, 5000), 0, 5000, MessagesSize(50_000, exact=False)),
        (Core(4500, 5000), 0, 5000, MessagesSize(5000)),
        (Core(0, 50, refuses=True), 0, 50, None),
    ],
)  # fmt: skip
def test_bytes_of_a_range(core, start, end, size):
    assert asyncio.run(size_of(core, "a", QUEUE, start, end)) == size


def test_a_total_is_an_estimate_if_a_part_is():
    assert total([MessagesSize(1), MessagesSize(2, exact=False)]) == MessagesSize(3, exact=False)
    assert total([MessagesSize(1), None]) is None
