"""The Java client 3.2.6 of the developer guide, unchanged: everything that its guide shows (B2)."""

import pytest

from tests.differential.program import Event
from tests.differential.world import LATER, OK, World, bodies, place, scenario
from tests.support import eventually

pytestmark = pytest.mark.slow

SETTINGS = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
CLIENT = "java3"


@scenario
def test_each_way_to_send_gives_its_receipt(world: World) -> None:
    """Sync, async, oneway and by selector; what a consumer gets of them."""
    topic = world.topic()
    producer = world.producer(CLIENT)
    extra = {"tag": "paid", "keys": "k1 k2", "properties": {"colour": "blue"}, "flag": 7}
    for number, mode in enumerate(("sync", "async", "oneway", "sync")):
        world.note(f"{number} {mode}", producer.send(topic, mode, mode, queue=world.queue(topic, number), **extra))
    for body in ("selected", "selected again"):
        world.note(body, producer.send(topic, body, "selector", key="order-7"))
    consumer = world.push(topic, CLIENT)
    world.note_set("received", consumer.await_events(6))
    world.note("queues", producer.call("queues", topic=topic))


@scenario
def test_a_group_with_tags_gets_what_it_asked_for(world: World) -> None:
    topic = world.topic()
    producer = world.producer(CLIENT)
    for tag in ("red", "green", "blue"):
        for number in range(4):
            producer.send(topic, f"{tag}-{number}", tag=tag, queue=world.queue(topic, number))
    world.note_set(
        "two tags", world.push({topic: "red || blue"}, CLIENT, "c1", group=world.group("two")).await_events(8)
    )


@scenario
def test_every_broadcasting_member_gets_everything(world: World) -> None:
    topic = world.topic()
    options = {"messageModel": "BROADCASTING"}
    members = [world.push({topic: "x"}, CLIENT, name, options=options) for name in ("b1", "b2")]
    producer = world.producer(CLIENT)
    for number in range(8):
        producer.send(topic, f"m{number}", tag="x" if number < 6 else "y", queue=world.queue(topic, number % 4))
    for member in members:
        world.note_set(member.name, member.await_events(6))


@scenario
def test_keys_keep_their_order(world: World) -> None:
    """By selector into one queue, by an orderly listener out of it, also when it fails once."""
    topic = world.topic()
    producer = world.producer(CLIENT)
    for number in range(5):
        producer.send(topic, f"m{number}", "selector", key="order-7")
    failed: list[Event] = []

    def listen(event: Event) -> Event:
        if bodies(event["messages"]) == ["m2"] and not failed:
            failed.append(event)
            return {"status": LATER, "suspendCurrentQueueTimeMillis": 100}
        return {"status": OK}

    consumer = world.push(topic, CLIENT, orderly=True, listen=listen)
    world.note("order", [(message["body"], message["reconsume_times"]) for message in consumer.await_events(6)])


@scenario
def test_what_fails_is_retried_and_ends_in_the_dead_letters(world: World) -> None:
    """As often as the group's settings at the broker say, for this client has no option for it."""
    topic = world.topic(queues=1)
    world.known_group(topic)
    config = {"groupName": world.group(), "retryMaxTimes": 2, "retryQueueNums": 1, "consumeEnable": True}
    world.note("configured", world.ask(200, body={**config, "consumeBroadcastEnable": True, "brokerId": 0}))
    consumer = world.push(topic, CLIENT, listen=lambda _: {"status": LATER})
    world.producer(CLIENT).send(topic, "bad", keys="k", tag="t", queue=world.queue(topic, 0))
    got = consumer.await_events(3)
    world.note("attempts", [place(message) for message in got])
    dead = world.undertaker(CLIENT)
    world.note("dead letter", [place(message) for message in dead.await_events(1)])


@scenario
def test_a_delay_level_is_kept(world: World) -> None:
    topic = world.topic(queues=1)
    consumer = world.push(topic, CLIENT)
    world.producer(CLIENT).send(topic, "late", delay_level=1, tag="t", queue=world.queue(topic, 0))
    (message,) = consumer.await_events(1)
    world.note("received", message)
    world.note("not before a second", message["waited_ms"] >= 900)


@scenario
def test_messages_are_found_by_id_and_key(world: World) -> None:
    topic = world.topic(queues=1)
    producer = world.producer(CLIENT)
    receipts = [
        producer.send(topic, f"m{number}", keys=f"needle k{number}", queue=world.queue(topic, 0)) for number in range(3)
    ]
    world.note("by id", producer.outcome("view", topic=topic, message_id=receipts[1]["message_id"]))

    def found(key: str, most: int = 32) -> list[Event]:
        rows = producer.outcome("query", topic=topic, key=key, max=most, begin=0, end=1 << 62)
        return rows if isinstance(rows, list) else []

    eventually(lambda: len(found("needle")) == 3)
    world.note_set("by key", found("needle"))
    world.note("no such key", producer.outcome("query", topic=topic, key="hay", max=32, begin=0, end=1 << 62))
    world.note("offsets", producer.call("offsets", queue=world.queue(topic, 0)))


