"""Topics by pattern: which are found, when, and when they are let go."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re

import pytest

import metaq
from metaq import aio
from metaq.admin import Admin
from metaq.client.consumer.membership.patterns import LOOKS_UNTIL_GONE, Discovery
from metaq.client.identity.names import Namespace
from metaq.errors import ConfigError, ConnectionFailed
from metaq.testing import EmbeddedBroker
from tests.support import PATIENCE, eventually

_numbers = itertools.count()
SOON = {"poll_name_server_interval": 0.1, "start": "earliest"}


@pytest.fixture
def prefix():
    return f"by-pattern-{next(_numbers)}"


def bodies(consumer, count):
    found = []
    while len(found) < count:
        message = consumer.receive(PATIENCE)
        assert message is not None, found
        with message:
            found.append(message.body.decode())
    return sorted(found)


def test_topics_that_match_are_consumed_and_new_ones_soon(metaq_broker, prefix):
    """Whole names, by their tags; what was sent before the look is there too; one by name beside it."""
    namesrv = metaq_broker.namesrv
    with metaq.Producer(namesrv) as producer:
        for name in (f"{prefix}-a", f"{prefix}-b", f"x{prefix}-c", f"{prefix}-b-tail"):
            producer.send(name, name.encode(), tag="paid")
        producer.send(f"{prefix}-a", b"other tag", tag="open")
        producer.send(f"{prefix}_named", b"named")
        topics = {re.compile(f"{prefix}-[a-z]"): "paid", f"{prefix}_named": "*"}
        with metaq.Consumer(namesrv, group=prefix, topics=topics, **SOON) as consumer:
            assert bodies(consumer, 3) == [f"{prefix}-a", f"{prefix}-b", "named"]
            producer.send(f"{prefix}-n", b"new topic", tag="paid")
            assert bodies(consumer, 1) == ["new topic"]
            producer.send(f"{prefix}-n", b"wrong tag", tag="open")
            producer.send(f"{prefix}-n", b"more", tag="paid")
            assert bodies(consumer, 1) == ["more"]
            assert f"{prefix}-[a-z]" in repr(consumer)
    with Admin(namesrv) as admin:
        assert f"%RETRY%{prefix}" in admin.list_topics(system=True)


def test_a_pattern_takes_no_topic_of_retries_and_of_brokers(metaq_broker, prefix):
    """Even one that matches everything."""
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(prefix, b"x")
    with metaq.Consumer(metaq_broker.namesrv, group=f"{prefix}-g", topics=re.compile(".*"), **SOON) as consumer:
        eventually(lambda: prefix in {queue.topic for queue in consumer.queues}, what="the topic")
        with Admin(metaq_broker.namesrv) as admin:
            users = set(admin.list_topics())
        assert {queue.topic for queue in consumer.queues} <= users | {f"%RETRY%{prefix}-g"}


def test_a_pattern_takes_no_trace_topic_whatever_it_is_called():
    """`msgTraceTopicName`: only its broker knows that it is none of the users'."""
    with (
        EmbeddedBroker(options={"traceTopicEnable": "true", "msgTraceTopicName": "our-traces"}) as broker,
        metaq.Producer(broker.namesrv, trace=True, trace_topic="our-traces") as producer,
    ):
        producer.send("orders", b"x")
        with metaq.Consumer(broker.namesrv, group="all", topics=re.compile(".*"), **SOON) as consumer:
            assert bodies(consumer, 1) == ["x"]
            assert {queue.topic for queue in consumer.queues} <= {"orders", "%RETRY%all"}


def test_a_topic_that_is_gone_is_let_go_and_may_come_back(metaq_broker, prefix):
    """Its queues are given up, and the share listener hears of it; made anew it is consumed from its beginning."""
    namesrv, heard = metaq_broker.namesrv, []
    with metaq.Producer(namesrv) as producer, Admin(namesrv) as admin:
        producer.send(f"{prefix}-1", b"x")
        producer.send(f"{prefix}-2", b"y")
        with metaq.Consumer(
            namesrv, group=prefix, topics=[re.compile(f"{prefix}-.*")],
            on_share=lambda topic, _, mine: heard.append((topic, len(mine))), **SOON,
        ) as consumer:  # fmt: skip
            assert bodies(consumer, 2) == ["x", "y"]
            admin.delete_topic(f"{prefix}-1", force=True)
            eventually(lambda: (f"{prefix}-1", 0) in heard, what="the share of the topic that is gone")
            assert f"{prefix}-1" not in {queue.topic for queue in consumer.queues}
            admin.create_topic(f"{prefix}-1", queues=1)
            eventually(lambda: f"{prefix}-1" in {queue.topic for queue in consumer.queues}, what="the new one")
            producer.send(f"{prefix}-2", b"still here")
            assert bodies(consumer, 1) == ["still here"]


