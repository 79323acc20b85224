"""A broker that holds retried messages to their group's condition."""

import threading
import time

import pytest

from tests.differential.world import LATER, OK, World, bodies, scenario
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.slow

SETTINGS = {"enablePropertyFilter": "true", "filterSupportRetry": "true"}


@scenario
def test_a_retried_message_must_fit_the_condition_of_now(world: World) -> None:
    """One that failed under an older condition does not come again; one that fits does."""
    topic = world.topic(queues=1)
    world.known_group(topic)
    changed, failed = threading.Event(), set()

    def listen(event):
        [name] = bodies(event["messages"])
        assert changed.wait(PATIENCE) or name != "thirty"
        if name not in failed:
            failed.add(name)
            return {"status": LATER}
        return {"status": OK}

    producer = world.producer()
    at = {"queue": world.queue(topic, 0)}
    consumer = world.push({topic: "SQL amount = 30"}, listen=listen)
    producer.send(topic, "thirty", properties={"amount": "30"}, **at)
    world.note("first", bodies(consumer.await_events(1)))
    condition = "amount = 40 OR amount = 50"
    consumer.call("subscribe", topic=topic, expression=f"SQL {condition}")
    # The client tells its brokers at once, or with its next heartbeat if one was just on its way.
    eventually(lambda: condition in str(world.ask(203, consumerGroup=world.group())["body"]))
    changed.set()
    deadline = time.monotonic() + PATIENCE
    while len(consumer.received()) < 2:  # Until the pull of the old condition is over.
        assert time.monotonic() < deadline
        producer.send(topic, "forty", properties={"amount": "40"}, **at)
    producer.send(topic, "fifty", properties={"amount": "50"}, **at)
    got = consumer.await_events(lambda messages: bodies(messages).count("fifty") == 2)
    world.note("attempts", [bodies(got).count(name) for name in ("thirty", "fifty")])
