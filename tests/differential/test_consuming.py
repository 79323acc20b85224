"""Java push consumers: clustering and broadcasting, tags, retries, dead letters, delays, offsets."""

import pytest

from tests.differential.program import NEVER
from tests.differential.world import LATER, OK, PATIENCE_MS, World, bodies, place, scenario
from tests.support import eventually

pytestmark = pytest.mark.slow

AWAITED = {"awaitTerminationMillisWhenShutdown": PATIENCE_MS}
"""A shutdown waits for the listeners before it tells how far the group is: the last message has come here, and the answer to it has
perhaps not come there. Without, a busy machine gets that message again."""


def _failing(*bad: str, **more):
    """A listener that fails what is in `bad`, and says `more` of when to come again."""
    return lambda event: {"status": LATER, **more} if set(bodies(event["messages"])) & set(bad) else {"status": OK}


@scenario
def test_a_group_with_tags_gets_what_it_asked_for(world: World) -> None:
    """Two tags of three, of ASCII and other characters; a message without a tag goes to nobody."""
    topic = world.topic()
    producer = world.producer()
    for tag in ("red", "green", "blue", "größe"):
        for number in range(4):
            producer.send(topic, f"{tag}-{number}", tag=tag, queue=world.queue(topic, number))
    producer.send(topic, "untagged", queue=world.queue(topic, 0))
    world.note_set("two tags", world.push({topic: "red || größe"}, name="c1", group=world.group("two")).await_events(8))
    world.note_set("all", world.push({topic: "*"}, name="c2", group=world.group("all")).await_events(17))


@scenario
def test_what_fails_is_retried_and_ends_in_the_dead_letters(world: World) -> None:
    """Each attempt's count and properties, the dead letter's; a success beside it comes once."""
    topic = world.topic(queues=1)
    world.known_group(topic)
    consumer = world.push(topic, listen=_failing("bad"), options={"maxReconsumeTimes": 2})
    producer = world.producer()
    at = {"queue": world.queue(topic, 0)}
    producer.send(topic, "bad", keys="k", tag="t", properties={"colour": "blue"}, flag=3, **at)
    producer.send(topic, "good", **at)
    got = consumer.await_events(4)
    world.note_set("good", [message for message in got if message["body"] == "good"])
    world.note("attempts", [place(message) for message in got if message["body"] == "bad"])
    dead = world.undertaker()
    world.note("dead letter", [place(message) for message in dead.await_events(1)])
    world.note("calls of it", len(consumer.calls()))


@scenario
def test_a_listener_chooses_when_a_message_comes_again(world: World) -> None:
    """A delay level of its own; -1 for the dead letters at once; an exception and null as failure; part of a batch."""
    topic = world.topic(queues=1)
    world.known_group(topic)
    answers = {
        "level": [{"status": LATER, "delayLevelWhenNextConsume": 3}],
        "never": [{"status": LATER, "delayLevelWhenNextConsume": -1}],
        "throws": [{"throw": "no luck"}],
        "null": [{"status": None}],
    }

    def listen(event):
        waiting = answers[event["messages"][0]["body"]]
        return waiting.pop() if waiting else {"status": OK}

    consumer = world.push(topic, listen=listen)
    producer = world.producer()
    for body in answers:
        producer.send(topic, body, queue=world.queue(topic, 0))
    got = consumer.await_events(7)
    for body in answers:
        world.note(body, [place(message) for message in got if message["body"] == body])
    dead = world.undertaker()
    world.note("dead letter", [place(message) for message in dead.await_events(1)])


@scenario
def test_an_ack_index_succeeds_up_to_it(world: World) -> None:
    """Of a batch handed over at once, those behind the index come again."""
    topic = world.topic(queues=1)
    world.known_group(topic)
    producer = world.producer()
    messages = [{"topic": topic, "body": f"m{number}"} for number in range(4)]
    producer.send(topic, "", "batch", messages=messages, queue=world.queue(topic, 0))

    def listen(event):
        first = event["messages"][0]["reconsume_times"] == 0
        return {"status": OK, "ackIndex": 1} if first and len(event["messages"]) == 4 else {"status": OK}

    consumer = world.push(topic, listen=listen, options={"consumeMessageBatchMaxSize": 4})
    got = consumer.await_events(6)
    world.note("first call", consumer.calls()[0])
    world.note_set("again", [place(message) for message in got[4:]])


@scenario
def test_every_broadcasting_member_gets_everything_once(world: World) -> None:
    """Also what fails, which is not sent again; the offsets are the members' own."""
    topic = world.topic()
    options = {"messageModel": "BROADCASTING", **AWAITED}
    members = [world.push({topic: "x"}, name=name, listen=_failing("m1"), options=options) for name in ("b1", "b2")]
    producer = world.producer()
    for number in range(8):
        producer.send(topic, f"m{number}", tag="x" if number < 6 else "y", queue=world.queue(topic, number % 4))
    for member in members:
        world.note_set(member.name, member.await_events(6))
    world.note("retry topic", world.queues_of(f"%RETRY%{world.group()}"))
    members[0].shutdown()
    producer.send(topic, "while away", tag="x", queue=world.queue(topic, 0))
    again = world.push({topic: "x"}, name="b1", options={"messageModel": "BROADCASTING"})
    world.note_set("after a restart", again.await_events(1))


