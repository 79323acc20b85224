"""Order and namespaces with Java beside us: fixed lists of queues, orderly members that come, go and die, one group."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq import Consumer, Producer, Reader
from metaq.admin import Admin
from metaq.client.shared.messages import queue_for_key
from metaq.model.topics.route import OrderLayout
from tests.interop.driver import ForeignClient, java_client
from tests.interop.servers import MetaqServer, Server
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop

_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"order-{next(_numbers)}"


def test_strict_order_and_its_administration_work_at_any_name_server(server: Server, topic: str) -> None:
    """RocketMQ's too, whose routes do not tell the list: the producer asks for it."""
    with Admin(server.namesrv) as admin, Producer(server.namesrv, timeout=PATIENCE) as producer:
        admin.create_topic(topic, queues=3)
        eventually(lambda: len(admin.describe_topic(topic).queues) == 3)
        layout = admin.set_topic_order(topic)
        order = admin.topic_order(topic)
        assert (order.layout, order.in_routes) == (layout, False)
        fixed = OrderLayout.of(layout).queues(topic)
        for number in range(10):
            receipt = producer.send(topic, b"x", ordering_key=f"k{number}", strict=True)
            assert receipt.queue == queue_for_key(f"k{number}", fixed)
        admin.delete_topic_order(topic)
        assert admin.topic_order(topic).layout is None


def test_java_producers_send_to_the_fixed_list_that_our_routes_tell(
    java: ForeignClient, tmp_path: Path, topic: str
) -> None:
    """orderMessageEnable=true: the list, not the topic's queues, is what its selectors get, in its order."""
    server = MetaqServer(tmp_path, options=["orderMessageEnable=true"])
    server.start()
    try:
        with Admin(server.namesrv) as admin, Producer(server.namesrv, timeout=PATIENCE) as producer:
            admin.create_topic(topic, queues=6)
            eventually(lambda: len(admin.describe_topic(topic).queues) == 6)
            broker = admin.describe_topic(topic).route.brokers[0].broker
            admin.set_topic_order(topic, f"{broker}:2")
            assert admin.topic_order(topic).in_routes
            java.producer(topic, server.namesrv)
            queues = [queue["queue_id"] for queue in java.call("queues", producer=topic, topic=topic)]
            assert queues == [0, 1]
            for key in range(4):
                [sent] = java.send(topic, topic, ["x"], mode="ordered", ordering_key=key)
                assert sent["queue_id"] == key % 2
            assert [queue.queue_id for queue in producer.queues(topic)] == [0, 1]
    finally:
        java.shutdown_all()
        server.stop()


def test_java_and_python_share_a_group_of_one_namespace(server: Server, java: ForeignClient, topic: str) -> None:
    """Messages cross in both directions under plain names, and the members split the topic's queues."""
    with Producer(server.namesrv, namespace="shop", timeout=PATIENCE) as producer:
        producer.send(topic, b"first")
        java.producer(f"{topic}-p", server.namesrv, namespace="shop")
        java.consumer(f"{topic}-c", server.namesrv, topic, {topic: "*"}, namespace="shop")
        with Consumer(
            server.namesrv, group=topic, topics=topic, start="first", namespace="shop", instance_name=topic
        ) as consumer:
            outside = f"shop%{topic}"

            def split() -> bool:
                theirs = java.call("owned", consumer=f"{topic}-c", topic=outside)
                return len(theirs) == sum(queue.topic == topic for queue in consumer.queues) == 2

            eventually(split)
            sent = {"first"}
            for number in range(20):
                producer.send(topic, b"p%d" % number)
                java.send(f"{topic}-p", topic, [f"j{number}"])
                sent |= {f"p{number}", f"j{number}"}
            got: list[str] = []

            def all_there() -> bool:
                if (message := consumer.receive(0.1)) is not None:
                    with message:
                        assert message.topic == topic
                        got.append(message.body.decode())
                theirs = [event for event in java.received(f"{topic}-c") if event["topic"] == topic]
                return {*got, *(event["body"] for event in theirs)} == sent

            eventually(all_there)
            assert got
    with Reader(server.namesrv, outside) as reader:
        assert sum(map(len, reader.ranges().values())) == 41


KEYS = 8