@scenario
def test_each_pull_answers_with_status_and_next_offset(world: World) -> None:
    topic = world.topic(queues=1)
    producer = world.producer(CLIENT)
    queue = world.queue(topic, 0)
    for number in range(5):
        producer.send(topic, f"m{number}", tag="even" if number % 2 == 0 else "odd", queue=queue)
    consumer = world.pull_consumer(CLIENT)
    world.note("queues", consumer.ask("fetchSubscribeMessageQueues", topic))
    for expression, offset in (("*", 0), ("even", 1), ("none", 0), ("*", 5), ("*", 99)):
        answer = consumer.outcome("pull", queue=queue, expression=expression, offset=offset, max=32)
        world.note(f"{expression} at {offset}", {**answer, "messages": bodies(answer.get("messages", []))})
    consumer.ask("updateConsumeOffset", queue, 3)
    consumer.shutdown()
    again = world.pull_consumer(CLIENT, "again")
    world.note("kept", again.ask("fetchConsumeOffset", queue, True))


@scenario
def test_the_scheduled_form_calls_for_each_owned_queue(world: World) -> None:
    topic = world.topic(queues=2)
    producer = world.producer(CLIENT)
    for queue in range(2):
        producer.send(topic, f"m{queue}", queue=world.queue(topic, queue))
    service = world.scheduled(topic, CLIENT)

    def found() -> list[Event] | None:
        events = [one for one in service.program.events(service.name, "pulled") if one["result"]["status"] == "FOUND"]
        return events if len(events) == 2 else None

    world.note_set("found", [{key: event[key] for key in ("queue", "offset", "result")} for event in eventually(found)])


@scenario
def test_transactions_end_as_their_producer_says(world: World) -> None:
    """Commit, rollback, and the check-back of what was left open."""
    topic = world.topic(queues=1)
    local = {"yes": "COMMIT_MESSAGE", "no": "ROLLBACK_MESSAGE", "later yes": "UNKNOW", "later no": "UNKNOW"}
    checked = {"later yes": "COMMIT_MESSAGE", "later no": "ROLLBACK_MESSAGE"}
    asked: list[str] = []

    def check(event: Event) -> str:
        asked.append(event["body"])
        return checked[event["body"]]

    producer = world.transaction_producer(CLIENT, execute=lambda event: local[event["body"]], check=check)
    for body in local:
        receipt = producer.call("send_in_transaction", topic=topic, body=body, tag="t", keys="k")
        world.note(body, {key: value for key, value in receipt.items() if key != "queue_offset"})
    consumer = world.push(topic, CLIENT)
    consumer.await_events(lambda got: {"yes", "later yes"} <= set(bodies(got)))
    eventually(lambda: {"later yes", "later no"} <= set(asked))
    world.producer(CLIENT).send(topic, "last", queue=world.queue(topic, 0))
    got = consumer.await_events(lambda messages: "last" in bodies(messages))
    rows = [place(message) for message in got]
    for row in rows:
        row["properties"].pop("TRANSACTION_CHECK_TIMES", None)
    world.note_set("received", rows)


@scenario
def test_a_suspended_consumer_gets_nothing_until_it_resumes(world: World) -> None:
    """And after its shutdown another one of the group goes on where it was."""
    topic = world.topic(queues=1)
    producer = world.producer(CLIENT)
    consumer = world.push(topic, CLIENT)
    producer.send(topic, "before", queue=world.queue(topic, 0))
    consumer.await_events(1)
    consumer.call("suspend")
    producer.send(topic, "meanwhile", queue=world.queue(topic, 0))
    consumer.call("resume")
    world.note("received", bodies(consumer.await_events(2)))
    consumer.shutdown()
    producer.send(topic, "afterwards", queue=world.queue(topic, 0))
    again = world.push(topic, CLIENT, "c2")
    got = bodies(again.await_events(lambda got: "afterwards" in bodies(got)))
    # Beside it, in any order, what the first one had consumed and not yet told.
    world.note("afterwards", got[got.index("afterwards")])


@pytest.mark.all
@scenario
def test_a_killed_broker_is_survived(world: World) -> None:
    """Producer and consumer go on by themselves; nothing acknowledged is lost."""
    topic = world.topic(queues=1)
    producer = world.producer(CLIENT, options={"sendMsgTimeout": 3000})
    consumer = world.push(topic, CLIENT)
    producer.send(topic, "before", queue=world.queue(topic, 0))
    consumer.await_events(1)
    world.peer.kill_broker()
    world.peer.start_broker()
    eventually(lambda: "status" in producer.sending(topic, "after", queue=world.queue(topic, 0)))
    got = consumer.await_events(lambda messages: "after" in bodies(messages))
    world.note("received", sorted(set(bodies(got))))
