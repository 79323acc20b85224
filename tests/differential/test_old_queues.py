"""Where new groups begin on queues whose first message is old: those that a broker does not hold in memory."""

import pytest

from tests.differential.world import World, bodies, scenario
from tests.support import eventually

SETTINGS = {"accessMessageInMemoryMaxRatio": "0"}


@pytest.mark.all
@scenario
def test_where_a_new_group_begins(world: World) -> None:
    """First: at the first message. Last: behind what is there. A time: at the first message stored since."""
    topic = world.topic(queues=1)
    producer = world.producer()
    for number in range(3):
        producer.send(topic, f"old-{number}", queue=world.queue(topic, 0))
    consumers = {}
    for where in ("CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_TIMESTAMP"):
        more = {"consumeFromWhere": where}
        consumers[where] = world.push(topic, name=where, group=world.group(where), options=more)
    for kind in ("java3", "go"):
        more = {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}
        consumers[kind] = world.push(topic, kind, kind, group=world.group(kind), options=more)
    for name in consumers:  # each has told the broker where it is, so that it began before the next message
        where = {"consumerGroup": world.group(name), "topic": topic, "queueId": 0}
        eventually(lambda where=where: world.ask(14, **where)["code"] == 0)
    producer.send(topic, "new", queue=world.queue(topic, 0))
    for name, consumer in consumers.items():
        world.note_set(name, set(bodies(consumer.await_events(lambda got: "new" in bodies(got)))))
    world.note("no offset", world.ask(14, consumerGroup="nobody", topic=topic, queueId=0))
