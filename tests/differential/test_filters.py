"""SQL filters of Java and Go consumers: what passes, what is refused and where, retries, a change under way, pulls."""

import pytest

from tests.differential.program import Event
from tests.differential.world import LATER, OK, World, bodies, place, scenario
from tests.support import eventually

pytestmark = pytest.mark.slow

SETTINGS = {"enablePropertyFilter": "true"}

MESSAGES: list[dict[str, str]] = [
    {"amount": "5", "region": "eu"}, {"amount": "20", "region": "us", "vip": "true"}, {"amount": "30", "region": "eu"},
    {"amount": "20.0", "region": "asia"}, {"amount": "many", "region": "eu", "vip": "TRUE"}, {"region": "us", "vip": "no"},
    {"amount": "-40"}, {}, {"amount": "11", "region": "EU", "vip": "false"},
]  # fmt: skip

CONDITIONS = {
    "numbers": ("SQL amount > 10 AND amount <= 30", 4),
    "texts": ("SQL region IN ('eu', 'us') AND region <> 'us'", 4),
    "null": ("SQL region IS NULL OR amount IS NULL", 4),
    "between": ("SQL amount BETWEEN 10 AND 20 OR amount NOT BETWEEN 0 AND 30", 4),
    "double": ("SQL amount > 9.5 AND amount < 20.5", 4),
    "boolean": ("SQL vip = TRUE", 3),
    "tags and keys": ("SQL TAGS = 'red' AND KEYS = 'k3'", 2),
    "not": ("SQL NOT (amount > 10) AND NOT (region = 'eu')", 1),
    "never": ("SQL amount", 1),
    "comment and case": ("SQL amount > 10 /* more */ and REGION is null", 4),
}
"""Name → what a group wants, and how many messages that are, with the last."""


def fill(world: World, topic: str) -> None:
    producer = world.producer()
    for number, properties in enumerate(MESSAGES):
        more = {"tag": "red" if number % 2 else "blue", "keys": f"k{number}"}
        producer.send(topic, f"m{number}", properties=properties, queue=world.queue(topic, 0), **more)
    producer.send(topic, "last", properties={"last": "yes"}, queue=world.queue(topic, 0))


def refused(outcome: Event) -> Event:
    """Without the broker's words, which name the place in another way than RocketMQ's."""
    return {"threw": {"code": outcome["threw"]["code"]}} if "threw" in outcome else outcome


def wanting(condition: str) -> str:
    """The condition, or the last message: something comes in any case."""
    return f"SQL ({condition.removeprefix('SQL ')}) OR last = 'yes'"


@scenario
def test_each_condition_lets_the_same_messages_through(world: World) -> None:
    """One group per condition."""
    topic = world.topic(queues=1)
    fill(world, topic)
    for number, (name, (condition, count)) in enumerate(CONDITIONS.items()):
        consumer = world.push({topic: wanting(condition)}, name=f"c{number}", group=world.group(f"g{number}"))
        world.note_set(name, bodies(consumer.await_events(count)))
        consumer.shutdown()


@scenario
def test_go_conditions_let_the_same_messages_through(world: World) -> None:
    """Go sends the condition with its heartbeat alone, without asking first."""
    topic = world.topic(queues=1)
    fill(world, topic)
    for number, name in enumerate(("numbers", "texts", "null", "double")):
        condition, count = CONDITIONS[name]
        consumer = world.push({topic: wanting(condition)}, "go", name=f"c{number}", group=world.group(f"g{number}"))
        world.note_set(name, bodies(consumer.await_events(count)))
        consumer.shutdown()


@scenario
def test_a_wrong_condition_fails_the_start(world: World) -> None:
    """The client asks the broker (46) before its first heartbeat; the code is 23."""
    topic = world.topic(queues=1)
    for number, wrong in enumerate(
        ("amount >", "amount > 'x'", "amount = NULL", "region IN (5)", "a = 'x", "amount BETWEEN 5 AND 1", "")
    ):
        client = world.client("java", f"wrong{number}")
        outcome = client.outcome(
            "push",
            namesrv=world.peer.namesrv,
            group=world.group(f"wrong{number}"),
            topics={topic: f"SQL {wrong}"},
            options={},
        )
        world.note(wrong, refused(outcome))


@scenario
def test_pulls_by_a_condition_answer_with_status_and_next_offset(world: World) -> None:
    """Each brings its own; a wrong one is refused at the pull."""
    topic = world.topic(queues=1)
    fill(world, topic)
    consumer = world.pull_consumer()
    for name, condition in (
        *CONDITIONS.items(),
        ("none", "SQL amount = 4711"),
        ("wrong", "SQL amount >"),
        ("none at all", "SQL "),
    ):
        answer = consumer.outcome("pull", queue=world.queue(topic, 0), expression=condition, offset=0, max=32)
        if "messages" in answer:
            answer["messages"] = bodies(answer["messages"])
        world.note(name, refused(answer))


@scenario
def test_a_retried_message_comes_again(world: World) -> None:
    """The retry topic is subscribed without a condition."""
    topic = world.topic(queues=1)
    failed: list[str] = []

    def listen(event):
        names = bodies(event["messages"])
        if "m2" in names and not failed:
            failed.append("m2")
            return {"status": LATER}
        return {"status": OK}

    world.known_group(topic)
    consumer = world.push({topic: "SQL amount = 30"}, listen=listen)
    fill(world, topic)
    world.note("attempts", [place(message) for message in consumer.await_events(2)])


@scenario
def test_a_condition_may_change_while_its_group_runs(world: World) -> None:
    """What is sent after the change comes by the new one; what the old one has passed over does not come again."""
    topic = world.topic(queues=1)
    producer = world.producer()
    at = {"queue": world.queue(topic, 0)}
    consumer = world.push({topic: "SQL amount > 10"})
    producer.send(topic, "before 5", properties={"amount": "5"}, **at)
    producer.send(topic, "before 20", properties={"amount": "20"}, **at)  # who has got it has passed the other
    world.note_set("before", bodies(consumer.await_events(1)))
    consumer.call("subscribe", topic=topic, expression="SQL amount < 10")

    def changed() -> bool:
        producer.send(topic, "probe", properties={"amount": "1"}, **at)
        return "probe" in bodies(consumer.received())

    eventually(changed)
    producer.send(topic, "after 20", properties={"amount": "20"}, **at)
    producer.send(topic, "after 5", properties={"amount": "5"}, **at)
    got = consumer.await_events(lambda messages: "after 5" in bodies(messages))
    world.note_set("after", sorted(set(bodies(got)) - {"probe"}))
