"""The C++ client: sends, push, orderly, retries, transactions, groups, and their failures."""

import pytest

from tests.differential.failures import a_killed_broker_is_survived, a_killed_members_queues_are_taken_over
from tests.differential.program import Event
from tests.differential.world import LATER, OK, World, bodies, place, scenario
from tests.support import eventually

pytestmark = pytest.mark.slow

SETTINGS = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
CLIENT = "cpp"


@scenario
def test_each_way_to_send_gives_its_receipt(world: World) -> None:
    """Sync, oneway and by sharding key; what a consumer gets of them."""
    topic = world.topic(queues=1)
    producer = world.producer(CLIENT)
    extra = {"tag": "paid", "keys": "k1 k2", "properties": {"colour": "blue"}}
    for mode in ("sync", "ordered", "oneway"):  # the last one may be stored behind what is sent after it
        world.note(mode, producer.send(topic, mode, mode, key="order-7", **extra))
    world.note("delay", producer.send(topic, "late", delay_level=1, **extra))
    consumer = world.push(topic, CLIENT)
    world.note_set("received", consumer.await_events(4))


@scenario
def test_what_cannot_be_sent_is_refused(world: World) -> None:
    topic, read_only = world.topic(queues=1), world.topic("read-only", perm=4)
    producer = world.producer(CLIENT)
    world.note("properties", producer.sending(topic, "x", properties={"big": "x" * 40_000}))
    world.note("system topic", _thrown(producer.sending("SCHEDULE_TOPIC_XXXX", "x")))
    world.note("read-only topic", _thrown(producer.sending(read_only, "x")))
    world.note("afterwards", producer.send(topic, "x"))


def _thrown(outcome: Event) -> object:
    return outcome["threw"]["class"] if "threw" in outcome else outcome


@scenario
def test_tags_and_retries_and_dead_letters(world: World) -> None:
    """As often as the group's settings at the broker say."""
    topic = world.topic(queues=1)
    world.known_group(topic)
    config = {"groupName": world.group(), "retryMaxTimes": 2, "retryQueueNums": 1, "consumeEnable": True}
    world.ask(200, body={**config, "consumeBroadcastEnable": True, "brokerId": 0})
    consumer = world.push(
        {topic: "red || blue"},
        CLIENT,
        listen=lambda event: {"status": LATER if bodies(event["messages"]) == ["bad"] else OK},
    )
    producer = world.producer(CLIENT)
    producer.send(topic, "good", tag="red", keys="k")
    consumer.await_events(1)  # or the client gives it back with the one behind it
    for body, tag in (("bad", "blue"), ("unseen", "green")):
        producer.send(topic, body, tag=tag, keys="k")
    got = consumer.await_events(lambda messages: bodies(messages).count("bad") >= 3 and "good" in bodies(messages))
    for body in ("good", "bad"):
        world.note(body, [place(message) for message in got if message["body"] == body])
    dead = world.undertaker()
    world.note("dead letter", [place(message) for message in dead.await_events(1)])


@scenario
def test_an_orderly_listener_keeps_the_order(world: World) -> None:
    """A failing message blocks its queue."""
    topic = world.topic(queues=1)
    producer = world.producer(CLIENT)
    for number in range(4):
        producer.send(topic, f"m{number}")
    failed: list[str] = []

    def listen(event: Event) -> Event:
        if bodies(event["messages"]) == ["m1"] and not failed:
            failed.append("m1")
            return {"status": LATER}
        return {"status": OK}

    got = world.push(topic, CLIENT, orderly=True, listen=listen).await_events(5)
    world.note("received", bodies(got))


@scenario
def test_every_broadcasting_member_gets_everything(world: World) -> None:
    topic = world.topic()
    members = [
        world.push({topic: "x"}, CLIENT, name, options={"messageModel": "BROADCASTING"}) for name in ("b1", "b2")
    ]
    producer = world.producer(CLIENT)
    for number in range(8):
        producer.send(topic, f"m{number}", tag="x" if number < 6 else "y")
    for member in members:
        world.note_set(member.name, [place(message) for message in member.await_events(6)])


@scenario
def test_transactions_end_as_their_producer_says(world: World) -> None:
    """Commit, rollback, and the check of what was left open."""
    # A half message at log offset 0 would pass for none.
    world.producer(CLIENT, group=world.group("before")).send(world.topic("before"), "m")
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
    got = consumer.await_events(lambda messages: {"yes", "later yes"} <= set(bodies(messages)))
    eventually(lambda: {"later yes", "later no"} <= set(asked))
    world.note_set("received", [place(message) for message in got])


@pytest.mark.all
@scenario
def test_a_killed_members_queues_are_taken_over(world: World) -> None:
    """Two processes share the queues; after kill -9 of one every message reaches the other."""
    a_killed_members_queues_are_taken_over(world, CLIENT)


@pytest.mark.all
@scenario
def test_a_killed_broker_is_survived(world: World) -> None:
    """Producer and consumer go on by themselves; nothing acknowledged is lost."""
    a_killed_broker_is_survived(world, CLIENT, chooses_queues=False)
