"""Order of sends over three brokers, one of which is killed and comes back under load: normal and strict, side by side."""

from __future__ import annotations

import re
import threading
from collections import defaultdict

import pytest

import metaq
from metaq import Producer, Reader
from metaq.admin import Admin
from metaq.client.shared.messages import queue_for_key
from metaq.model import MessageQueue
from metaq.model.topics.route import OrderLayout
from metaq.testing import Cluster
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.slow

KEYS = [f"key-{number}" for number in range(18)]
QUEUES = 2
ROUNDS = 5
"""Messages of every key before the broker is killed, while it is away, and after it is back.

While it is away, strict order has one: each send to it takes all of its time.
"""

PACE_SECONDS = 0.02
STRICT_SECONDS = 2.0
"""Between two rounds: the brokers, which start and stop meanwhile, want the machine too."""


class Sending(threading.Thread):
    """Sends number after number for every key, one at a time, and notes what became of each."""

    def __init__(self, namesrv: str, topic: str, *, strict: bool) -> None:
        super().__init__(daemon=True)
        self.namesrv, self.topic, self.strict = namesrv, topic, strict
        self.places: dict[str, dict[int, MessageQueue]] = {key: {} for key in KEYS}
        self.failed: dict[str, list[int]] = {key: [] for key in KEYS}
        self.rounds = 0
        self.wrong: BaseException | None = None
        self.enough = threading.Event()

    def run(self) -> None:
        try:
            # In strict order a send waits for its broker until its time is over.
            seconds = STRICT_SECONDS if self.strict else PATIENCE
            with Producer(self.namesrv, timeout=seconds, retries=2 if self.strict else 50) as producer:
                while not self.enough.wait(PACE_SECONDS):
                    for key in KEYS:
                        self.send(producer, key)
                    self.rounds += 1
        except BaseException as error:
            self.wrong = error

    def send(self, producer: Producer, key: str) -> None:
        number, body = self.rounds, b"%s:%d" % (key.encode(), self.rounds)
        try:
            receipt = producer.send(self.topic, body, ordering_key=key, strict=self.strict)
        except metaq.SendFailed:
            self.failed[key].append(number)
        else:
            self.places[key][number] = receipt.queue

    def wait_rounds(self, more: int = ROUNDS) -> None:
        """Until every key had so many more turns."""
        goal = self.rounds + more
        eventually(lambda: self.wrong is not None or self.rounds >= goal, what=f"{more} rounds to {self.topic}")
        if self.wrong is not None:
            raise self.wrong


def stored(namesrv: str, topic: str) -> dict[str, dict[MessageQueue, list[int]]]:
    """Key → queue → its numbers as they lie there, a repeated one (a try whose answer was lost) counted once."""
    found: dict[str, dict[MessageQueue, list[int]]] = {key: defaultdict(list) for key in KEYS}
    seen = set()
    with Reader(namesrv, topic, start="earliest", stop_at_end=True) as reader:
        for message in reader:
            match = re.fullmatch(rb"(.+):(\d+)", message.body)
            if match and message.message_id not in seen:
                seen.add(message.message_id)
                found[match[1].decode()][message.queue].append(int(match[2]))
    return found


def test_a_broker_that_is_killed_moves_normal_keys_and_stops_its_strict_ones():
    """Strict: each key stays in its queue of the fixed list; what its producer was told has failed is all that is missing.
    Normal: no send fails, and the keys of the broker that is away go on elsewhere, in order within each queue."""
    with Cluster(brokers=3) as cluster, Admin(cluster.namesrv) as admin:
        for topic in ("strict", "normal"):
            admin.create_topic(topic, queues=QUEUES)
        eventually(lambda: len(admin.describe_topic("strict").route.queues) == 3)
        layout = OrderLayout.of(admin.set_topic_order("strict")).queues("strict")
        strict, normal = (Sending(cluster.namesrv, topic, strict=topic == "strict") for topic in ("strict", "normal"))
        for one in (strict, normal):
            one.start()
        for one in (strict, normal):
            one.wait_rounds()
        killed = cluster.brokers[1]
        killed.kill()
        strict.wait_rounds(1)
        normal.wait_rounds()
        killed.start()
        eventually(lambda: admin.describe_topic("normal").route.broker(killed.name) is not None)
        its = [key for key in KEYS if queue_for_key(key, layout).broker == killed.name]
        others = [key for key in KEYS if key not in its]
        assert its
        assert others
        back = {key: len(strict.places[key]) for key in its}
        eventually(lambda: all(len(strict.places[key]) > back[key] + ROUNDS for key in its), what="its keys go on")
        for one in (strict, normal):
            one.wait_rounds()
            one.enough.set()
            one.join(PATIENCE)
            assert one.wrong is None

        found = stored(cluster.namesrv, "strict")
        for key in KEYS:
            [(queue, numbers)] = found[key].items()
            assert queue == queue_for_key(key, layout)
            assert numbers == sorted(set(numbers)), f"{key} steps back"
            acknowledged, failed = set(strict.places[key]), set(strict.failed[key])
            assert acknowledged <= set(numbers) <= acknowledged | failed
        assert all(strict.failed[key] for key in its), "its share stopped"
        assert not any(strict.failed[key] for key in others), "and only that"

        found = stored(cluster.namesrv, "normal")
        for key in KEYS:
            assert not normal.failed[key], "sends go on"
            for numbers in found[key].values():
                assert numbers == sorted(numbers), f"{key} steps back within a queue"
            together = sorted(number for numbers in found[key].values() for number in numbers)
            assert together == list(range(len(together))), f"{key} has a gap"
            assert set(normal.places[key]) == set(together)
        moved = [key for key in KEYS if len(found[key]) > 1]
        assert moved, "the keys of the broker that was away went on elsewhere"


def test_a_throttled_broker_is_avoided_only_with_send_latency_fault_enable():
    """A network that delays its answers by 0.7 s: one send finds out, and the next go elsewhere for half a minute."""
    with Cluster(brokers=2, networks=True) as cluster, Admin(cluster.namesrv) as admin:
        admin.create_topic("orders", queues=QUEUES)
        eventually(lambda: len(admin.describe_topic("orders").route.queues) == 2)
        slow = cluster.brokers[0].name

        def sent_to_slow(producer: Producer, count: int) -> int:
            return sum(producer.send("orders", b"x").queue.broker == slow for _ in range(count))

        with (
            Producer(cluster.namesrv, timeout=PATIENCE, send_latency_fault_enable=True) as careful,
            Producer(cluster.namesrv, timeout=PATIENCE, instance_name="plain") as plain,
        ):
            assert sent_to_slow(careful, 8) > 0
            cluster.client_to_broker(0).delay(0.7)
            assert sent_to_slow(careful, 8) <= 1
            assert sent_to_slow(careful, 8) == 0
            assert sent_to_slow(plain, 4) == 2
