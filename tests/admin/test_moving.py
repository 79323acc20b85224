"""A group is moved in a topic of several brokers: in all of it, or it is told in what."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

import metaq
from metaq.admin import Admin, PartlyMoved, groups
from metaq.client.conversation.following import GROUPS, GetTable
from metaq.errors import BrokerError, RequestTimeout
from metaq.in_pieces import finish
from metaq.model import ConsumeStats, DataVersion, GroupConfig, MessageQueue
from metaq.testing import Cluster
from metaq.wire import bodies
from tests.support import PATIENCE, run_metaq

A, B = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-b", 0)


@pytest.fixture(scope="module")
def cluster():
    with Cluster(brokers=2) as running:
        yield running


def grown(cluster, topic):
    """Return a topic that a group has consumed while it was at one broker; both have messages now."""
    with Admin(cluster.namesrv) as admin:
        first, second = [one.broker for one in admin.list_brokers()]
        admin.create_topic(topic, queues=2, broker=first)
        with metaq.Producer(cluster.namesrv) as producer:
            producer.send(topic, b"first", queue=MessageQueue(topic, first, 0))
        with metaq.Consumer(cluster.namesrv, group=topic, topics=topic, start="earliest") as consumer:
            consumer.receive(PATIENCE).ack()
        admin.create_topic(topic, queues=2, broker=second)
        with metaq.Producer(cluster.namesrv) as producer:
            producer.send(topic, b"second", queue=MessageQueue(topic, second, 0))
    return first, second


def test_a_group_without_members_is_moved_also_where_it_has_no_progress(cluster):
    """The new broker counts as its beginning."""
    first, second = grown(cluster, "grown-offline")
    told = run_metaq("group", "skip", "grown-offline", "grown-offline", "-n", cluster.namesrv, "--json")
    assert told.returncode == 0, told.stderr
    queues = json.loads(told.stdout)["queues"]
    moved = {(one["broker"], one["queue_id"]): (one["consumed"], one["offset"]) for one in queues}
    assert moved == {(first, 0): (1, 1), (first, 1): (0, 0), (second, 0): (0, 1), (second, 1): (0, 0)}
    with Admin(cluster.namesrv) as admin:
        assert {one.queue.broker: one.lag for one in admin.group_progress("grown-offline").queues if one.queue.queue_id == 0} == {
            first: 0, second: 0,
        }  # fmt: skip
        assert sum(one.repeated for one in admin.reset_group("grown-offline", "grown-offline", "earliest")) == 2


def test_a_group_with_members_is_moved_too(cluster):
    first, second = grown(cluster, "grown-online")
    with (
        Admin(cluster.namesrv) as admin,
        metaq.Consumer(cluster.namesrv, group="grown-online", topics="grown-online", start="latest") as consumer,
    ):
        consumer.wait_assigned(PATIENCE)
        moved = admin.reset_group("grown-online", "grown-online", "earliest")
        assert {one.queue.broker for one in moved if one.online} == {first, second}
        assert {consumer.receive(PATIENCE).body for _ in range(2)} == {b"first", b"second"}


class Core:
    """Brokers that answer from tables. `answers`: (address, name of the request) → outcome."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []
        self.routes = SimpleNamespace(subscribe_queues=self._queues)

    async def _queues(self, topic, *, fresh):
        return [A, B]

    async def ask(self, address, call):
        if isinstance(call, GetTable):  # each knows the group: it is none of MetaQ 1.x
            groups_of = bodies.group_table([("g", GroupConfig("g"))], DataVersion(0, 0))
            return finish(groups_of if call.table == GROUPS else bodies.group_offsets([]))
        self.asked.append((address, type(call).__name__))
        found = self.answers.get(self.asked[-1], 0)
        if isinstance(found, list):
            found = found.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def move(monkeypatch):
    async def masters(core):
        return core.masters

    monkeypatch.setattr(groups, "masters", masters)

    def run(core, known=None):
        core.masters = known or {"broker-a": "a", "broker-b": "b"}
        return asyncio.run(groups.move(core, "g", "t", "latest"))

    return run


def stats(queue, at):
    return ({queue: ConsumeStats(9, at, 0)}, 0.0)


def answers(**more):
    both = {("a", "GetConsumeStats"): stats(A, 3), ("b", "GetConsumeStats"): stats(B, 4)}
    return both | {("a", "ResetOffsets"): {A: 9}, ("b", "ResetOffsets"): {B: 9}} | more.get("instead", {})


def test_what_has_moved_is_listed_if_a_broker_fails(move):
    core = Core(answers(instead={("b", "ResetOffsets"): RequestTimeout("no answer")}))
    with pytest.raises(PartlyMoved, match=r"broker-a:0 to 9\. It was not moved at broker-b: no answer") as failed:
        move(core)
    assert [(one.queue, one.consumed, one.offset) for one in failed.value.moved] == [(A, 3, 9)]
    assert list(failed.value.left) == ["broker-b"]


def test_a_broker_without_a_master_is_named(move):
    with pytest.raises(PartlyMoved, match="broker-b: no master"):
        move(Core(answers()), {"broker-a": "a"})


def test_nothing_moves_if_one_cannot_be_asked(move):
    core = Core(answers(instead={("b", "GetConsumeStats"): RequestTimeout("no answer")}))
    with pytest.raises(RequestTimeout):
        move(core)
    assert not [asked for asked in core.asked if asked[1] != "GetConsumeStats"]


def test_a_refusal_for_want_of_progress_is_answered_with_it(move):
    """RocketMQ's broker has its members told only if every queue has progress."""
    refused = BrokerError(1, "there is no progress")
    core = Core(answers(instead={("b", "ResetOffsets"): [refused, {B: 9}]}))
    assert [(one.queue, one.offset) for one in move(core)] == [(A, 9), (B, 9)]
    assert core.asked[-3:] == [("b", "ResetOffsets"), ("b", "SetPosition"), ("b", "ResetOffsets")]
