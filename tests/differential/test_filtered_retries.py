"""A broker that holds retried messages to their group's condition."""

import threading

from tests.differential.world import LATER, OK, World, bodies, scenario
from tests.support import PATIENCE

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
    consumer.call("subscribe", topic=topic, expression="SQL amount = 40 OR amount = 50")
    changed.set()
    for number in range(1000):  # until the pull of the old condition is over
        producer.send(topic, f"forty {number}", properties={"amount": "40"}, **at)
        if len(consumer.received()) > 1:
            break
    consumer.await_events(2)
    producer.send(topic, "fifty", properties={"amount": "50"}, **at)
    got = consumer.await_events(lambda messages: bodies(messages).count("fifty") == 2)
    world.note("attempts", [bodies(got).count(name) for name in ("thirty", "fifty")])
