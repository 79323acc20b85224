"""SQL filters of consumers, pull consumers and readers, against a real broker."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re

import pytest

import metaq
from metaq import aio
from metaq.testing.embedded import EmbeddedBroker
from tests.support import PATIENCE, eventually

_names = itertools.count()


@pytest.fixture(scope="module")
def broker():
    """Delay levels of a second, so that retries are quick."""
    with EmbeddedBroker(options={"messageDelayLevel": " ".join(["1s"] * 18)}) as running:
        yield running


@pytest.fixture
def topic(broker):
    """A topic with ten messages: property `amount` is 0 to 9, `region` eu or us, the tag even or odd."""
    name = f"filters_{os.getpid()}_{next(_names)}"
    with metaq.Producer(broker.namesrv) as producer:
        for number in range(10):
            properties = {"amount": str(number), "region": "eu" if number < 5 else "us"}
            producer.send(name, b"%d" % number, tag="even" if number % 2 == 0 else "odd", properties=properties)
    return name


BIG_OF_US = metaq.Sql("amount > 6 AND region IN ('eu', 'us') AND TAGS = 'odd'")


def taken(consumer, count):
    bodies = []
    while len(bodies) < count and (message := consumer.receive(PATIENCE)) is not None:
        with message:
            bodies.append(message.body)
    assert consumer.receive(0.2) is None
    return sorted(bodies)


def test_a_consumer_gets_what_its_condition_is_true_of(broker, topic):
    """By properties and tags together; the group's progress passes over the rest."""
    with metaq.Consumer(broker.namesrv, group=topic, topics={topic: BIG_OF_US}, start="first") as consumer:
        assert taken(consumer, 2) == [b"7", b"9"]
        with metaq.Producer(broker.namesrv) as producer:
            producer.send(topic, b"held pulls too", tag="odd", properties={"amount": "70", "region": "us"})
        assert taken(consumer, 1) == [b"held pulls too"]


def test_a_retried_message_passes_its_filter_again(broker, topic):
    """It comes from the group's retry topic, to which the condition does not apply."""
    with metaq.Consumer(
        broker.namesrv, group=topic, topics={topic: metaq.Sql("amount = 3")}, start="first"
    ) as consumer:
        message = consumer.receive(PATIENCE)
        message.retry(3)
        again = consumer.receive(PATIENCE)
        again.ack()
        assert (again.body, again.reconsume_times) == (b"3", 1)


def test_a_condition_holds_for_all_topics_of_a_pattern(broker, topic):
    """As tags do."""
    wanted = {re.compile(f"{topic}.*"): metaq.Sql("amount = 4")}
    with metaq.Consumer(broker.namesrv, group=topic, topics=wanted, start="first") as consumer:
        assert taken(consumer, 1) == [b"4"]


def test_an_asynchronous_consumer_takes_a_condition(broker, topic):
    """The same class of value, the same meaning."""

    async def main():
        async with aio.Consumer(broker.namesrv, group=topic, topics={topic: BIG_OF_US}, start="first") as consumer:
            bodies = []
            async for message in consumer:
                async with message:
                    bodies.append(message.body)
                if len(bodies) == 2:
                    break
        return sorted(bodies)

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == [b"7", b"9"]


def test_a_reader_takes_a_condition(broker, topic):
    """It ends where the topic ends, though its last messages do not fit."""
    with metaq.Reader(broker.namesrv, topic, tags=metaq.Sql("amount BETWEEN 2 AND 4"), stop_at_end=True) as reader:
        assert sorted(message.body for message in reader) == [b"2", b"3", b"4"]


def test_a_pull_consumer_takes_a_condition_when_it_pulls(broker, topic):
    """Of its topics, or of one pull."""
    with metaq.PullConsumer(broker.namesrv, group=topic, topics={topic: metaq.Sql("amount = 1")}) as consumer:
        queues = consumer.all_queues(topic)

        def pulled(**more):
            return sorted(message.body for queue in queues for message in consumer.pull(queue, 0, 32, **more).messages)

        assert pulled() == [b"1"]
        assert pulled(tags=metaq.Sql("amount > 7")) == [b"8", b"9"]
        consumer.register_topics({topic: metaq.Sql("amount = 2")})
        assert pulled() == [b"2"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("amount >", "line 1, column 9: expected a property"),
        ("amount > 5 AND paid", "line 1, column 16: a property by itself is never true"),
        ("(" * 10_000, "nested more than 64 deep"),
    ],
    ids=["no operand", "never true", "too deep"],
)
def test_a_wrong_condition_is_refused_where_it_is_made(text, said):
    """With its place; no broker is asked."""
    with pytest.raises(metaq.ConfigError, match=said):
        metaq.Sql(text)
    with pytest.raises(TypeError):
        metaq.Sql(5)


def test_a_broker_that_takes_no_conditions_is_told_of(caplog):
    """enablePropertyFilter=false: the consumer's log says it, and what the broker said; a reader raises it."""
    with (
        EmbeddedBroker(options={"enablePropertyFilter": "false"}) as broker,
        metaq.Producer(broker.namesrv) as producer,
    ):
        producer.send("orders", b"x")
        with (
            caplog.at_level(logging.WARNING),
            metaq.Consumer(broker.namesrv, group="g", topics={"orders": metaq.Sql("a = 5")}, start="first"),
        ):
            eventually(lambda: "enablePropertyFilter is false" in caplog.text)
        with (
            metaq.Reader(broker.namesrv, "orders", tags=metaq.Sql("a = 5"), stop_at_end=True) as reader,
            pytest.raises(metaq.BrokerError, match="enablePropertyFilter is false"),
        ):
            next(iter(reader))


def test_members_with_different_conditions_are_told_of(broker, topic, caplog):
    """As with different tags: a broker keeps one subscription per group."""
    with (
        metaq.Consumer(broker.namesrv, group=topic, topics={topic: metaq.Sql("amount = 1")}),
        metaq.Consumer(broker.namesrv, group=topic, topics={topic: metaq.Sql("amount = 2")}, instance_name="two"),
    ):
        eventually(lambda: "SQL92: amount = 1" in caplog.text and "SQL92: amount = 2" in caplog.text)
