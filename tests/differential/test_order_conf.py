"""Order by configuration: which queues a topic has, where the name server says so (ORDER_TOPIC_CONFIG)."""

from tests.differential.world import World, scenario
from tests.support import eventually

NAMESRV_SETTINGS = {"orderMessageEnable": "true"}


def _put(world: World, topic: str, conf: str) -> None:
    answer = world.ask(100, at=world.peer.namesrv, namespace="ORDER_TOPIC_CONFIG", key=topic, value=conf)
    assert answer["code"] == 0, answer


@scenario
def test_a_producer_uses_the_queues_of_the_configuration(world: World) -> None:
    """Fewer, more, and those of a broker that is not there."""
    topic = world.topic(queues=4, order=True)
    for number, conf in enumerate(("broker-a:2", "broker-a:3;broker-b:1")):
        _put(world, topic, conf)
        producer = world.producer(name=f"p{number}", options={"retryTimesWhenSendFailed": 0, "sendMsgTimeout": 5000})
        world.note(conf, producer.outcome("queues", topic=topic))
    used = set()
    for number in range(12):
        outcome = producer.sending(topic, f"m{number}", "selector", key=f"order-{number}")
        used.add(outcome["queue"]["queue_id"] if "queue" in outcome else outcome["threw"]["class"])
    world.note_set("used", used)


@scenario
def test_a_configuration_is_read_and_deleted(world: World) -> None:
    """100, 101 and 102, and what is not there."""
    topic, where = world.topic(queues=4), world.peer.namesrv
    key = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic}
    world.note("absent", world.ask(101, at=where, **key))
    _put(world, topic, "broker-a:2")
    world.note("present", world.ask(101, at=where, **key))
    world.note("queues", eventually(lambda: world.producer().call("queues", topic=topic)))
    world.note("deleted", world.ask(102, at=where, **key))
    world.note("again", world.ask(102, at=where, **key))
    world.note("gone", world.ask(101, at=where, **key))
    world.note("queues without", world.producer(name="p2").call("queues", topic=topic))
