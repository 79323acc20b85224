"""Requests and replies: Java and Go in both roles, replies that nobody waits for, what is stored of them."""

import base64
import contextlib

import pytest

from tests.differential.program import Event, ForeignError
from tests.differential.world import OK, Client, Consumer, World, bodies, place, scenario
from tests.interop.servers import CLUSTER
from tests.support import eventually

pytestmark = pytest.mark.slow

REPLY_TOPIC = f"{CLUSTER}_REPLY_TOPIC"
PROPERTIES = ("MSG_TYPE", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")
WAIT_MS = 300_000


def responder(world: World, topic: str, on: str, body: str = "pong") -> Consumer:
    """A consumer of `on` that replies to each message."""
    world.known_group(topic, world.group("responders"))
    by = world.producer(on, "by", group=world.group("by"))
    group = world.group("responders")
    return world.push(topic, on, group=group, listen=lambda _event: {"status": OK, "reply": body, "by": by.name})


def request(client: Client, topic: str, body: str = "ping", *, timeout_ms: int = WAIT_MS, **more: object) -> Event:
    return client.call("request", topic=topic, body=body, timeout_ms=timeout_ms, **more)


def matched(asked: Event, reply: Event) -> dict[str, object]:
    """What of a reply's properties is the request's, and which others it has; their values are random or times."""
    mine, theirs = asked["properties"], reply["properties"]
    same = {name: mine.get(name) == theirs.get(name) for name in PROPERTIES[1:]}
    return {"same": same, "type": theirs.get("MSG_TYPE"), "names": sorted(theirs)}


def shown(message: Event) -> Event:
    """A message without what is random in it."""
    names = {"CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"}
    pairs = {name: "<random>" if name in names else value for name, value in message["properties"].items()}
    return {**place(message), "properties": pairs}


def outcomes(consumer: Consumer, count: int) -> list[Event]:
    def probe() -> list[Event] | None:
        told = consumer.program.events(consumer.name, "replied")
        return told if len(told) >= count else None

    return eventually(probe)


@scenario
def test_a_java_client_gets_the_reply_of_another(world: World) -> None:
    """Request, reply and receipt as they look."""
    topic = world.topic(queues=1)
    consumer = responder(world, topic, "java")
    asker = world.producer(name="asker")
    reply = request(asker, topic, queue=world.queue(topic, 0), tag="t", keys="k", properties={"colour": "blue"})
    (asked,) = consumer.await_events(1)
    world.note("request", shown(asked))
    world.note("reply", shown(reply))
    world.note("matched", matched(asked, reply))
    (outcome,) = outcomes(consumer, 1)
    receipt = outcome["receipt"]
    world.note("receipt", {name: receipt[name] for name in ("status", "queue", "region", "trace")})


@scenario
def test_many_requests_at_once_get_each_its_own_reply(world: World) -> None:
    topic = world.topic(queues=4)
    world.known_group(topic, world.group("responders"))
    by = world.producer(name="by", group=world.group("by"))
    world.push(
        topic,
        group=world.group("responders"),
        listen=lambda event: {"status": OK, "reply": event["messages"][0]["body"].upper(), "by": by.name},
    )
    asker = world.producer(name="asker")
    waiting = [asker.start("request", topic=topic, body=f"ping-{number}", timeout_ms=WAIT_MS) for number in range(40)]
    world.note("replies", [one.result(WAIT_MS / 1000)["body"] for one in waiting])


@scenario
def test_a_request_that_nobody_replies_to_times_out(world: World) -> None:
    """The message is there all the same; the client says that it was sent."""
    topic = world.topic(queues=1)
    asker = world.producer(name="asker")
    try:
        request(asker, topic, timeout_ms=1000)
    except ForeignError as error:
        world.note("threw", {name: error.what.get(name) for name in ("class", "code")})
    world.note("stored", bodies(world.push(topic).await_events(1)))


@scenario
def test_replies_to_nobody_are_refused_and_stored(world: World) -> None:
    """A client id that no producer has, none at all, a requester that went away, and a topic that is not there."""
    topic = world.topic(queues=1)
    reader = world.pull_consumer()
    queue = world.queue(REPLY_TOPIC, 0)
    start = reader.ask("maxOffset", queue)
    asker = world.producer(name="asker", on=(program := world.own_program("java")))
    pending = asker.start("request", topic=topic, body="ping", timeout_ms=WAIT_MS)
    (asked,) = world.push(topic).await_events(1)
    program.kill()
    with contextlib.suppress(ConnectionError):
        pending.result(WAIT_MS / 1000)
    gone = asked["properties"]["REPLY_TO_CLIENT"]

    def reply(to: str, at: str = REPLY_TOPIC) -> Event:
        pairs = {"MSG_TYPE": "reply", "CORRELATION_ID": "c", "TTL": "1"} | ({"REPLY_TO_CLIENT": to} if to else {})
        text = "\x02".join(f"{name}\x01{value}" for name, value in pairs.items())
        answer = world.ask(
            325, b"pong", a="G", b=at, c="TBW102", d=4, e=0, f=0, g=1, h=5, i=text, j=0, k="false", m="false"
        )
        answer["fields"] = {}  # of a refusal they differ everywhere
        return answer

    eventually(lambda: reply(gone)["code"] == 1)
    stored = reader.ask("maxOffset", queue)
    world.note("gone", reply(gone))
    world.note("unknown", reply("10.0.0.1@nobody"))
    world.note("no client id", reply(""))
    world.note("a topic that takes none", reply("10.0.0.1@nobody", "SCHEDULE_TOPIC_XXXX"))
    world.note("stored", reader.ask("maxOffset", queue) - stored)
    assert stored > start
    found = reader.call("pull", queue=queue, expression="*", offset=stored, max=32)["messages"]
    world.note("records", [shown(message) for message in found])


@scenario
def test_a_reply_of_many_sizes_arrives(world: World) -> None:
    """Compressed by the client, and of a megabyte."""
    topic = world.topic(queues=1)
    text = base64.b64encode(bytes(range(256)) * 3000).decode()
    consumer = responder(world, topic, "java", text)
    asker = world.producer(name="asker")
    world.note("same", request(asker, topic)["body"] == text)
    (outcome,) = outcomes(consumer, 1)
    world.note("status", outcome["receipt"]["status"])


@pytest.mark.parametrize(("asking", "replying"), [("go", "java"), ("java", "go"), ("go", "go")])
def test_go_and_java_reply_to_each_other(world: World, asking: str, replying: str) -> None:
    """Go speaks 324 with long names; its requesters are known to the broker some seconds after they started."""
    topic = world.topic(queues=1)
    consumer = responder(world, topic, replying)
    asker = world.producer(asking, "asker")

    def answered() -> Event | None:
        with contextlib.suppress(ForeignError):
            return request(asker, topic, timeout_ms=2000)
        return None

    reply = eventually(answered)
    assert (reply["topic"], reply["body"]) == (REPLY_TOPIC, "pong")
    assert {"CORRELATION_ID", "REPLY_TO_CLIENT", "MSG_TYPE", "TTL", "PUSH_REPLY_TIME"} <= reply["properties"].keys()
    asked = consumer.received()[-1]
    assert asked["properties"]["REPLY_TO_CLIENT"] == reply["properties"]["REPLY_TO_CLIENT"]
    eventually(lambda: any("receipt" in outcome for outcome in outcomes(consumer, 1)))
    if asking == "go":
        assert request(asker, topic, timeout_ms=WAIT_MS, **{"async": True})["body"] == "pong"