def test_a_namespace_has_its_own(metaq_broker, prefix):
    """A pattern is of names as the user knows them, and takes none of other namespaces."""
    namesrv = metaq_broker.namesrv
    for namespace in ("", "one", "two"):
        with metaq.Producer(namesrv, namespace=namespace) as producer:
            producer.send(f"{prefix}-t", namespace.encode() or b"none")
    common = {"group": prefix, "topics": re.compile(f"{prefix}-."), "namespace": "one"}
    with metaq.Consumer(namesrv, **common, **SOON) as consumer:
        assert bodies(consumer, 1) == ["one"]
        assert {queue.topic for queue in consumer.queues} - {f"%RETRY%{prefix}"} == {f"{prefix}-t"}


def test_asyncio_has_it_too(metaq_broker, prefix):
    """The same arguments."""

    async def work():
        async with aio.Producer(metaq_broker.namesrv) as producer:
            await producer.send(f"{prefix}-x", b"hello")
        topics = re.compile(f"{prefix}-.*")
        async with aio.Consumer(metaq_broker.namesrv, group=prefix, topics=topics, **SOON) as consumer:
            message = await consumer.receive()
            message.ack()
            return message.body

    assert asyncio.run(work()) == b"hello"


def test_a_topic_that_may_come_can_have_a_rank(metaq_broker, prefix):
    """One that no pattern matches cannot."""
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(f"{prefix}-x", b"hello")
    arguments = {"group": prefix, "topics": re.compile(f"{prefix}-.*")}
    with pytest.raises(ConfigError, match="ranks: other is not among the topics"):
        metaq.Consumer(metaq_broker.namesrv, **arguments, ranks={"other": 1})
    with metaq.Consumer(metaq_broker.namesrv, **arguments, ranks={f"{prefix}-x": 1}, **SOON) as consumer:
        assert bodies(consumer, 1) == ["hello"]


def test_wrong_patterns_are_refused(metaq_broker):
    """Of bytes, or with tags that no topic could have; and no topic at all stays an error."""
    for wrong, error in (
        (re.compile(b"x"), TypeError), ({re.compile("x"): "a,b"}, ConfigError), ([], ConfigError), ({}, ConfigError),
    ):  # fmt: skip
        with pytest.raises(error):
            metaq.Consumer(metaq_broker.namesrv, group="wrong-patterns", topics=wrong)


# ---------------------------------------------------------------- looks, without a broker


class Core:
    """Name servers that list what a test says."""

    def __init__(self, listed=(), namespace=""):
        self.listed, self.namespace, self.name_servers = listed, Namespace(namespace), self

    def topics(self):
        return self.listed

    async def consult(self, listed):
        if isinstance(listed, Exception):
            raise listed
        return listed


class Owner:
    def __init__(self):
        self.topics = {}

    def subscribe_to(self, topics, *, new):
        self.topics |= topics

    def unsubscribe(self, topics):
        for topic in topics:
            del self.topics[topic]


def discovery(core, patterns, *, fixed=(), topics_max=1000):
    owner = Owner()
    return owner, Discovery(core, "g", patterns, fixed, owner, topics_max=topics_max, seconds=1.0)


def test_a_name_server_that_lists_nothing_for_a_while_costs_no_topic():
    """One that was restarted, or that cannot be reached."""
    core = Core(["a1", "a2"])
    owner, found = discovery(core, {re.compile("a."): "*"})
    assert asyncio.run(found.look())
    core.listed = []
    for _ in range(LOOKS_UNTIL_GONE - 1):
        asyncio.run(found.look())
    core.listed = ConnectionFailed("no")
    for _ in range(10):
        assert not asyncio.run(found.look())
    assert set(owner.topics) == {"a1", "a2"}
    core.listed = ["a1"]
    asyncio.run(found.look())
    assert set(owner.topics) == {"a1"}


def test_the_first_pattern_that_matches_decides_and_names_beat_patterns():
    """In the order in which they were given."""
    owner, found = discovery(
        Core(["a1", "a2", "b"]), {re.compile("a1"): "x", re.compile("a.*"): "y", re.compile("zz"): "*"}, fixed=["b"]
    )
    asyncio.run(found.look())
    assert owner.topics == {"a1": "x", "a2": "y"}


def test_too_many_topics_are_told_and_those_in_use_stay(caplog):
    """Of what matches a member takes as much as a broker takes."""
    core = Core(["m", "n"])
    owner, found = discovery(core, {re.compile("."): "*"}, topics_max=2)
    asyncio.run(found.look())
    core.listed = ["a", "m", "n", "z"]
    for _ in range(LOOKS_UNTIL_GONE + 1):
        asyncio.run(found.look())
    assert set(owner.topics) == {"m", "n"}
    assert caplog.text.count("4 topics match the patterns of group g, of which 2 are consumed") == 1


def test_no_match_is_told_once(caplog):
    """The member waits; silence would look like an empty topic."""
    caplog.set_level(logging.WARNING)
    _, found = discovery(Core(["a"]), {re.compile("b+"): "*"})
    asyncio.run(found.look())
    asyncio.run(found.look())
    assert caplog.text.count("no topic matches 'b+' yet") == 1
