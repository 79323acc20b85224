"""What a Java producer gets for what it sends, and what is found again."""

import pytest

from metaq.admin import Admin
from tests.differential.program import Event
from tests.differential.world import World, bodies, place, scenario
from tests.support import eventually

pytestmark = pytest.mark.slow

SETTINGS = {"maxMessageSize": str(64 * 1024)}


@scenario
def test_each_way_to_send_gives_its_receipt(world: World) -> None:
    """Sync, async, oneway, selector and batch, to a queue that the sender names: status, place, properties of all."""
    topic = world.topic()
    producer = world.producer()
    extra = {"tag": "paid", "keys": "k1 k2", "properties": {"colour": "blue"}, "flag": 7}
    for number, mode in enumerate(("sync", "async", "oneway", "sync")):
        world.note(f"{number} {mode}", producer.send(topic, mode, mode, queue=world.queue(topic, number), **extra))
    world.note("selector", producer.send(topic, "selected", "selector", key="order-7"))
    world.note("selector again", producer.send(topic, "selected again", "selector", key="order-7"))
    batch = [{"topic": topic, "body": f"batch-{number}", **extra} for number in range(3)]
    world.note("batch", producer.send(topic, "", "batch", messages=batch, queue=world.queue(topic, 0)))
    consumer = world.push(topic)
    world.note_set("received", consumer.await_events(9))
    world.note("queues", producer.call("queues", topic=topic))


@scenario
def test_a_queue_chosen_by_the_client_is_one_of_the_topics(world: World) -> None:
    """The round robin of a producer reaches all queues; without a queue of its own a message says the same otherwise."""
    topic = world.topic(queues=3)
    producer = world.producer()
    receipts = producer.call("send_each", topic=topic, mode="sync", bodies=[f"m{number}" for number in range(6)])
    world.note("used", sorted(receipt["queue"]["queue_id"] for receipt in receipts))
    world.note("first", place(receipts[0]))
    world.note_set("received", [place(message) for message in world.push(topic).await_events(6)])


@scenario
def test_what_cannot_be_sent_is_refused_with_the_same_words(world: World) -> None:
    """Too large, too many properties, wrong queue, system topics, wrong names, mixed batches: code and text of each."""
    topic = world.topic()
    other, read_only = world.topic("other"), world.topic("read-only", perm=4)
    producer = world.producer(options={"retryTimesWhenSendFailed": 0, "maxMessageSize": 1 << 22})
    at = {"queue": world.queue(topic, 0)}
    random = "".join(chr(33 + number * 7919 % 90) for number in range(997))

    def somewhere(outcome: Event) -> Event:
        return outcome if "threw" in outcome else place(outcome)

    refused = {
        "body over maxMessageSize": lambda: producer.sending(topic, random, times=500, **at),
        "properties over 32 KiB": lambda: producer.sending(topic, "x", properties={"big": "x" * 40_000}, **at),
        "body over the client's limit": lambda: producer.sending(topic, "x" * 1000, times=5000, **at),
        "empty body": lambda: producer.sending(topic, "", **at),
        "queue beyond the last": lambda: producer.sending(topic, "x", queue=world.queue(topic, 99)),
        "negative queue": lambda: somewhere(producer.sending(other, "x", queue=world.queue(other, -1))),
        "unknown broker": lambda: producer.sending(topic, "x", queue={**world.queue(topic, 0), "broker": "broker-z"}),
        "unknown topic at a queue": lambda: producer.sending(
            "no-such-topic", "x", queue=world.queue("no-such-topic", 0)
        ),
        "read-only topic": lambda: producer.sending(read_only, "x"),
        "read-only topic at a queue": lambda: producer.sending(read_only, "x", queue=world.queue(read_only, 0)),
        "illegal name": lambda: producer.sending("no spaces", "x"),
        "long name": lambda: producer.sending("n" * 300, "x"),
        "system topic": lambda: somewhere(producer.sending("SCHEDULE_TOPIC_XXXX", "x")),
        "template topic": lambda: somewhere(producer.sending("TBW102", "x")),
        "batch of two topics": lambda: producer.sending(
            topic, "", "batch", messages=[{"topic": topic, "body": "a"}, {"topic": read_only, "body": "b"}]
        ),
        "batch with a delay": lambda: producer.sending(
            topic, "", "batch", messages=[{"topic": topic, "body": "a", "delay_level": 1}]
        ),
        "batch over maxMessageSize": lambda: producer.sending(
            topic,
            "",
            "batch",
            messages=[{"topic": topic, "body": "a" * 40_000}, {"topic": topic, "body": "b" * 40_000}],
        ),
        "delay beyond the last level": lambda: producer.sending(topic, "late", delay_level=99, **at),
        "dead letters of a group": lambda: somewhere(producer.sending("%DLQ%nobody", "x")),
        "retries of a group": lambda: producer.sending("%RETRY%nobody", "x", queue=world.queue("%RETRY%nobody", 0)),
    }
    for key, send in refused.items():
        world.note(key, send())
    world.note("sent afterwards", producer.send(topic, "fine", **at))