class Load(threading.Thread):
    """Sends number after number of every key to its queue, until a broker that is away is back, so that there are no gaps."""

    def __init__(self, namesrv: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.namesrv, self.topic, self.sent = namesrv, topic, 0
        self.enough = threading.Event()

    def run(self) -> None:
        with Producer(self.namesrv, timeout=PATIENCE, retries=1000) as producer:
            while not self.enough.wait(0.05):
                for key in range(KEYS):  # Every round whole: the end is the same number of every key.
                    producer.send(self.topic, b"%d:%d" % (key, self.sent), ordering_key=f"key-{key}")
                self.sent += 1

    def stop(self) -> int:
        """End it. Returns the last number of every key."""
        self.enough.set()
        self.join(PATIENCE)
        assert not self.is_alive()
        return self.sent - 1


class OrderlyGroup:
    """Java members, each in a JVM of its own, and what they got."""

    def __init__(self, server: Server, folder: Path, topic: str) -> None:
        self.server, self.folder, self.topic = server, folder, topic
        self.running: dict[str, ForeignClient] = {}
        self.all: dict[str, ForeignClient] = {}

    def join(self, name: str) -> None:
        home = self.folder / name
        home.mkdir()
        self.running[name] = self.all[name] = java_client(home)
        self.running[name].consumer(name, self.server.namesrv, self.topic, {self.topic: "*"}, orderly=True)

    def leave(self, name: str) -> None:
        self.running.pop(name).shutdown(name)

    def kill(self, name: str) -> None:
        self.running.pop(name)._process.kill()

    def received(self, name: str) -> list[tuple[int, int, int]]:
        """Key, number, and when, in the order in which the member got them."""
        events = self.all[name].received(name)
        return [(*map(int, event["body"].split(":")), event["received_ms"]) for event in events]

    def owning(self, name: str) -> int:
        return len(self.running[name].call("owned", consumer=name, topic=self.topic))

    def wait_for(self, number: int) -> None:
        """Until somebody has got this number of every key."""

        def there() -> bool:
            got = {(key, n) for name in self.all for key, n, _ in self.received(name)}
            return all((key, number) in got for key in range(KEYS))

        eventually(there, timeout=4 * PATIENCE, what=f"number {number} of every key")

    def check(self, last: int) -> None:
        """No key has a gap, and none steps back but to begin again behind what was committed, at another member."""
        for key in range(KEYS):
            merged = sorted(
                ((when, place, name, n) for name in self.all for place, (k, n, when) in enumerate(self.received(name)) if k == key)
            )  # fmt: skip
            high, at = -1, ""
            by_member: dict[str, int] = defaultdict(lambda: -1)
            for _, _, name, n in merged:
                assert n <= high + 1, f"key {key}: a gap, {high} and then {n} at {name}"
                if n <= high:
                    assert name != at, f"key {key}: {name} steps back from {by_member[name]} to {n}"
                else:
                    high, at = n, name
                by_member[name] = n
            assert high >= last, f"key {key} ends at {high}"

    def close(self) -> None:
        for client in self.all.values():
            if client._process.poll() is None:
                client.close()


@pytest.fixture
def group(server: Server, tmp_path: Path, topic: str) -> Iterator[OrderlyGroup]:
    with Admin(server.namesrv) as admin:
        admin.create_topic(topic, queues=4)
        eventually(lambda: len(admin.describe_topic(topic).queues) == 4)
    members = OrderlyGroup(server, tmp_path, topic)
    yield members
    members.close()


def test_orderly_members_that_join_and_leave_keep_every_keys_order(group: OrderlyGroup, server: Server) -> None:
    """Under load, from one member to two and back."""
    load = Load(server.namesrv, group.topic)
    load.start()
    group.join("one")
    group.wait_for(3)
    group.join("two")
    eventually(lambda: group.owning("one") == group.owning("two") == 2, timeout=2 * PATIENCE)
    group.wait_for(load.sent + 3)
    group.leave("two")
    group.wait_for(load.sent + 3)
    last = load.stop()
    group.wait_for(last)
    group.check(last)


@pytest.mark.all
def test_orderly_members_that_are_killed_and_a_broker_that_is_keep_every_keys_order(
    group: OrderlyGroup, server: Server
) -> None:
    """kill -9 of a member: its queues go on when its locks are over. Then of the broker, under load."""
    load = Load(server.namesrv, group.topic)
    load.start()
    for name in ("one", "two"):
        group.join(name)
    eventually(lambda: group.owning("one") == group.owning("two") == 2, timeout=2 * PATIENCE)
    group.wait_for(load.sent + 3)
    group.kill("two")
    group.wait_for(load.sent + 3)
    server.kill()
    server.start()
    group.wait_for(load.sent + 3)
    last = load.stop()
    group.wait_for(last)
    group.check(last)
