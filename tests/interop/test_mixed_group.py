"""One group, members in Java and in Python that come and go: every queue has one owner, every message a consumer."""

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from metaq import Consumer, Producer
from metaq.admin import Admin
from metaq.client.consumer.membership.rebalance import consistent_hash, queues_in_order
from metaq.model import MessageQueue
from tests.interop.driver import ForeignClient
from tests.interop.servers import CLUSTER, Server
from tests.support import PATIENCE, environment, eventually

pytestmark = pytest.mark.interop

QUEUES = 7
_numbers = itertools.count()

# A member in a process of its own, for kill -9: it tells its queues again and again.
MEMBER = """
import json, sys, threading
import metaq

namesrv, group, topic, strategy = sys.argv[1:]
with metaq.Consumer(
    namesrv, group=group, topics=topic, start="first", strategy=strategy, instance_name="child"
) as consumer:
    while (message := consumer.receive(0.1)) is not None or not consumer.stopped:
        if message is not None:
            message.ack()
        print(json.dumps([[queue.broker, queue.queue_id] for queue in consumer.queues if queue.topic == topic]), flush=True)
"""

Owned = dict[str, set[tuple[str, int]]]


class Group:
    """The members of both languages."""

    def __init__(self, java: ForeignClient, server: Server, strategy: str) -> None:
        self.java, self.server, self.strategy = java, server, strategy
        self.topic = f"mixed-{next(_numbers)}"
        self.name = f"{self.topic}-group"
        self._java: list[str] = []
        self._python: dict[str, Consumer] = {}
        self.got: list[str] = []

    def join_java(self, name: str) -> None:
        options = {"strategy": self.strategy}
        self.java.consumer(f"{self.topic}-{name}", self.server.namesrv, self.name, {self.topic: "*"}, **options)
        self._java.append(f"{self.topic}-{name}")

    def leave_java(self, name: str) -> None:
        self._java.remove(f"{self.topic}-{name}")
        self.java.shutdown(f"{self.topic}-{name}")

    def join_python(self, name: str) -> None:
        self._python[name] = Consumer(
            self.server.namesrv, group=self.name, topics=self.topic, start="first", strategy=self.strategy,
            instance_name=f"{self.topic}-{name}",
        )  # fmt: skip

    def leave_python(self, name: str) -> None:
        self._python.pop(name).close()

    def owned(self) -> Owned:
        """Member → (broker, queue id) of what it consumes now."""
        found = {
            name: {(broker, number) for broker, number in self.java.call("owned", consumer=name, topic=self.topic)}
            for name in self._java
        }
        for name, consumer in self._python.items():
            found[name] = {(queue.broker, queue.queue_id) for queue in consumer.queues if queue.topic == self.topic}
        return found

    def shared(self, *elsewhere: set[tuple[str, int]]) -> bool:
        """Whether each member has its share of the queues; `elsewhere`: what other processes have."""
        shares = [*self.owned().values(), *elsewhere]
        owned = [queue for share in shares for queue in share]
        if len(owned) != len(set(owned)) or len(owned) != QUEUES:
            return False
        if self.strategy != "consistent_hash":
            return max(map(len, shares)) - min(map(len, shares)) <= 1
        # These shares are not even, so one that a member has from before may look right: compute what each is to have.
        with Admin(self.server.namesrv) as admin:
            members = sorted(member.client_id for member in admin.group_progress(self.name).members)
        queues = queues_in_order(MessageQueue(self.topic, *queue) for queue in owned)
        wanted = [{(queue.broker, queue.queue_id) for queue in consistent_hash(queues, members, me)} for me in members]
        return sorted(map(sorted, shares)) == sorted(map(sorted, wanted))

    def exchange(self, producer: Producer, label: str) -> None:
        """Ten messages into every queue arrive once each, at the member that has the queue."""
        queues = sorted(producer.queues(self.topic))
        sent = [f"{label}-{queue.queue_id}-{number}" for queue in queues for number in range(10)]
        for body in sent:
            producer.send(self.topic, body.encode(), queue=queues[int(body.split("-")[-2])])
        owners = self.owned()
        got: dict[str, list[str]] = {}

        def complete() -> bool:
            for name, consumer in self._python.items():
                while (message := consumer.receive(0.05)) is not None:
                    message.ack()
                    if message.body.startswith(
                        f"{label}-".encode()
                    ):  # At a change of owners older ones may come again.
                        got.setdefault(name, []).append(message.body.decode())
            for name in self._java:
                got[name] = [
                    event["body"] for event in self.java.received(name) if event["body"].startswith(f"{label}-")
                ]
            return sum(map(len, got.values())) >= len(sent)

        eventually(complete)
        assert sorted(body for bodies in got.values() for body in bodies) == sorted(sent), "each once"
        for name, bodies in got.items():
            numbers = {number for _, number in owners[name]}
            assert {int(body.split("-")[-2]) for body in bodies} <= numbers, f"{name} got what is another's"

    def close(self) -> None:
        for consumer in self._python.values():
            consumer.close()


@pytest.fixture
def producer(server: Server) -> Iterator[Producer]:
    with Producer(server.namesrv) as made:
        yield made


@pytest.fixture(params=["average", pytest.param("circle", marks=pytest.mark.all), "consistent_hash"])
def group(request: pytest.FixtureRequest, java: ForeignClient, server: Server) -> Iterator[Group]:
    made = Group(java, server, request.param)
    java.producer("p", server.namesrv, "mixed-producers")
    java.call("create_topic", producer="p", cluster=CLUSTER, topic=made.topic, queues=QUEUES)
    with contextlib.closing(made):
        yield made


def test_members_of_both_languages_share_the_queues_as_they_come_and_go(group: Group, producer: Producer) -> None:
    """Seven queues over one to five members: after each change every queue has one owner, and no message two consumers."""
    group.join_java("j1")
    eventually(group.shared)
    group.join_python("p1")
    eventually(group.shared)
    group.exchange(producer, "two")
    group.join_python("p2")
    group.join_java("j2")
    eventually(group.shared)
    group.exchange(producer, "four")
    group.leave_java("j1")
    group.leave_python("p1")
    eventually(group.shared)
    group.exchange(producer, "rest")


def test_a_member_that_is_killed_is_replaced_by_those_of_the_other_language(
    group: Group, server: Server, producer: Producer
) -> None:
    """kill -9 of a Python member: Java has its queues, and loses none of the messages."""
    group.join_java("j1")
    command = [sys.executable, "-c", MEMBER, server.namesrv, group.name, group.topic, group.strategy]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert child.stdout is not None
        while not group.shared({(broker, number) for broker, number in json.loads(child.stdout.readline())}):
            assert child.poll() is None
    finally:
        child.kill()
        child.communicate(timeout=PATIENCE)
    eventually(group.shared)
    group.exchange(producer, "after")
