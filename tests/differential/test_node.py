"""The Node client ali-ons: sends, push, retries, broadcasting, groups, and their failures. It has no transactions."""

import pytest

from tests.differential.failures import a_killed_broker_is_survived, a_killed_members_queues_are_taken_over
from tests.differential.world import OK, World, bodies, place, scenario

pytestmark = pytest.mark.slow

CLIENT = "node"


@scenario
def test_a_send_gives_its_receipt(world: World) -> None:
    """Tag, keys, properties, delay, a body that is compressed; what a consumer gets of them."""
    topic = world.topic()
    producer = world.producer(CLIENT)
    extra = {"tag": "paid", "keys": "k1 k2", "properties": {"colour": "blue"}}
    for number in range(4):
        world.note(f"{number}", producer.send(topic, f"m{number}", queue=world.queue(topic, number), **extra))
    world.note("untagged", producer.send(topic, "untagged", queue=world.queue(topic, 0)))
    world.note("delay", producer.send(topic, "late", delay_level=1, queue=world.queue(topic, 1), **extra))
    world.note("long", producer.send(topic, "0123456789", times=1000, queue=world.queue(topic, 2), **extra))
    rows = world.push(topic, CLIENT).await_events(7)
    for row in rows:
        row["body"] = row["body"][:100]
    world.note_set("received", rows)


@scenario
def test_what_cannot_be_sent_is_refused(world: World) -> None:
    topic, read_only = world.topic(queues=1), world.topic("read-only", perm=4)
    producer = world.producer(CLIENT, options={"retryTimesWhenSendFailed": 0})
    world.note("properties", producer.sending(topic, "x", properties={"big": "x" * 40_000}))
    world.note("system topic", producer.sending("SCHEDULE_TOPIC_XXXX", "x"))
    world.note("read-only topic", producer.sending(read_only, "x"))
    world.note("unknown topic", producer.sending("no-such-topic-here", "x"))
    world.note("afterwards", producer.send(topic, "x", queue=world.queue(topic, 0)))


@scenario
def test_tags_and_retries_and_dead_letters(world: World) -> None:
    """Two tags of three; what throws comes again and ends in the dead letters, as often as the client says.

    (What only returns ACTION_RETRY does so once: the client passes over that answer for what came again.)
    """
    topic = world.topic(queues=1)
    world.known_group(topic)
    consumer = world.push(
        {topic: "red || blue"},
        CLIENT,
        listen=lambda event: {"throw": "no luck"} if bodies(event["messages"]) == ["bad"] else {"status": OK},
        options={"maxReconsumeTimes": 2},
    )
    producer = world.producer(CLIENT)
    for body, tag in (("good", "red"), ("bad", "blue"), ("unseen", "green")):
        producer.send(topic, body, tag=tag, keys="k", queue=world.queue(topic, 0))
    got = consumer.await_events(4)
    for body in ("good", "bad"):
        world.note(body, [place(message) for message in got if message["body"] == body])
    dead = world.undertaker(CLIENT)
    world.note("dead letter", [place(message) for message in dead.await_events(1)])


@scenario
def test_every_broadcasting_member_gets_everything(world: World) -> None:
    topic = world.topic()
    options = {"messageModel": "BROADCASTING"}
    members = [world.push({topic: "x"}, CLIENT, name, options=options) for name in ("b1", "b2")]
    producer = world.producer(CLIENT)
    for number in range(8):
        tag = "x" if number < 6 else "y"
        producer.send(topic, f"m{number}", tag=tag, queue=world.queue(topic, number % 4))
    for member in members:
        world.note_set(member.name, member.await_events(6))


@scenario
def test_a_group_goes_on_where_it_stopped(world: World) -> None:
    topic = world.topic(queues=1)
    producer = world.producer(CLIENT)
    producer.send(topic, "first", queue=world.queue(topic, 0))
    consumer = world.push(topic, CLIENT)
    consumer.await_events(1)
    world.wait_committed(topic, {0: 1})
    consumer.shutdown()
    producer.send(topic, "second", queue=world.queue(topic, 0))
    world.note("second", bodies(world.push(topic, CLIENT, "c2").await_events(1)))


@pytest.mark.all
@scenario
def test_members_share_the_queues_and_take_over_from_the_dead(world: World) -> None:
    """It rebalances by its timer alone; after kill -9 of one every message reaches the other."""
    a_killed_members_queues_are_taken_over(world, CLIENT)


@pytest.mark.all
@scenario
def test_a_killed_broker_is_survived(world: World) -> None:
    """Producer and consumer go on by themselves; nothing acknowledged is lost."""
    a_killed_broker_is_survived(world, CLIENT)