@scenario
def test_a_first_send_makes_the_topic(world: World) -> None:
    """An unknown topic is made after TBW102's example, as large as the client asks."""
    producer = world.producer(options={"defaultTopicQueueNums": 3})
    topic = f"{world.name}-new"
    world.note("receipt", place(producer.send(topic, "first")))
    queues = eventually(lambda: producer.call("queues", topic=topic) if len(_route(world, topic)) else None)
    world.note("queues", queues)


def _route(world: World, topic: str) -> list[str]:
    with Admin(world.peer.namesrv) as admin:
        return [name for name in admin.list_topics() if name == topic]


@scenario
def test_messages_are_found_by_id_key_and_time(world: World) -> None:
    """By unique id, by offset id, by key with a limit and a range of times; offsets of a queue; and what is not there."""
    topic = world.topic(queues=1)
    producer = world.producer()
    at = {"queue": world.queue(topic, 0)}
    receipts = [producer.send(topic, f"m{number}", keys=f"needle k{number}", **at) for number in range(5)]
    for kind in ("message_id", "offset_message_id"):
        world.note(kind, producer.outcome("view", topic=topic, message_id=receipts[2][kind]))

    def found(**how):
        return producer.outcome("query", topic=topic, **{"max": 32, "begin": 0, "end": (1 << 62), **how})

    eventually(lambda: isinstance(found(key="k4"), list))
    world.note_set("by key", found(key="needle"))
    world.note("one of them", [place(one) for one in found(key="k1")])
    world.note("at most two", len(found(key="needle", max=2)))
    world.note("no such key", found(key="hay"))
    world.note("no such time", found(key="needle", begin=1, end=2))
    world.note("unknown id", producer.outcome("view", topic=topic, message_id="7F0000010000000000000000000000FF"))
    host = receipts[0]["offset_message_id"]
    world.note(
        "offset id past the end", producer.outcome("view", topic=topic, message_id=host[:16] + "00000000FFFFFFF0")
    )
    world.note("offset id inside a record", producer.outcome("view", topic=topic, message_id=host[:-1] + "1"))
    world.note("offsets", producer.call("offsets", queue=world.queue(topic, 0)))
    world.note("offsets of an unknown queue", producer.outcome("offsets", queue=world.queue(topic, 9)))


@scenario
def test_a_long_body_arrives_whole(world: World) -> None:
    """What the client compresses keeps the flag in its record, and comes back as it was."""
    topic = world.topic(queues=1)
    world.producer().send(topic, "0123456789", times=2000, queue=world.queue(topic, 0))
    (message,) = world.push(topic).await_events(1)
    body = message.pop("body")
    world.note("body", (len(body), body == "0123456789" * 2000))
    world.note("message", message)


@scenario
def test_a_broker_that_is_gone_is_told_and_the_next_send_succeeds(world: World) -> None:
    """Killed between two sends, and cut off: how many tries, which exception; then all is as before."""
    topic = world.topic(queues=1)
    producer = world.producer(faulty=True, options={"sendMsgTimeout": 3000})
    at = {"queue": world.queue(topic, 0)}
    world.note("before", producer.send(topic, "before"))
    world.peer.network.cut()
    for mode in ("sync", "async", "oneway"):
        world.note(f"cut off, {mode}", _kind(producer.sending(topic, "lost", mode)))
        world.note(f"cut off, {mode} to a queue", _kind(producer.sending(topic, "lost", mode, **at)))
    world.peer.network.mend()
    eventually(lambda: "status" in producer.sending(topic, "between"))
    world.peer.network.stall("to client")
    world.note("no answer", _kind(producer.sending(topic, "unknown")))
    world.peer.network.mend()
    world.peer.kill_broker()
    world.note("killed", "threw" in producer.sending(topic, "lost"))
    world.peer.start_broker()
    eventually(lambda: "status" in producer.sending(topic, "after"))
    consumer = world.push(topic)
    stored = {"before", "between", "after"}  # in no order: the listener has threads
    got = bodies(consumer.await_events(lambda messages: stored <= set(bodies(messages))))
    world.note("stored", sorted({body for body in got if body != "unknown"}))


def _kind(outcome):
    """Of an exception, the classes: their texts name the times that the client tried it at."""
    kinds = []
    what = outcome["threw"] if outcome and "threw" in outcome else None
    while what:
        kinds.append((what["class"], what.get("code")))
        what = what.get("cause")
    return kinds if outcome and "threw" in outcome else outcome
