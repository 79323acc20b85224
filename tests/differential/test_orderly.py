"""Java's orderly listener: locks, suspension, commit and rollback, dead letters; members and brokers that come and go."""

import threading
from collections import defaultdict

import pytest

from tests.differential.program import Event
from tests.differential.world import COMMIT, LATER, OK, ROLLBACK, Client, Consumer, World, bodies, place, scenario
from tests.support import PATIENCE, eventually

KEYS = 8


def _send(world: World, producer: Client, topic: str, numbers: range) -> None:
    """Message n of every key, for all n: a key has its queue."""
    for number in numbers:
        for key in range(KEYS):
            producer.send(topic, f"{key}:{number}", queue=world.queue(topic, key % 4))


def _sequences(*consumers: Consumer) -> dict[str, list[int]]:
    """Key → its numbers in the order in which they were seen first."""
    seen: dict[str, list[int]] = defaultdict(list)
    for message in sorted(
        (message for consumer in consumers for message in consumer.received()),
        key=lambda message: (message["queue_id"], message["queue_offset"]),
    ):
        key, _, number = message["body"].partition(":")
        if int(number) not in seen[key]:
            seen[key].append(int(number))
    return dict(sorted(seen.items()))


def _steps(consumer: Consumer) -> list[str]:
    """Where this member saw a key go back, or over a gap, without having been away from its queue."""
    last: dict[str, int] = {}
    wrong = []
    for message in consumer.received():
        key, _, number = message["body"].partition(":")
        if key in last and int(number) != last[key] + 1:
            wrong.append(f"{key}: {last[key]} then {number}")
        last[key] = int(number)
    return wrong


@scenario
def test_each_key_keeps_its_order(world: World) -> None:
    """One member, four queues: all of them side by side, each in order, batch by batch."""
    topic = world.topic()
    producer = world.producer()
    _send(world, producer, topic, range(10))
    consumer = world.push(topic, orderly=True, options={"consumeMessageBatchMaxSize": 4})
    consumer.await_events(10 * KEYS)
    world.note("steps", _steps(consumer))
    world.note("sequences", _sequences(consumer))
    world.note_set("first", [call[0] for call in consumer.calls() if call[0]["queue_offset"] == 0])


@scenario
def test_a_failing_message_blocks_its_queue_alone(world: World) -> None:
    """It comes again with a growing count before anything behind it; other queues go on."""
    topic = world.topic(queues=2)
    producer = world.producer()
    for number in range(3):
        for queue in range(2):
            producer.send(topic, f"{queue}:{number}", queue=world.queue(topic, queue))

    def listen(event: Event) -> Event:
        message = event["messages"][0]
        if message["body"] == "0:1" and message["reconsume_times"] < 3:
            return {"status": LATER, "suspendCurrentQueueTimeMillis": 100}
        return {"status": OK}

    consumer = world.push(topic, orderly=True, listen=listen)
    got = consumer.await_events(9)
    for queue in range(2):
        mine = [message for message in got if message["queue_id"] == queue]
        world.note(f"queue {queue}", [(message["body"], message["reconsume_times"]) for message in mine])


@scenario
def test_what_fails_too_often_goes_to_the_dead_letters(world: World) -> None:
    """After maxReconsumeTimes the queue goes on, and the dead letter has the attempts in its properties."""
    topic = world.topic(queues=1)
    producer = world.producer()
    for body in ("before", "bad", "after"):
        producer.send(topic, body, keys="k", tag="t", queue=world.queue(topic, 0))
    failing = {"status": LATER, "suspendCurrentQueueTimeMillis": 100}
    consumer = world.push(
        topic,
        orderly=True,
        listen=lambda event: failing if bodies(event["messages"]) == ["bad"] else {"status": OK},
        options={"maxReconsumeTimes": 2},
    )
    got = consumer.await_events(lambda messages: "after" in bodies(messages))
    world.note("attempts", [(message["body"], message["reconsume_times"]) for message in got])
    dead = world.undertaker()
    world.note("dead letter", [place(message) for message in dead.await_events(1)])


@scenario
def test_exceptions_and_null_suspend_the_queue(world: World) -> None:
    topic = world.topic(queues=1)
    producer = world.producer()
    for body in ("throws", "null", "last"):
        producer.send(topic, body, queue=world.queue(topic, 0))
    answers = {"throws": [{"throw": "no luck"}], "null": [{"status": None}], "last": []}

    def listen(event: Event) -> Event:
        waiting = answers[event["messages"][0]["body"]]
        return waiting.pop() if waiting else {"status": OK}

    options = {"suspendCurrentQueueTimeMillis": 100}
    got = world.push(topic, orderly=True, listen=listen, options=options).await_events(5)
    world.note("all", [(message["body"], message["reconsume_times"]) for message in got])


@scenario
def test_without_auto_commit_only_a_commit_moves_the_offset(world: World) -> None:
    """Successes gather, COMMIT takes them, ROLLBACK hands them over again."""
    topic = world.topic(queues=1)
    producer = world.producer()
    for number in range(4):
        producer.send(topic, f"m{number}", queue=world.queue(topic, 0))
    script = {"m0": [OK], "m1": [COMMIT], "m2": [ROLLBACK, OK], "m3": [OK]}

    def listen(event: Event) -> Event:
        words = script[event["messages"][0]["body"]]
        status = words.pop(0) if words else OK
        return {"status": status, "autoCommit": False, "suspendCurrentQueueTimeMillis": 100}

    consumer = world.push(topic, orderly=True, listen=listen)
    got = consumer.await_events(lambda messages: "m3" in bodies(messages))
    world.note("calls", [(message["body"], message["reconsume_times"]) for message in got])
    consumer.shutdown()
    again = world.push(topic, name="c2", orderly=True)
    world.note("not committed", bodies(again.await_events(lambda messages: "m3" in bodies(messages))))


