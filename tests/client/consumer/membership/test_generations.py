"""A topic that is deleted and made anew is consumed from its first message on, whoever holds a position in the one before."""

from __future__ import annotations

import time

import pytest

import metaq
from metaq.admin import Admin
from metaq.client.consumer import base, pull_base, reader_core
from metaq.client.consumer.options import GroupSeconds
from metaq.testing.embedded import EmbeddedBroker
from tests.support import PATIENCE, eventually


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Look often whether topics were made anew."""
    for module in (base, pull_base):
        monkeypatch.setattr(module, "USUAL", GroupSeconds(rebalance=0.2))
    monkeypatch.setattr(reader_core, "LOOK_SECONDS", 0.2)


@pytest.fixture
def topic(request) -> str:
    return request.node.name.translate(str.maketrans("[]", "--")).replace(".", "-")


def fill(broker, topic, count, what="old") -> None:
    with metaq.Producer(broker.namesrv) as producer:
        queue = min(producer.queues(topic))
        for number in range(count):
            producer.send(topic, f"{what} {number}".encode(), queue=queue)


def make(broker, topic) -> None:
    with Admin(broker.namesrv) as admin:
        admin.create_topic(topic, queues=1)


def make_anew(broker, topic, count) -> None:
    with Admin(broker.namesrv) as admin:
        admin.delete_topic(topic, force=True)
    make(broker, topic)
    fill(broker, topic, count, "new")


def new(count) -> list[bytes]:
    return [b"new %d" % number for number in range(count)]


def drained(consumer) -> bool:
    """Acknowledge what comes twice."""
    while (message := consumer.receive(0.05)) is not None:
        message.ack()
    consumer.commit()
    return True


def consumed(admin, group) -> int:
    return {one.queue.topic: one.consumed for one in admin.group_progress(group).queues}[group]


@pytest.mark.parametrize("count", [3, 9])
def test_a_consumer_that_is_online_goes_on_at_the_beginning(broker, topic, count, caplog):
    """Shorter than its progress, and longer. It is told to the listener and in the log; its progress is the new topic's."""
    make(broker, topic)
    fill(broker, topic, 5)
    skipped = []
    with metaq.Consumer(
        broker.namesrv, group=topic, topics=topic, start="earliest", on_skip=lambda *what: skipped.append(what)
    ) as consumer:
        for _ in range(5):
            consumer.receive(PATIENCE).ack()
        consumer.commit()
        make_anew(broker, topic, count)
        found = set()
        while found < set(new(count)):
            message = consumer.receive(PATIENCE)
            message.ack()
            found.add(message.body)
        eventually(lambda: skipped)
        assert skipped[0][0].topic == topic
        assert skipped[0][1].start >= 5
        assert "was deleted and made anew at broker" in caplog.text
        with Admin(broker.namesrv) as admin:
            eventually(lambda: drained(consumer) and consumed(admin, topic) == count)


@pytest.mark.parametrize("start", ["latest", "earliest"])
@pytest.mark.parametrize("count", [3, 9])
def test_a_consumer_that_comes_back_begins_at_the_beginning(broker, topic, count, start):
    """`start` is for groups that are new."""
    make(broker, topic)
    fill(broker, topic, 5)
    with metaq.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        for _ in range(5):
            consumer.receive(PATIENCE).ack()
    make_anew(broker, topic, count)
    with metaq.Consumer(broker.namesrv, group=topic, topics=topic, start=start) as consumer:
        assert [consumer.receive(PATIENCE).body for _ in range(count)] == new(count)


@pytest.mark.parametrize("count", [3, 9])
def test_a_pull_consumer_polls_from_the_beginning(broker, topic, count):
    make(broker, topic)
    fill(broker, topic, 5)
    with metaq.PullConsumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        found = []
        while len(found) < 5:
            found += consumer.poll(PATIENCE)
        consumer.commit()
        make_anew(broker, topic, count)
        found = set()
        until = time.monotonic() + PATIENCE
        while not found >= set(new(count)):
            assert time.monotonic() < until
            found |= {message.body for message in consumer.poll(0.2)}
        with Admin(broker.namesrv) as admin:
            eventually(lambda: consumer.poll(0.05) or consumer.commit() or consumed(admin, topic) == count)


@pytest.mark.parametrize("count", [3, 9])
def test_a_reader_goes_on_at_the_beginning(broker, topic, count, caplog):
    make(broker, topic)
    fill(broker, topic, 5)
    with metaq.Reader(broker.namesrv, topic, start="earliest") as reader:
        for _ in range(5):
            reader.receive(PATIENCE)
        make_anew(broker, topic, count)
        found = set()
        while not found >= set(new(count)):
            message = reader.receive(PATIENCE)
            assert message is not None
            found.add(message.body)
    assert "is read from its first message on" in caplog.text


class Progress:
    """A store of the user's that keeps generations."""

    def __init__(self) -> None:
        self.kept, self.generations = {}, {}

    def load(self, queue):
        return self.kept.get(queue)

    def update(self, queue, offset):
        self.kept[queue] = offset

    def load_generation(self, queue):
        return self.generations.get(queue)

    def update_generation(self, queue, generation):
        self.generations[queue] = generation

    def persist(self):
        pass


@pytest.mark.parametrize("count", [3, 9])
@pytest.mark.parametrize("kind", [metaq.Consumer, metaq.PullConsumer])
def test_progress_in_an_own_store_is_of_one_generation(broker, topic, count, kind):
    progress = Progress()
    make(broker, topic)
    fill(broker, topic, 5)

    def consumed_now(expected):
        with kind(broker.namesrv, group=topic, topics=topic, start="earliest", offset_store=progress) as consumer:
            found = []
            while len(found) < expected:
                if kind is metaq.PullConsumer:
                    found += consumer.poll(PATIENCE)
                else:
                    found.append(consumer.receive(PATIENCE))
                    found[-1].ack()
            consumer.commit()
            return [message.body for message in found]

    consumed_now(5)
    make_anew(broker, topic, count)
    assert consumed_now(count) == new(count)
    fill(broker, topic, 1, "later")
    assert consumed_now(1) == [b"later 0"]


@pytest.mark.parametrize("count", [3, 9])
def test_progress_in_a_file_is_of_one_generation(broker, topic, count, tmp_path, caplog):
    """The file is RocketMQ's, with one table more."""
    path = tmp_path / "offsets.json"
    make(broker, topic)
    fill(broker, topic, 5)

    def consumed_now(expected):
        with metaq.Consumer(
            broker.namesrv, group=topic, topics=topic, start="latest" if expected else "earliest", offset_store=path
        ) as consumer:
            found = [consumer.receive(PATIENCE) for _ in range(expected or 5)]
            for message in found:
                message.ack()
            return [message.body for message in found]

    consumed_now(0)
    make_anew(broker, topic, count)
    assert consumed_now(count) == new(count)
    assert "metaqGenerations" in path.read_text()
    assert "made anew" in caplog.text
    fill(broker, topic, 1, "later")
    assert consumed_now(1) == [b"later 0"]
