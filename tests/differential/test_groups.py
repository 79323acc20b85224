"""Whole groups of Java members: who owns which queues as they join, leave and die; strategies; listeners; offsets."""

import pytest

from tests.differential.program import Event
from tests.differential.world import Consumer, World, bodies, scenario, succeed
from tests.support import eventually

pytestmark = pytest.mark.slow

QUEUES = 7


def _owners(world: World, topic: str, *members: Consumer, wanted: int | None = None) -> dict[str, list[int]]:
    """Who receives from which queue, as soon as two rounds of one message per queue went to the same `wanted` owners each once.

    A single round may fall into a change of owners, some of its messages before it and some behind.
    """
    producer = world.producer(name="owners")
    rounds = iter(range(1_000))
    before: dict[str, list[int]] = {}

    def settled() -> dict[str, list[int]] | None:
        word = f"round-{next(rounds)}"
        for queue in range(QUEUES):
            producer.send(topic, f"{word}:{queue}", queue=world.queue(topic, queue))
        mine = {
            member.name: lambda member=member: sorted(
                {message["queue_id"] for message in member.received() if message["body"].startswith(f"{word}:")}
            )
            for member in members
        }
        eventually(lambda: {queue for owned in mine.values() for queue in owned()} == set(range(QUEUES)))
        found = {name: owned() for name, owned in mine.items()}
        sizes = sum(len(owned) for owned in found.values())
        nonlocal before
        before, was = found, before
        is_shared = sizes == QUEUES and sum(map(bool, found.values())) == (wanted or len(members))
        return found if is_shared and found == was else None

    found = eventually(settled)
    producer.shutdown()
    return found


@scenario
def test_members_share_the_queues_as_they_join_and_leave(world: World) -> None:
    """Seven queues over one, two, three members and back; surplus members of a small topic idle."""
    topic = world.topic(queues=QUEUES)
    members = []
    for name in ("c1", "c2", "c3"):
        members.append(world.push(topic, name=name))
        world.note(f"with {name}", _owners(world, topic, *members))
    members.pop(1).shutdown()
    world.note("without c2", _owners(world, topic, *members))


@scenario
def test_a_killed_members_queues_are_taken_over(world: World) -> None:
    """kill -9: the broker notices the end of the connection and tells the others at once."""
    topic = world.topic(queues=QUEUES)
    program = world.own_program("java")
    first = world.push(topic, name="c1")
    second = world.push(topic, program, "c2")
    world.note("both", _owners(world, topic, first, second))
    program.kill()
    world.note("alone", _owners(world, topic, first))


@scenario
def test_each_strategy_of_java_shares_the_queues_its_way(world: World) -> None:
    """Circle, consistent hash, by configuration, machine rooms, and a strategy of the user's own."""
    for kind in ("circle", "hash", "nearby"):
        topic = world.topic(kind, queues=QUEUES)
        members = [
            world.push(topic, name=f"{kind}{number}", group=world.group(kind), strategy={"kind": kind})
            for number in (1, 2)
        ]
        world.note(kind, _owners(world, topic, *members))
        for member in members:
            member.shutdown()
    topic = world.topic("config", queues=QUEUES)
    for name, numbers in (("f1", (0, 1, 2, 3, 4)), ("f2", (5, 6))):
        strategy = {"kind": "config", "queues": [world.queue(topic, number) for number in numbers]}
        members.append(world.push(topic, name=name, group=world.group("config"), strategy=strategy))
    world.note("config", _owners(world, topic, *members[-2:]))


