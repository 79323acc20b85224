"""The Go client v2: sends, push, orderly, retries, transactions, groups, and their failures."""

import pytest

from tests.differential.failures import a_killed_broker_is_survived
from tests.differential.program import Event, ForeignProgram
from tests.differential.world import LATER, OK, World, bodies, place, scenario
from tests.support import eventually

pytestmark = pytest.mark.slow

SETTINGS = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
CLIENT = "go"


@scenario
def test_each_way_to_send_gives_its_receipt(world: World) -> None:
    """Sync, async, oneway and batch; what a consumer gets of them."""
    topic = world.topic()
    producer = world.producer(CLIENT)
    extra = {"tag": "paid", "keys": "k1", "properties": {"colour": "blue"}, "flag": 7}
    for number, mode in enumerate(("sync", "async", "oneway", "sync")):
        world.note(f"{number} {mode}", producer.send(topic, mode, mode, queue=world.queue(topic, number), **extra))
    batch = [{"topic": topic, "body": f"batch-{number}", "tag": "paid"} for number in range(3)]
    world.note("batch", producer.sending(topic, "", "batch", messages=batch, queue=world.queue(topic, 0)))
    world.note_set("received", world.push(topic, CLIENT).await_events(7))


@scenario
def test_what_cannot_be_sent_is_refused(world: World) -> None:
    """The broker's code reaches the sender: properties, system topics, a topic that may not be written."""
    topic, read_only = world.topic(queues=1), world.topic("read-only", perm=4)
    producer = world.producer(CLIENT, options={"retryTimesWhenSendFailed": 0})
    world.note("properties", producer.sending(topic, "x", properties={"big": "x" * 40_000}))
    world.note("system topic", producer.sending("SCHEDULE_TOPIC_XXXX", "x"))
    world.note("read-only topic", producer.sending(read_only, "x"))
    world.note("delay beyond the last level", producer.sending(topic, "x", delay_level=99, queue=world.queue(topic, 0)))
    world.note("afterwards", producer.send(topic, "x", queue=world.queue(topic, 0)))


@scenario
def test_tags_and_retries_and_dead_letters(world: World) -> None:
    """Two tags of three; what fails comes again, with a level of its own too, and ends in the dead letters."""
    topic = world.topic(queues=1)
    world.known_group(topic)
    answers = {"bad": {"status": LATER}, "level": {"status": LATER, "delayLevelWhenNextConsume": 3}}

    def listen(event: Event) -> Event:
        message = event["messages"][0]
        return {"status": OK} if message["reconsume_times"] >= 3 else answers.get(message["body"], {"status": OK})

    options = {"maxReconsumeTimes": 2}
    consumer = world.push({topic: "red || blue"}, CLIENT, listen=listen, options=options)
    producer = world.producer(CLIENT)
    for body, tag in (("good", "red"), ("bad", "blue"), ("level", "blue"), ("unseen", "green")):
        producer.send(topic, body, tag=tag, keys="k", queue=world.queue(topic, 0))
    got = consumer.await_events(7)
    for body in ("good", "bad", "level"):
        world.note(body, [place(message) for message in got if message["body"] == body])
    dead = world.undertaker(CLIENT)
    world.note_set("dead letters", [place(message) for message in dead.await_events(2)])


@scenario
def test_an_orderly_listener_keeps_the_order(world: World) -> None:
    """A failing message blocks its queue."""
    topic = world.topic(queues=2)
    producer = world.producer(CLIENT)
    for number in range(4):
        for queue in range(2):
            producer.send(topic, f"{queue}:{number}", queue=world.queue(topic, queue))
    failed: list[str] = []

    def listen(event: Event) -> Event:
        body = event["messages"][0]["body"]
        if body == "0:1" and len(failed) < 2:
            failed.append(body)
            return {"status": LATER}
        return {"status": OK}

    options = {"suspendCurrentQueueTimeMillis": 100}
    got = world.push(topic, CLIENT, orderly=True, listen=listen, options=options).await_events(10)
    for queue in range(2):
        mine = [message for message in got if message["queue_id"] == queue]
        world.note(f"queue {queue}", [(message["body"], message["reconsume_times"]) for message in mine])


