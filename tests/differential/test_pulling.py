"""Java pull consumers: what each pull answers, offsets, shared work, the scheduled form, the lite pull consumer."""

import itertools
from collections.abc import Callable

import pytest

from tests.differential.program import Event
from tests.differential.world import Client, World, bodies, scenario
from tests.support import eventually

pytestmark = pytest.mark.slow


@scenario
def test_each_pull_answers_with_status_and_next_offset(world: World) -> None:
    """Found, nothing yet, no match, before the begin and past the end; how many at a time; a held pull."""
    topic = world.topic(queues=1)
    producer = world.producer()
    queue = world.queue(topic, 0)
    for number in range(40):
        producer.send(topic, f"m{number}", tag="even" if number % 2 == 0 else "odd", queue=queue)
    consumer = world.pull_consumer()

    def pull(expression: str = "*", offset: int = 0, most: int = 32, **more: object) -> Event:
        answer = consumer.outcome("pull", queue=queue, expression=expression, offset=offset, max=most, **more)
        if "messages" in answer:
            answer["messages"] = bodies(answer["messages"])
        return answer

    world.note("first", pull())
    world.note("two", pull(most=2))
    world.note("more than the broker gives", pull(most=100))
    world.note("one tag", pull("even", 10, 4))
    world.note("no such tag", pull("none"))
    world.note("at the end", pull(offset=40))
    world.note("past the end", pull(offset=1000))
    world.note("far past the end", pull(offset=1 << 40))
    world.note("before the begin", pull(offset=-1))
    world.note("illegal expression", pull("a || || b"))
    held = consumer.start("pull", queue=queue, expression="*", offset=40, max=32, hold=True)
    producer.send(topic, "awaited", queue=queue)
    answer = held.result(300)
    world.note("held", {**answer, "messages": bodies(answer["messages"])})
    world.note(
        "unknown topic", consumer.outcome("pull", queue=world.queue("no-such", 0), expression="*", offset=0, max=1)
    )
    world.note("unknown queue", consumer.outcome("pull", queue=world.queue(topic, 9), expression="*", offset=0, max=1))


@scenario
def test_offsets_of_a_pull_consumer(world: World) -> None:
    """Fetched, updated, from memory and from the broker; queues of a topic, and of one that is not there."""
    topic = world.topic(queues=2)
    consumer = world.pull_consumer()
    queue = world.queue(topic, 0)
    world.note("queues", consumer.ask("fetchSubscribeMessageQueues", topic))
    world.note("unknown", _outcome(consumer, "fetchSubscribeMessageQueues", "no-such-topic"))
    world.note("before", consumer.ask("fetchConsumeOffset", queue, True))
    consumer.ask("updateConsumeOffset", queue, 5)
    world.note("in memory", consumer.ask("fetchConsumeOffset", queue, False))
    consumer.shutdown()
    again = world.pull_consumer(name="again")
    world.note("at the broker", again.ask("fetchConsumeOffset", queue, True))
    for method in ("minOffset", "maxOffset"):
        world.note(method, again.ask(method, queue))


def _outcome(consumer, method: str, *arguments: object) -> object:
    return consumer.outcome("call", method=method, arguments=list(arguments))


@scenario
def test_members_that_pull_are_told_their_share(world: World) -> None:
    """A listener hears all queues and its own as members come and go."""
    topic = world.topic(queues=4)
    first = world.pull_consumer(name="m1", topics=[topic])
    eventually(lambda: _share(first) == [0, 1, 2, 3])
    second = world.pull_consumer(name="m2", topics=[topic])
    eventually(lambda: _share(first) == [0, 1] and _share(second) == [2, 3])
    event = first.program.events("m1", "queues")[-1]
    world.note("told", {key: event[key] for key in ("topic", "all", "mine")})
    second.shutdown()
    eventually(lambda: _share(first) == [0, 1, 2, 3])


def _share(consumer) -> list[int] | None:
    events = consumer.program.events(consumer.name, "queues")
    return [queue["queue_id"] for queue in events[-1]["mine"]] if events else None


@scenario
def test_the_scheduled_form_calls_for_each_owned_queue(world: World) -> None:
    topic = world.topic(queues=2)
    producer = world.producer()
    for queue in range(2):
        producer.send(topic, f"m{queue}", queue=world.queue(topic, queue))
    service = world.scheduled(topic)

    def found() -> list[Event] | None:
        events = [one for one in service.program.events(service.name, "pulled") if one["result"]["status"] == "FOUND"]
        return events if len(events) == 2 else None

    events = eventually(found)
    world.note_set("found", [{key: event[key] for key in ("queue", "offset", "result")} for event in events])