@scenario
def test_a_delay_level_is_kept(world: World) -> None:
    """Properties and flags of what was delayed, its place, and that it came neither early nor much later."""
    topic = world.topic(queues=2)
    consumer = world.push(topic)
    producer = world.producer()
    for level in (1, 2):
        receipt = producer.send(
            topic, f"level {level}", delay_level=level, tag="t", queue=world.queue(topic, level - 1)
        )
        world.note(f"receipt {level}", receipt)
    got = {message["body"]: message for message in consumer.await_events(2)}
    for level, seconds in ((1, 1), (2, 2)):
        message = got[f"level {level}"]
        world.note(f"message {level}", message)
        world.note(f"not before {seconds} s", message["waited_ms"] >= seconds * 1000 - 100)


@scenario
def test_a_group_goes_on_where_it_stopped(world: World) -> None:
    """After its own restart, and the broker's: what was acknowledged does not come again, everything else does."""
    topic = world.topic()
    producer = world.producer()

    def send(word: str) -> None:
        for number in range(4):
            producer.send(topic, f"{word}-{number}", queue=world.queue(topic, number))

    send("first")
    consumer = world.push(topic, options=AWAITED)
    world.note_set("first", consumer.await_events(4))
    consumer.shutdown()
    world.wait_committed(topic, dict.fromkeys(range(4), 1))
    send("second")
    consumer = world.push(topic, options=AWAITED)
    world.note_set("second", consumer.await_events(4))
    consumer.shutdown()
    world.wait_committed(topic, dict.fromkeys(range(4), 2))
    world.peer.stop_broker()
    world.peer.start_broker()
    eventually(lambda: "status" in producer.sending(topic, "third-0", queue=world.queue(topic, 0)))
    consumer = world.push(topic)
    world.note_set("third", set(bodies(consumer.await_events(1))))


@scenario
def test_what_was_not_acknowledged_comes_to_the_next_member(world: World) -> None:
    """A member killed with a message in hand: another one gets it, and all others that were not committed."""
    topic = world.topic(queues=1)
    producer = world.producer()
    for number in range(3):
        producer.send(topic, f"m{number}", queue=world.queue(topic, 0))
    program = world.own_program("java")
    first = world.push(topic, program, "c1", listen=lambda _: NEVER)
    first.await_events(3)
    program.kill()
    world.note_set("again", world.push(topic, name="c2").await_events(3))


@scenario
def test_a_suspended_consumer_gets_nothing_until_it_resumes(world: World) -> None:
    topic = world.topic(queues=1)
    producer = world.producer()
    consumer = world.push(topic)
    producer.send(topic, "before", queue=world.queue(topic, 0))
    consumer.await_events(1)
    consumer.call("suspend")
    producer.send(topic, "meanwhile", queue=world.queue(topic, 0))
    producer.send(topic, "last", queue=world.queue(topic, 0))
    consumer.call("resume")
    world.note("all", consumer.await_events(3))


@pytest.mark.all
@scenario
def test_a_cut_connection_loses_nothing(world: World) -> None:
    """Cut while messages come: after it is mended the group has everything."""
    topic = world.topic()
    producer = world.producer()
    consumer = world.push(topic, faulty=True)
    for number in range(20):
        producer.send(topic, f"m{number}", queue=world.queue(topic, number % 4))
        if number == 10:
            consumer.await_events(1)
            world.peer.network.cut()
    world.peer.network.mend()
    world.note_set("received", set(bodies(consumer.await_events(lambda got: len(set(bodies(got))) == 20))))


@scenario
def test_where_a_new_group_begins(world: World) -> None:
    """First, last and a time, on a young queue: all at its first message, which is still in memory."""
    topic = world.topic(queues=1)
    world.producer().send(topic, "old", queue=world.queue(topic, 0))
    for where in ("CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_TIMESTAMP"):
        consumer = world.push(topic, name=where, group=world.group(where), options={"consumeFromWhere": where})
        world.note(where, consumer.await_events(1))


@pytest.mark.all
@scenario
def test_a_topic_subscribed_later_is_received(world: World) -> None:
    """Within a rebalance, and from its first offset."""
    topic, other = world.topic(queues=1), world.topic("other", queues=1)
    producer = world.producer()
    consumer = world.push(topic)
    producer.send(topic, "first", queue=world.queue(topic, 0))
    consumer.await_events(1)
    producer.send(other, "other", queue=world.queue(other, 0))
    consumer.call("subscribe", topic=other, expression="*")
    world.note("received", consumer.await_events(2))


@scenario
def test_what_is_given_back_by_hand_is_taken_or_refused(world: World) -> None:
    """36 for unknown groups and records, and with levels and limits of all kinds: code and what becomes of it."""
    topic = world.topic(queues=1)
    world.known_group(topic)  # Before there is a message: its consumer might take it, and give it back as it ends.
    receipt = world.producer().send(topic, "again", tag="t", keys="k", queue=world.queue(topic, 0))
    offset = int(receipt["offset_message_id"][16:], 16)
    back = {"group": world.group(), "originTopic": topic, "delayLevel": 1, "offset": offset}
    world.note("no record there", world.ask(36, **{**back, "offset": 1 << 40}))
    world.note("negative offset", world.ask(36, **{**back, "offset": -1}))
    world.note("unknown group", world.ask(36, **{**back, "group": world.group("unknown")}))
    # The name server may hear of it a moment later.
    world.note("its retry topic", eventually(lambda: world.queues_of(f"%RETRY%{world.group('unknown')}")))
    world.note("taken", world.ask(36, **back))
    consumer = world.push(f"%RETRY%{world.group()}", name="r", group=world.group("reader"))
    world.note("retry", [place(message) for message in consumer.await_events(1)])
    world.note("spent", world.ask(36, **{**back, "maxReconsumeTimes": 0}))
    dead = world.undertaker()
    world.note("dead letter", [place(message) for message in dead.await_events(1)])