@scenario
def test_a_strategy_of_the_users_sees_queues_and_members_in_order(world: World) -> None:
    """What it is asked with, and that its answer holds."""
    topic = world.topic(queues=QUEUES)
    asked: dict[str, list[Event]] = {"s1": [], "s2": []}

    def allocate(event: Event) -> list[int]:
        asked[event["name"]].append(event)
        topic_of_queue = event["queues"][0]["topic"]
        if topic_of_queue != topic:
            return list(range(len(event["queues"])))
        return [0] if event["name"] == "s1" else list(range(1, QUEUES))

    members = [world.push(topic, name=name, allocate=allocate) for name in ("s1", "s2")]
    world.note("owners", _owners(world, topic, *members))
    last = [event for event in asked["s2"] if event["queues"][0]["topic"] == topic][-1]
    world.note("queues", last["queues"])
    world.note("ids", [one.partition("@")[2] for one in last["ids"]])


@pytest.mark.all
@scenario
def test_a_broker_restart_brings_no_member_out_of_step(world: World) -> None:
    """Stopped and started: both members own their queues again, and nothing acknowledged before comes twice."""
    topic = world.topic(queues=QUEUES)
    members = [world.push(topic, name=name) for name in ("c1", "c2")]
    world.note("before", _owners(world, topic, *members))
    world.peer.stop_broker()
    world.peer.start_broker()
    eventually(lambda: world.producer(name="probe").call("queues", topic=topic))
    world.note("after", _owners(world, topic, *members))


@scenario
def test_members_with_different_subscriptions_take_turns(world: World) -> None:
    """A member that leaves a topic out: the other one gets all of it that comes to its queues."""
    one, other = world.topic("one", queues=1), world.topic("other", queues=1)
    consumer = world.push({one: "*", other: "*"}, name="c1", listen=succeed)
    producer = world.producer()
    producer.send(one, "1", queue=world.queue(one, 0))
    producer.send(other, "2", queue=world.queue(other, 0))
    world.note_set("both", bodies(consumer.await_events(2)))
    consumer.call("unsubscribe", topic=other)
    producer.send(one, "3", queue=world.queue(one, 0))
    world.note_set("after unsubscribe", bodies(consumer.await_events(3))[2:])


@scenario
def test_the_broker_tells_who_is_in_a_group(world: World) -> None:
    """38 and its refusals, and 203 of a group that nobody knows."""
    topic = world.topic(queues=1)
    world.push(topic, name="c1")
    answer = world.ask(38, consumerGroup=world.group())
    world.note("code", answer["code"])
    world.note("members", [one.partition("@")[2] for one in answer["body"]["consumerIdList"]])
    world.note("unknown group", world.ask(38, consumerGroup="nobody"))
    world.note("connections of an unknown group", world.ask(203, consumerGroup="nobody"))
    world.note("producers of an unknown group", world.ask(204, producerGroup="nobody", topic=topic))


@scenario
def test_offsets_are_kept_and_refused_alike(world: World) -> None:
    """14 and 15 of known and unknown groups, topics and queues; 30, 31 and 29 beside them."""
    topic = world.topic(queues=1)
    producer = world.producer()
    for number in range(3):
        producer.send(topic, f"m{number}", queue=world.queue(topic, 0))
    group = {"consumerGroup": world.group(), "topic": topic, "queueId": 0}
    world.note("young group", world.ask(14, **group))
    world.note("commit", world.ask(15, **group, commitOffset=2))
    world.note("committed", world.ask(14, **group))
    world.note("back", world.ask(15, **group, commitOffset=1))
    world.note("is back", world.ask(14, **group))
    world.note("past the end", world.ask(15, **group, commitOffset=99))
    world.note("is past the end", world.ask(14, **group))
    world.note("unknown queue", world.ask(14, **{**group, "queueId": 9}))
    world.note("unknown topic", world.ask(14, **{**group, "topic": "no-such-topic"}))
    for code in (30, 31, 32):
        world.note(f"{code}", world.ask(code, topic=topic, queueId=0))
        world.note(f"{code} of an unknown queue", world.ask(code, topic=topic, queueId=9))
        world.note(f"{code} of an unknown topic", world.ask(code, topic="no-such-topic", queueId=0))
    for when in (0, 1 << 50):
        world.note(f"29 at {when}", world.ask(29, topic=topic, queueId=0, timestamp=when))
