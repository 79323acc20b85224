"""Namespaces and unit names of the Java client."""

import pytest

from tests.differential.world import LATER, OK, World, bodies, place, scenario

pytestmark = pytest.mark.slow


@scenario
def test_a_namespace_goes_before_every_name(world: World) -> None:
    """Topics, groups, retry topics and dead letters: what the client sees, and what the broker has."""
    plain = f"{world.name}-t"
    world.topic_named(f"ns%{plain}", queues=1)
    options = {"namespace": "ns"}
    world.known_group(plain, options=options)
    consumer = world.push(
        plain,
        listen=lambda event: {"status": LATER if bodies(event["messages"]) == ["bad"] else OK},
        options={**options, "maxReconsumeTimes": 1},
    )
    producer = world.producer(options=options)
    for body in ("good", "bad"):
        world.note(f"receipt of {body}", producer.send(plain, body, keys="k"))
    got = consumer.await_events(3)
    world.note_set("received", [place(message) for message in got])
    world.note("retry topic", world.queues_of(f"%RETRY%ns%{world.group()}"))
    members = world.ask(38, consumerGroup=f"ns%{world.group()}")
    world.note("members", [one.partition("@")[2] for one in members["body"]["consumerIdList"]])
    world.note(
        "by key", [place(one) for one in producer.call("query", topic=plain, key="k", max=9, begin=0, end=1 << 62)]
    )


@scenario
def test_a_unit_name_is_part_of_the_client_id(world: World) -> None:
    topic = world.topic(queues=1)
    consumer = world.push(topic, options={"unitName": "unit-1"})
    world.producer(options={"unitName": "unit-1"}).send(topic, "m", queue=world.queue(topic, 0))
    world.note("received", consumer.await_events(1))
    members = world.ask(38, consumerGroup=world.group())
    world.note("members", [one.partition("@")[2] for one in members["body"]["consumerIdList"]])
