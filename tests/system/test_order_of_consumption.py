"""Orderly consumers while members and brokers die: no queue has two at work, no sequence has a gap."""

from __future__ import annotations

import collections
import contextlib
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import metaq
from metaq.testing import Cluster
from tests.support import PATIENCE, environment, eventually

pytestmark = pytest.mark.slow

QUEUES = 4
LOCK_SECONDS = 4
"""What a dead member's lock lasts here, instead of a minute."""

MEMBER = """
import sys, threading, time
import metaq

namesrv, name = sys.argv[1:]

def handle(message):
    began = time.monotonic()
    time.sleep(0.002)
    sys.stdout.write(f"{message.queue_id} {message.queue_offset} {began} {time.monotonic()}\\n")
    sys.stdout.flush()

with metaq.Consumer(
    namesrv, group="workers", topics="steps", start="earliest", orderly=True, instance_name=name, commit_interval=0.1
) as consumer:
    threading.Thread(target=lambda: (sys.stdin.read(), consumer.stop()), daemon=True).start()
    consumer.run(handle, threads=4)
"""


class Handled(NamedTuple):
    queue_id: int
    offset: int
    began: float
    ended: float
    member: str


class Member:
    """A process with one consumer, and what it says that it handled."""

    def __init__(self, namesrv: str, name: str, handled: list[Handled]) -> None:
        self.name, self._handled = name, handled
        self._process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, namesrv, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if len(words := line.split()) == 4:
                self._handled.append(Handled(int(words[0]), int(words[1]), float(words[2]), float(words[3]), self.name))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)

    def end(self) -> None:
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)


class World:
    """A broker, producers that go on sending, members that come and go."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.handled: list[Handled] = []
        self._members: list[Member] = []
        with metaq.admin.Admin(cluster.namesrv) as admin:
            admin.create_topic("steps", queues=QUEUES)
        self.producer = metaq.Producer(cluster.namesrv, timeout=PATIENCE, retries=1000)
        self.queues = sorted(self.producer.queues("steps"))

    def join(self, name: str) -> Member:
        self._members.append(Member(self.cluster.namesrv, name, self.handled))
        return self._members[-1]

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Send into every queue as long as the block lasts; then wait until everything is handled, and all members end."""
        enough = threading.Event()

        def send() -> None:
            while not enough.wait(0.002):
                for queue in self.queues:
                    self.producer.send("steps", b"x", queue=queue)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            yield
        finally:
            enough.set()
            sender.join(PATIENCE)
        eventually(self.everything_is_handled)
        self.end()

    def everything_is_handled(self) -> bool:
        """By the queues' own ends: a send that was repeated is stored twice."""
        with metaq.Reader(self.cluster.namesrv, "steps") as reader:
            ends = {queue.queue_id: offsets.stop for queue, offsets in reader.ranges().items()}
        return {(one.queue_id, one.offset) for one in list(self.handled)} == {
            (queue_id, offset) for queue_id, end in ends.items() for offset in range(end)
        }

    def at_work(self, member: Member, count: int = 5) -> None:
        before = len(self.handled)
        eventually(lambda: sum(one.member == member.name for one in self.handled[before:]) >= count)

    def end(self) -> None:
        for member in self._members:
            member.end()
        self.producer.close()

    def runs(self) -> Iterator[list[Handled]]:
        """Of each queue what one member handled until the next one did."""
        by_queue: dict[int, list[Handled]] = collections.defaultdict(list)
        for one in sorted(self.handled, key=lambda one: one.began):
            by_queue[one.queue_id].append(one)
        for handled in by_queue.values():
            for before, after in itertools.pairwise(handled):
                assert before.ended <= after.began, f"two at work: {before} and {after}"
                assert after.offset <= before.offset + 1, f"a gap: {before}, {after}"
            for _, run in itertools.groupby(handled, key=lambda one: one.member):
                yield list(run)


@pytest.fixture
def world() -> Iterator[World]:
    with Cluster(options={"rebalanceLockMaxLiveTime": LOCK_SECONDS * 1000}) as cluster:
        made = World(cluster)
        yield made
        made.end()


def test_a_killed_members_queues_go_on_where_it_was_known_to_be(world):
    """kill -9: when its locks have ended another member has them, behind what it had committed; no step back beside that."""
    with world.sending():
        first = world.join("first")
        world.at_work(first)
        second = world.join("second")
        world.at_work(second)
        first.kill()
        world.at_work(second, 500)
    for run in world.runs():
        offsets = [one.offset for one in run]
        assert offsets == list(range(offsets[0], offsets[0] + len(run))), "a step back within a member"


def test_members_that_say_goodbye_repeat_nothing(world):
    """Joining and leaving in good order under load: each message once, in order, whoever has its queue."""
    with world.sending():
        first = world.join("first")
        world.at_work(first)
        second = world.join("second")
        world.at_work(second)
        third = world.join("third")
        world.at_work(third)
        first.end()
        world.at_work(second)
    assert list(world.runs())
    counts = collections.Counter((one.queue_id, one.offset) for one in world.handled)
    assert set(counts.values()) == {1}


def test_a_broker_that_is_killed_and_comes_back_takes_nothing_from_the_sequence(world):
    """Its locks are forgotten, its offsets a little old: the member that still has the queues goes on where it was."""
    with world.sending():
        member = world.join("only")
        world.at_work(member)
        for _ in range(2):
            world.cluster.brokers[0].kill()
            world.cluster.brokers[0].start()
            world.at_work(member, 100)
    for run in world.runs():
        offsets = [one.offset for one in run]
        assert offsets == list(range(len(run)))
