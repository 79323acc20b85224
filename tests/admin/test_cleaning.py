"""Trims and cleanings at a cluster of two brokers, and at scripted ones."""

from __future__ import annotations

import asyncio

import pytest

import metaq
from metaq.admin import Admin, NothingDone, TopicNotFound
from metaq.admin.brokers import BrokerNotFound
from metaq.admin.topics import TopicDetails
from metaq.admin.upkeep.cleaning import UnreadMessages, trim
from metaq.client.conversation.administration import GetRuntime, TrimTopic
from metaq.errors import BrokerError, ConfigError
from metaq.model import QueueData, Route
from metaq.model.upkeep.cleaning import QueueTrim, TopicTrim
from metaq.testing import Cluster
from metaq.wire.codes import ResponseCode
from tests.admin.test_several import Core
from tests.support import PATIENCE

ORDERS = TopicDetails(Route("orders", (QueueData("a", 1, 1, 6, 0), QueueData("b", 1, 1, 6, 0)), ()), {})


@pytest.fixture(scope="module")
def cluster():
    with Cluster(brokers=2) as running:
        yield running


@pytest.fixture
def admin(cluster):
    with Admin(cluster.namesrv) as opened:
        yield opened


def filled(cluster, topic, number=3):
    """A topic with as many messages in each of two queues at each of two brokers. Returns the brokers."""
    with Admin(cluster.namesrv) as admin, metaq.Producer(cluster.namesrv) as producer:
        admin.create_topic(topic, queues=2)
        for queue in producer.queues(topic):
            for _ in range(number):
                producer.send(topic, b"x", queue=queue)
        return sorted({queue.broker for queue in producer.queues(topic)})


def begins(admin, topic):
    return {
        (queue.broker, queue.queue_id): stats.min_offset for queue, stats in admin.describe_topic(topic).queues.items()
    }


def test_a_topic_is_trimmed_at_every_broker_or_at_one(cluster, admin):
    first, second = filled(cluster, "trim-both")
    assert set(admin.trim_topic("trim-both", offset=1, dry_run=True)) == {first, second}
    assert set(begins(admin, "trim-both").values()) == {0}
    assert {trim.done for trim in admin.trim_topic("trim-both", offset=1).values()} == {True}
    assert set(begins(admin, "trim-both").values()) == {1}
    admin.trim_topic("trim-both", offset=2, queue_id=1, broker=second)
    assert begins(admin, "trim-both") == {(first, 0): 1, (first, 1): 1, (second, 0): 1, (second, 1): 2}
    with pytest.raises(ConfigError, match="name the broker"):
        admin.trim_topic("trim-both", offset=2, queue_id=0)
    with pytest.raises(BrokerNotFound):
        admin.trim_topic("trim-both", offset=2, broker="nobody")
    with pytest.raises(TopicNotFound):
        admin.trim_topic("trim-nothing", offset=2)
    for wrong in ({}, {"before": 1, "offset": 1}, {"before": 1, "queue_id": 0}, {"before": -1}):
        with pytest.raises(ConfigError):
            admin.trim_topic("trim-both", **wrong)


def test_a_group_at_one_broker_stops_it_at_both(cluster, admin):
    """Nothing is gone anywhere."""
    filled(cluster, "trim-unread")
    with metaq.Consumer(cluster.namesrv, group="trim-slow", topics="trim-unread", start="earliest") as consumer:
        for _ in range(12):
            consumer.receive(PATIENCE).ack()
    admin.reset_group("trim-slow", "trim-unread", "earliest")
    with pytest.raises(UnreadMessages, match=r"trim-slow \(8 messages\)") as caught:
        admin.trim_topic("trim-unread", offset=2)
    assert caught.value.groups == {"trim-slow": 8}
    assert set(begins(admin, "trim-unread").values()) == {0}
    admin.trim_topic("trim-unread", offset=2, force=True)
    assert set(begins(admin, "trim-unread").values()) == {2}


def test_brokers_are_cleaned_by_name_and_by_address(cluster, admin):
    first, _ = filled(cluster, "clean-both")
    (found,) = admin.find_cleanable(first)
    assert (found.broker, found.leads, found.found.log_files.files) == (first, True, 0)
    (again,) = admin.clean_broker(cluster.address(0))
    assert (again.address, again.broker) == (cluster.address(0), first)
    with pytest.raises(BrokerNotFound):
        admin.clean_broker("nobody")


class Trimmed(Core):
    """`Core` whose brokers trim: `plans`: address → what each says."""

    def __init__(self, plans, **more):
        super().__init__(**more)
        self.plans, self.trimmed = plans, []

    async def ask(self, address, call, seconds=None):
        if not isinstance(call, TrimTopic):
            return await super().ask(address, call, seconds)
        if isinstance(plan := self.plans[address], BaseException):
            raise plan
        if not call.dry_run:
            self.trimmed.append(address)
        return plan


def carried_out(core):
    return asyncio.run(
        trim(core, "orders", before_ms=5, offset=None, queue_id=None, broker=None, dry_run=False, force=False)
    )


def test_a_rocketmq_among_the_brokers_is_told_before_anything_is_changed(monkeypatch):
    """It does not know the request."""
    fine = TopicTrim("orders", (QueueTrim(0, 0, 9, 4),), done=True)
    unknown = BrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 30023 not supported", "b:10911")
    core = Trimmed({"a:10911": fine, "b:10911": unknown})

    async def described(_core, _topic):
        return ORDERS

    monkeypatch.setattr("metaq.admin.upkeep.cleaning.describe", described)
    with pytest.raises(NothingDone, match="broker b is a RocketMQ, or an earlier MetaQ"):
        carried_out(core)
    assert core.trimmed == []


def test_a_broker_that_is_away_is_told_before_anything_is_changed(monkeypatch):
    from tests.admin.test_several import away

    fine = TopicTrim("orders", (QueueTrim(0, 0, 9, 4),), done=True)
    core = Trimmed({"a:10911": fine, "b:10911": fine}, faults=[("b:10911", GetRuntime, away)])

    async def described(_core, _topic):
        return ORDERS

    monkeypatch.setattr("metaq.admin.upkeep.cleaning.describe", described)
    with pytest.raises(NothingDone, match="b does not answer"):
        carried_out(core)
    assert core.trimmed == []