@pytest.mark.all
@scenario
def test_a_member_that_joins_and_leaves_takes_queues_in_order(world: World) -> None:
    """A second member takes half of the queues, and gives them back; no key steps back or over a gap."""
    topic = world.topic()
    producer = world.producer()
    first = world.push(topic, name="c1", orderly=True)
    _send(world, producer, topic, range(3))
    first.await_events(3 * KEYS)
    second = world.push(topic, name="c2", orderly=True)
    sent = 3

    def shared() -> bool:
        nonlocal sent
        _send(world, producer, topic, range(sent, sent + 1))
        sent += 1
        eventually(lambda: all(len(numbers) == sent for numbers in _sequences(first, second).values()))
        return len({message["queue_id"] for message in second.received()}) == 2

    eventually(shared)
    second.call("shutdown")
    _send(world, producer, topic, range(sent, sent + 2))
    eventually(lambda: all(len(numbers) == sent + 2 for numbers in _sequences(first, second).values()))
    world.note("queues of the second", len({message["queue_id"] for message in second.received()}))
    world.note("gaps", [n for n in _sequences(first, second).values() if n != list(range(sent + 2))])
    world.note("steps of the second", _steps(second))


@pytest.mark.all
@scenario
def test_a_broker_restart_keeps_the_order(world: World) -> None:
    """Killed while keys are consumed: the members lock again, and every key goes on."""
    topic = world.topic()
    producer = world.producer(options={"sendMsgTimeout": 3000})
    consumer = world.push(topic, orderly=True)
    _send(world, producer, topic, range(3))
    consumer.await_events(3 * KEYS)
    world.peer.kill_broker()
    world.peer.start_broker()
    for key in range(KEYS):
        at = {"queue": world.queue(topic, key % 4)}
        eventually(lambda key=key, at=at: "status" in producer.sending(topic, f"{key}:3", **at))
    eventually(lambda: all(numbers[-1] == 3 for numbers in _sequences(consumer).values()))
    world.note("sequences", _sequences(consumer))


@pytest.mark.all
@scenario
def test_a_killed_members_queues_go_on_elsewhere_in_order(world: World) -> None:
    """kill -9 with a message in hand: its locks run out, another member begins where it had committed."""
    topic = world.topic()
    producer = world.producer()
    program = world.own_program("java")
    first = world.push(topic, program, "c1", orderly=True)
    _send(world, producer, topic, range(3))
    first.await_events(3 * KEYS)
    second = world.push(topic, name="c2", orderly=True)
    holding = threading.Event()

    def hold(event: Event) -> Event:
        holding.wait(PATIENCE)
        return {"status": OK}

    program.when("c1", "consume", hold)
    _send(world, producer, topic, range(3, 6))
    eventually(lambda: any(message["body"].endswith(":3") for message in first.received()))
    program.kill()
    holding.set()
    eventually(lambda: all(numbers[-1] == 5 for numbers in _sequences(first, second).values()))
    world.note("sequences", _sequences(first, second))


@pytest.mark.all
@scenario
def test_a_member_that_is_cut_off_loses_its_queues_and_comes_back(world: World) -> None:
    """Its locks run out and the other one goes on with every key; mended, both share again, nothing is missing."""
    topic = world.topic()
    producer = world.producer()
    first = world.push(topic, name="c1", orderly=True, faulty=True)
    _send(world, producer, topic, range(3))
    first.await_events(3 * KEYS)
    second = world.push(topic, name="c2", orderly=True)
    world.peer.network.cut()
    _send(world, producer, topic, range(3, 5))
    eventually(lambda: all(numbers[-1] == 4 for numbers in _sequences(first, second).values()))
    world.peer.network.mend()
    _send(world, producer, topic, range(5, 7))
    eventually(lambda: all(numbers[-1] == 6 for numbers in _sequences(first, second).values()))
    world.note("sequences", _sequences(first, second))


@scenario
def test_locks_are_granted_by_client_and_queue(world: World) -> None:
    """41 and 42 as they come: a second client is refused, the holder again is not, what was given back is free."""
    topic = world.topic(queues=2)
    ask = {"group": world.group(), "queues": [world.queue(topic, number) for number in (0, 1)]}
    world.note("nobody has them", _lock(world, 41, "one", **ask))
    world.note("another", _lock(world, 41, "two", **ask))
    world.note("another group", _lock(world, 41, "two", **{**ask, "group": world.group("other")}))
    world.note("the holder", _lock(world, 41, "one", **ask))
    world.note("not the holder gives back", _lock(world, 42, "two", **ask))
    world.note("still held", _lock(world, 41, "two", **ask))
    world.note("the holder gives back", _lock(world, 42, "one", **{**ask, "queues": ask["queues"][:1]}))
    world.note("free", _lock(world, 41, "two", **ask))
    world.note("unknown queue", _lock(world, 41, "one", **{**ask, "queues": [world.queue(topic, 7)]}))
    world.note("unknown topic", _lock(world, 41, "one", **{**ask, "queues": [world.queue("no-such-topic", 0)]}))
    world.note("no queues", _lock(world, 41, "one", **{**ask, "queues": []}))


def _lock(world: World, code: int, client: str, group: str, queues: list[Event]) -> Event:
    rows = [{"topic": queue["topic"], "brokerName": queue["broker"], "queueId": queue["queue_id"]} for queue in queues]
    answer = world.ask(code, body={"clientId": client, "consumerGroup": group, "mqSet": rows})
    if isinstance(answer["body"], dict) and "lockOKMQSet" in answer["body"]:
        answer["body"]["lockOKMQSet"].sort(key=lambda row: (row["topic"], row["queueId"]))
    return answer
