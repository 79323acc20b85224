"""What the move does when something is not as it must be. The move itself: tests/interop/test_migration.py."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from metaq.admin import BrokerStatus
from tests.examples.gallery import GALLERY, loaded
from tests.support import PATIENCE, environment


class Cluster:
    """In place of an Admin: a RocketMQ master and, once it is started, a MetaQ slave that has so much of its log."""

    def __init__(self) -> None:
        self.old, self.new, self.slave_id = 1000, None, 1
        self.done: list[str] = []
        self.fails = ""
        self.copies = True
        self.stored = itertools.count()

    def list_brokers(self):
        found = []
        if self.old is not None:
            found.append(BrokerStatus("c", "broker-a", 0, "old:1", runtime={"commitLogMaxOffset": str(self.old)}))
        if self.new is not None:
            runtime = {
                "commitLogMaxOffset": str(self.new),
                "METAQ": "V1",
                "msgPutTotalTodayNow": str(next(self.stored)),
            }
            found.append(BrokerStatus("c", "broker-a", self.slave_id, "new:1", runtime=runtime))
        return [
            *found,
            BrokerStatus("c", "broker-b", 1, "elsewhere:1"),
            BrokerStatus("c", "broker-a", 2, "gone:1", "no answer"),
        ]

    def shell(self, command):
        self.done.append(command)
        if command == self.fails:
            return 3
        if command == "start":
            self.new = self.old if self.copies else self.old - (8 << 20)
        elif command == "stop_old":
            self.old = None
        return 0

    def promote(self, broker, *, role, force):
        assert (broker, role, force) == ("broker-a", "ASYNC_MASTER", True)
        self.done.append("promote")
        self.slave_id = 0
        return self.list_brokers()[0]


@pytest.fixture
def example(monkeypatch):
    return loaded("move_from_rocketmq", monkeypatch)


def move(example, cluster, **more):
    commands = {name: name for name in example.COMMANDS}
    plan = {"broker": "broker-a", "quiet_seconds": 0.01, "commands": commands} | more
    return example.Move(plan, cluster, 0.5, cluster.shell)


def test_the_steps_are_done_in_their_order(example):
    cluster = Cluster()
    move(example, cluster).run()
    assert cluster.done == ["copy", "start", "stop_sends", "stop_old", "promote"]


def test_what_was_begun_is_gone_on_with(example):
    """A slave that is there is neither copied to nor started again; a copy may be left out."""
    cluster = Cluster()
    cluster.new = 900
    begun = move(example, cluster)
    cluster.new = 1000
    begun.run()
    assert cluster.done == ["stop_sends", "stop_old", "promote"]
    cluster = Cluster()
    move(example, cluster, commands={name: name for name in example.COMMANDS if name != "copy"}).run()
    assert cluster.done == ["start", "stop_sends", "stop_old", "promote"]


@pytest.mark.parametrize(
    ("name", "done"),
    [
        ("copy", ["copy"]),
        ("start", ["copy", "start"]),
        ("stop_sends", ["copy", "start", "stop_sends", "allow_sends"]),
        ("stop_old", ["copy", "start", "stop_sends", "stop_old", "allow_sends"]),
    ],
)
def test_a_command_that_fails_ends_the_move(example, name, done):
    """The old broker stays, and gets sends again if they were stopped."""
    cluster = Cluster()
    cluster.fails = name
    with pytest.raises(example.MoveError, match=f"{name} ended with 3"):
        move(example, cluster).run()
    assert cluster.done == done


def test_nothing_is_stopped_before_the_log_is_there(example):
    cluster = Cluster()
    cluster.copies = False
    with pytest.raises(example.MoveError, match="has the log"):
        move(example, cluster).run()
    assert cluster.done == ["copy", "start"]


def test_the_old_broker_is_not_stopped_while_sends_come(example, monkeypatch):
    cluster = Cluster()
    monkeypatch.setattr(cluster, "list_brokers", lambda listed=cluster.list_brokers: grown(cluster) or listed())
    with pytest.raises(example.MoveError, match="no send is under way"):
        move(example, cluster).run()
    assert cluster.done == ["copy", "start", "stop_sends", "allow_sends"]


def grown(cluster):
    cluster.old += 100
    if cluster.new is not None:
        cluster.new += 100


def test_a_log_that_lost_its_end_is_not_promoted(example, monkeypatch):
    cluster = Cluster()

    def shell(command):
        status = Cluster.shell(cluster, command)
        if command == "stop_old":
            cluster.new -= 1
        return status

    monkeypatch.setattr(cluster, "shell", shell)
    with pytest.raises(example.MoveError, match="ends at 999, and both ended at 1000"):
        move(example, cluster).run()
    assert "promote" not in cluster.done


def test_what_cannot_be_moved_is_said_before_anything_is_done(example):
    """No old broker, a slave of RocketMQ's, one that was moved already, and half a plan."""
    cluster = Cluster()
    cluster.old = None
    with pytest.raises(example.MoveError, match="does not answer"):
        move(example, cluster).run()
    cluster.new, cluster.slave_id = 1000, 0
    with pytest.raises(example.MoveError, match="led by MetaQ at new:1 already"):
        move(example, cluster).run()
    cluster = Cluster()
    rocketmq = BrokerStatus("c", "broker-a", 1, "slave:1", runtime={"commitLogMaxOffset": "1000"})
    cluster.list_brokers = lambda listed=cluster.list_brokers: [*listed(), rocketmq]
    with pytest.raises(example.MoveError, match="has a slave at slave:1"):
        move(example, cluster).run()
    assert cluster.done == []
    with pytest.raises(example.MoveError, match="lacks stop_sends, stop_old, allow_sends"):
        move(example, cluster, commands={"start": "start"})
    with pytest.raises(example.MoveError, match="lacks the name of the broker"):
        move(example, cluster, broker="")


def test_rates_are_messages_per_second_of_one_broker(example):
    """A broker that was started again began to count anew."""
    moments = [
        example.Moment(*one)
        for one in [
            (0.0, False, 0, 0),
            (0.0, True, 7, 7),
            (2.0, False, 100, 50),
            (4.0, False, 90, 50),
            (5.0, False, 90, 70),
        ]
    ]
    assert example.rates(moments, new=False) == ([2.0, 4.0, 5.0], [50.0, 0, 0.0], [25.0, 0.0, 20.0])
    assert example.rates(moments, new=True) == ([], [], [])


def test_the_plan_can_be_looked_at():
    """The file that comes with it, without a cluster."""
    done = subprocess.run(
        [sys.executable, str(GALLERY / "move_from_rocketmq.py"), str(GALLERY / "move.toml"), "--plan"],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "copy",
        "start",
        "stop_sends",
        "stop_old",
        "promote",
    ]
    assert "metaq broker promote broker-a --force --role ASYNC_MASTER -n 10.0.0.1:9876" in done.stdout
