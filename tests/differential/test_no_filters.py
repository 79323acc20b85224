"""A broker whose broker.conf says nothing of SQL filters: RocketMQ's default is to take none."""

from tests.differential.world import World, scenario


@scenario
def test_a_condition_is_refused(world: World) -> None:
    """At a push consumer's start, and at each pull."""
    topic = world.topic(queues=1)
    world.producer().send(topic, "m", queue=world.queue(topic, 0))
    client = world.client("java", "c")
    outcome = client.outcome(
        "push", namesrv=world.peer.namesrv, group=world.group(), topics={topic: "SQL amount > 5"}, options={}
    )
    world.note("push", outcome["threw"]["code"])
    client.shutdown()  # It runs although its start threw, and would be the next scenario's of that name.
    puller = world.pull_consumer()
    outcome = puller.outcome("pull", queue=world.queue(topic, 0), expression="SQL a > 5", offset=0, max=32)
    world.note("pull", outcome["threw"]["code"])