@scenario
def test_the_lite_pull_consumer_polls_seeks_and_commits(world: World) -> None:
    """Subscribed and assigned; what was committed, and what comes after a seek."""
    topic = world.topic(queues=1)
    producer = world.producer()
    queue = world.queue(topic, 0)
    for number in range(5):
        producer.send(topic, f"m{number}", queue=queue)
    lite = world.client("java", "lite")
    world.on_close(lambda: lite.call("lite_shutdown"))
    lite.call("lite", namesrv=world.peer.namesrv, group=world.group(), auto_commit=False)
    lite.call("lite_assign", queues=[queue])
    got: list[Event] = []

    def polled() -> bool:
        got.extend(lite.call("lite_poll", timeout_ms=500))
        return "m4" in bodies(got)

    # Once to the end: what a pull brings that was under way when it was told to seek, the Java client may count as not consumed.
    eventually(polled)
    got.clear()
    lite.call("lite_seek", queue=queue, offset=1)
    eventually(polled)
    world.note("from 1", got)
    lite.call("lite_commit")
    eventually(lambda: lite.call("lite_committed", queue=queue) == 5)
    world.note("committed", lite.call("lite_committed", queue=queue))
    got.clear()
    lite.call("lite_seek", queue=queue, offset=3)
    eventually(polled)
    world.note("from 3", bodies(got))


def _lite(world: World, name: str = "lite", **more: object) -> Client:
    client = world.client("java", name)
    world.on_close(lambda: client.call("lite_shutdown"))
    client.call("lite", namesrv=world.peer.namesrv, group=world.group(), **more)
    return client


def _polled(lite: Client, enough: Callable[[list[Event]], bool]) -> list[Event]:
    got: list[Event] = []

    def probe() -> bool:
        got.extend(lite.call("lite_poll", timeout_ms=500))
        return enough(got)

    eventually(probe)
    return got


@scenario
def test_lite_pull_consumers_that_subscribe_share_the_queues(world: World) -> None:
    """Two members with a tag, automatic commits; one leaves, and the other goes on where it was."""
    topic = world.topic(queues=2)
    producer = world.producer()
    first, second = (_lite(world, name, topic=topic, expression="red", auto_commit=True) for name in ("l1", "l2"))
    world.note("queues", first.call("lite_queues", topic=topic))
    sent = itertools.count()

    def shared() -> bool:
        number = next(sent)
        for queue in range(2):
            producer.send(topic, f"m{number}:{queue}", tag="red", queue=world.queue(topic, queue))
            producer.send(topic, "unwanted", tag="blue", queue=world.queue(topic, queue))
        mine, theirs = (
            {message["queue_id"] for message in lite.call("lite_poll", timeout_ms=1000)} for lite in (first, second)
        )
        return len(mine) == len(theirs) == 1 and mine != theirs

    eventually(shared)
    world.note("shared", True)
    for number in range(2):
        producer.send(topic, f"last:{number}", tag="red", queue=world.queue(topic, number))
    seen: set[str] = set()

    def all_seen() -> bool:
        for lite in (first, second):
            seen.update(bodies(lite.call("lite_poll", timeout_ms=500)))
        return {"last:0", "last:1"} <= seen

    eventually(all_seen)
    world.note("unwanted", "unwanted" in seen)


@scenario
def test_a_lite_pull_consumer_seeks_to_both_ends(world: World) -> None:
    topic = world.topic(queues=2)
    producer = world.producer()
    queues = [world.queue(topic, number) for number in range(2)]
    lite = _lite(world, auto_commit=False)
    lite.call("lite_assign", queues=queues)
    for queue in queues:
        lite.call("lite_seek_to", queue=queue, where="begin")
        for number in range(3):
            producer.send(topic, f"{queue['queue_id']}:{number}", queue=queue)
    got = _polled(lite, lambda got: len(got) >= 6)
    world.note_set("all", bodies(got))
    lite.call("lite_seek_to", queue=queues[0], where="begin")
    world.note("again", bodies(_polled(lite, lambda got: len(got) >= 3)))
    lite.call("lite_seek_to", queue=queues[0], where="end")
    producer.send(topic, "0:4", queue=queues[0])
    world.note("behind the end", bodies(_polled(lite, lambda got: len(got) >= 1)))


@scenario
def test_a_lite_pull_consumer_that_assigns_a_queue_that_is_not_there(world: World) -> None:
    """It gets nothing of it, and what is there all the same; nothing is made."""
    topic = world.topic(queues=1)
    producer = world.producer()
    lite = _lite(world, auto_commit=False)
    lite.call("lite_assign", queues=[world.queue(topic, 0), world.queue(topic, 9), world.queue("no-such-topic", 0)])
    lite.call("lite_seek_to", queue=world.queue(topic, 0), where="begin")
    producer.send(topic, "there", queue=world.queue(topic, 0))
    world.note("polled", bodies(_polled(lite, lambda got: len(got) >= 1)))
    world.note("topic", world.queues_of("no-such-topic"))
    world.note("queues", world.queues_of(topic))
