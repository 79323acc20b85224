"""What every foreign client has to survive, whatever its language."""

from tests.differential.world import World, bodies
from tests.support import eventually


def a_killed_members_queues_are_taken_over(world: World, client: str) -> None:
    """Two processes share the queues; after kill -9 of one every message reaches the other."""
    topic = world.topic(queues=4)
    producer = world.producer()
    program = world.own_program(client)
    first = world.push(topic, client, "c1")
    second = world.push(topic, program, "c2")
    rounds = iter(range(10_000))

    def shared(*members) -> bool:
        word = f"round-{next(rounds)}"
        for queue in range(4):
            producer.send(topic, f"{word}:{queue}", queue=world.queue(topic, queue))
        eventually(lambda: sum(body.startswith(word) for member in members for body in bodies(member.received())) >= 4)
        return all(any(body.startswith(f"{word}:") for body in bodies(member.received())) for member in members)

    eventually(lambda: shared(first, second))
    world.note("shared", True)
    program.kill()
    eventually(lambda: shared(first))
    world.note("taken over", True)


def a_killed_broker_is_survived(world: World, client: str, *, chooses_queues: bool = True) -> None:
    """Producer and consumer go on by themselves; nothing acknowledged is lost."""
    topic = world.topic(queues=1)
    at = {"queue": world.queue(topic, 0)} if chooses_queues else {}
    producer = world.producer(client, options={"sendMsgTimeout": 3000})
    consumer = world.push(topic, client)
    producer.send(topic, "before", **at)
    consumer.await_events(1)
    world.peer.kill_broker()
    world.peer.start_broker()
    eventually(lambda: "status" in producer.sending(topic, "after", **at))
    got = consumer.await_events(lambda messages: "after" in bodies(messages))
    world.note("received", sorted(set(bodies(got))))
