"""`commit` and `seek` tell whether the progress is kept."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading

import pytest

from metaq import Consumer, MessageQueue, Producer, PullConsumer, aio
from metaq.admin import Admin
from metaq.errors import BrokerError, ClientError, RequestTimeout
from metaq.testing.embedded import EmbeddedBroker
from metaq.wire.codes import RequestCode, ResponseCode
from tests.client.cluster import FakeCluster, refuse, swallow
from tests.support import PATIENCE, eventually

SHORT = 0.3
_names = itertools.count()


@pytest.fixture
def cluster():
    with FakeCluster() as running:
        running.topics["orders"] = 1
        running.store(b"0", b"1", b"2")
        yield running


def consumer(namesrv: str, topic: str = "orders", **options: object) -> Consumer:
    """A consumer of a group of its own, which commits only when it is told to."""
    return Consumer(
        namesrv, group=f"g{next(_names)}", topics=topic, start="earliest", commit_interval=PATIENCE, **options
    )


def take_one(member: Consumer) -> MessageQueue:
    message = member.receive(PATIENCE)
    assert message is not None
    message.ack()
    return message.queue


def test_a_broker_that_never_answers_is_told(cluster):
    with consumer(cluster.namesrv) as member:
        take_one(member)
        cluster.script[RequestCode.UPDATE_CONSUMER_OFFSET] = swallow
        with pytest.raises(RequestTimeout, match=r"the progress was not kept within 0.3 s"):
            member.commit(SHORT)
        with pytest.raises(RequestTimeout):
            asyncio.run(_committed_by_asyncio(cluster))
        member.commit(PATIENCE)
        assert cluster.committed["orders", 0] == 1


async def _committed_by_asyncio(cluster) -> None:
    scripted = cluster.script.pop(RequestCode.UPDATE_CONSUMER_OFFSET)
    name = f"g{next(_names)}"
    async with aio.Consumer(
        cluster.namesrv, group=name, topics="orders", start="earliest", commit_interval=PATIENCE, instance_name=name
    ) as member:
        message = await member.receive(PATIENCE)
        assert message is not None
        message.ack()
        cluster.script[RequestCode.UPDATE_CONSUMER_OFFSET] = scripted
        try:
            await member.commit(SHORT)
        finally:
            del cluster.script[RequestCode.UPDATE_CONSUMER_OFFSET]  # or its close would wait for the answer


def test_a_busy_broker_is_asked_again_and_a_refusal_is_raised(cluster):
    with consumer(cluster.namesrv) as member:
        take_one(member)
        cluster.script[RequestCode.UPDATE_CONSUMER_OFFSET] = refuse(ResponseCode.SYSTEM_BUSY, times=2)
        member.commit(PATIENCE)
        assert cluster.committed["orders", 0] == 1
        take_one(member)
        cluster.script[RequestCode.UPDATE_CONSUMER_OFFSET] = refuse(ResponseCode.NO_PERMISSION, times=1)
        with pytest.raises(BrokerError, match="refused"):
            member.commit(PATIENCE)


@pytest.mark.parametrize("kind", ["commit", "seek", "pull"])
def test_a_dead_broker_is_told(kind, monkeypatch):
    """It is asked again until the time is over; once it is back, the progress is kept."""
    monkeypatch.setattr("metaq.client.consumer.consumer.CALL_SECONDS", 2 * SHORT)  # the time of a seek
    topic = f"committed_{os.getpid()}_{next(_names)}"
    with EmbeddedBroker() as broker:
        with Admin(broker.namesrv) as admin:
            admin.create_topic(topic, queues=1)
        with Producer(broker.namesrv) as producer:
            for number in range(3):
                producer.send(topic, b"%d" % number)
        if kind == "pull":
            with PullConsumer(
                broker.namesrv, group=topic, topics=topic, start="earliest", commit_interval=PATIENCE
            ) as puller:
                puller.wait_assigned(PATIENCE)
                assert eventually(lambda: puller.poll(1.0))
                (queue,) = puller.queues
                broker.kill()
                with pytest.raises(RequestTimeout):
                    puller.commit(SHORT)
                broker.start()
                puller.commit(PATIENCE)
                assert puller.committed(queue) == 3
            return
        with consumer(broker.namesrv, topic) as member:
            queue = take_one(member)
            broker.kill()
            with pytest.raises(RequestTimeout):
                member.seek(queue, offset=2) if kind == "seek" else member.commit(SHORT)
            broker.start()
            member.commit(PATIENCE)
            with Admin(broker.namesrv) as admin:
                kept = {one.queue: one.consumed for one in admin.group_progress(member.group).queues}
            assert kept[queue] == (2 if kind == "seek" else 1)


class Failing:
    """A user's store whose database is away."""

    def __init__(self) -> None:
        self.away = threading.Event()
        self.kept: dict[MessageQueue, int] = {}
        self.told: dict[MessageQueue, int] = {}

    def load(self, queue: MessageQueue) -> int | None:
        return self.kept.get(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        self.told[queue] = offset

    def persist(self) -> None:
        if self.away.is_set():
            raise OSError("the database is away")
        self.kept |= self.told


def test_a_store_of_the_user_s_that_raises_is_told(cluster):
    store = Failing()
    with consumer(cluster.namesrv, offset_store=store) as member:
        queue = take_one(member)
        store.away.set()
        with pytest.raises(ClientError, match="the database is away") as told:
            member.commit()
        assert isinstance(told.value.__cause__, OSError)
        with pytest.raises(ClientError, match="the database is away"):
            member.seek(queue, offset=2)
        store.away.clear()
        member.commit()
        assert store.kept[queue] == 2


def test_a_pull_consumer_s_store_that_raises_is_told(cluster):
    store = Failing()
    with PullConsumer(
        cluster.namesrv, group=f"g{next(_names)}", topics="orders", start="earliest", offset_store=store
    ) as member:
        member.wait_assigned(PATIENCE)
        (queue,) = member.queues
        member.update(queue, 2)
        store.away.set()
        with pytest.raises(ClientError, match="the database is away"):
            member.commit()
        store.away.clear()
        member.commit()
        assert store.kept[queue] == 2


def test_a_file_that_cannot_be_written_is_told(cluster, tmp_path):
    (tmp_path / "blocked").write_text("not a folder")
    with consumer(cluster.namesrv, offset_store=tmp_path / "blocked" / "orders.json") as member:
        take_one(member)
        with pytest.raises(ClientError, match=r"the progress was not written to .*orders.json"):
            member.commit()


def test_run_ends_when_its_last_commit_fails(cluster, caplog):
    """What is not kept comes again: no reason for `run` to raise, nor to wait."""
    with consumer(cluster.namesrv) as member:

        def handler(message) -> None:
            cluster.script[RequestCode.UPDATE_CONSUMER_OFFSET] = refuse(ResponseCode.SYSTEM_BUSY)
            member.stop()

        member.run(handler)
        assert "was not kept, trying again" in caplog.text