@scenario
def test_every_broadcasting_member_gets_everything(world: World) -> None:
    topic = world.topic()
    members = [
        world.push({topic: "x"}, CLIENT, name, options={"messageModel": "BROADCASTING"}) for name in ("b1", "b2")
    ]
    producer = world.producer(CLIENT)
    for number in range(8):
        producer.send(topic, f"m{number}", tag="x" if number < 6 else "y", queue=world.queue(topic, number % 4))
    for member in members:
        world.note_set(member.name, member.await_events(6))


@scenario
def test_a_delay_level_is_kept(world: World) -> None:
    topic = world.topic(queues=1)
    consumer = world.push(topic, CLIENT)
    world.producer(CLIENT).send(topic, "late", delay_level=1, tag="t", queue=world.queue(topic, 0))
    (message,) = consumer.await_events(1)
    world.note("received", message)
    world.note("not before a second", message["waited_ms"] >= 900)


@scenario
def test_transactions_end_as_their_producer_says(world: World) -> None:
    """Commit, rollback, the check of what was left open; and of what a killed process left."""
    topic = world.topic(queues=1)
    local = {"yes": "COMMIT_MESSAGE", "no": "ROLLBACK_MESSAGE", "later yes": "UNKNOW", "later no": "UNKNOW"}
    checked = {"later yes": "COMMIT_MESSAGE", "later no": "ROLLBACK_MESSAGE", "orphan": "COMMIT_MESSAGE"}
    asked: list[str] = []

    def check(event: Event) -> str:
        asked.append(event["body"])
        return checked[event["body"]]

    producer = _transactional(world, world.program(CLIENT), "tp", lambda event: local[event["body"]], check)
    for body in local:
        receipt = producer.call("send_in_transaction", topic=topic, body=body, tag="t", keys="k")
        world.note(body, {key: value for key, value in receipt.items() if key not in {"queue_offset", "queue"}})
    dying = world.own_program(CLIENT)
    _transactional(world, dying, "dying", lambda _: "UNKNOW", lambda _: "UNKNOW").call(
        "send_in_transaction", topic=topic, body="orphan"
    )
    dying.kill()
    consumer = world.push(topic, CLIENT)
    got = consumer.await_events(lambda messages: {"yes", "later yes", "orphan"} <= set(bodies(messages)))
    eventually(lambda: {"later yes", "later no", "orphan"} <= set(asked))
    rows = [place(message) for message in got]
    for row in rows:
        row["properties"].pop("TRANSACTION_CHECK_TIMES", None)
    world.note_set("received", rows)


def _transactional(world: World, program: ForeignProgram, name: str, execute, check):
    return world.transaction_producer(program, name, execute=execute, check=check)


@scenario
def test_members_share_the_queues_and_take_over_from_the_dead(world: World) -> None:
    """Join, leave and kill -9: afterwards every message reaches somebody."""
    topic = world.topic(queues=4)
    producer = world.producer(CLIENT)
    program = world.own_program(CLIENT)
    first = world.push(topic, CLIENT, "c1")
    second = world.push(topic, program, "c2")
    rounds = iter(range(1000))

    def settled(*members, owners: int) -> bool:
        word = f"round-{next(rounds)}"
        for queue in range(4):
            producer.send(topic, f"{word}:{queue}", queue=world.queue(topic, queue))

        def seen() -> dict[str, set[int]]:
            return {
                member.name: {one["queue_id"] for one in member.received() if one["body"].startswith(f"{word}:")}
                for member in members
            }

        eventually(lambda: set().union(*seen().values()) == {0, 1, 2, 3})
        return sorted(map(len, seen().values())) == [4 // owners] * owners

    eventually(lambda: settled(first, second, owners=2))
    world.note("shared", True)
    program.kill()
    eventually(lambda: settled(first, owners=1))
    world.note("taken over", True)


@pytest.mark.all
@scenario
def test_a_killed_broker_is_survived(world: World) -> None:
    """Producer and consumer go on by themselves; nothing acknowledged is lost."""
    a_killed_broker_is_survived(world, CLIENT)
