"""What a master makes of its slaves' reports: who is waited for, and what is acknowledged when."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from metaq.broker.replication.replicas import Replicas
from metaq.clock import FakeClock
from metaq.options import BrokerOptions
from metaq.store.reads.pull import READ_ALL

NEAR = 1000


class Master:
    """A log whose end the test sets, and the slaves of its broker."""

    def __init__(self, role: str = "SYNC_MASTER", **options: object) -> None:
        self.log, self.clock = SimpleNamespace(end=0, read_end=READ_ALL), FakeClock()
        self.options = BrokerOptions(broker_role=role, ha_slave_fallbehind_max=NEAR, **options)
        store = SimpleNamespace(log=SimpleNamespace(tail=self.log))
        self.replicas = Replicas(SimpleNamespace(options=self.options, clock=self.clock, store=store))
        self.done: list[int] = []

    def ask(self, log_end: int) -> None:
        self.replicas.when_copied(log_end, lambda: self.done.append(log_end))


def test_only_a_synchronous_master_waits():
    """ASYNC_MASTER, and a slave, never do."""
    assert [Master(role).replicas.required for role in ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")] == [False, True, False]


def test_a_connection_that_has_not_reported_is_no_slave():
    """A half-open one would have each send wait for its time-out, as at RocketMQ's master."""
    master = Master()
    replica = master.replicas.connect("a:1")
    assert not master.replicas.available
    master.replicas.report(replica, 0)
    assert master.replicas.available
    master.replicas.disconnect(replica)
    assert not master.replicas.available


def test_a_slave_that_is_far_behind_is_not_waited_for():
    """haSlaveFallbehindMax; it is again when it has caught up."""
    master = Master()
    replica = master.replicas.connect("a:1")
    master.replicas.report(replica, 500)
    master.log.end = 500 + NEAR - 1
    assert master.replicas.available
    master.log.end += 1
    assert not master.replicas.available
    master.replicas.report(replica, 501)
    assert master.replicas.available


def test_the_slave_that_has_most_releases_what_waits():
    """One of them is enough, and what it had when it left it has still."""
    master = Master()
    near, far = master.replicas.connect("a:1"), master.replicas.connect("b:1")
    for place in (100, 200, 300):
        master.ask(place)
    master.replicas.report(far, 50)
    master.replicas.report(near, 200)
    assert master.done == [100, 200]
    master.replicas.disconnect(near)
    assert master.replicas.copied == 200
    master.replicas.report(far, 150)
    master.ask(180)
    assert master.done == [100, 200, 180]
    master.replicas.report(far, 1000)
    assert master.done == [100, 200, 180, 300]


def test_more_slaves_can_be_required():
    """inSyncReplicas counts the master too."""
    master = Master(in_sync_replicas=3)
    one, other = master.replicas.connect("a:1"), master.replicas.connect("b:1")
    master.ask(100)
    master.replicas.report(one, 100)
    assert (master.replicas.available, master.done) == (False, [])
    master.replicas.report(other, 90)
    assert (master.replicas.available, master.replicas.copied) == (True, 90)
    master.replicas.report(other, 100)
    assert master.done == [100]


@pytest.mark.parametrize(("least", "wanted"), [(1, [True, True, True]), (2, [False, True, False]), (3, [False] * 3)])
def test_fewer_than_the_least_take_no_message(least, wanted):
    """minInSyncReplicas: nobody there, one that is near, and the same far behind."""
    master = Master(min_in_sync_replicas=least)
    seen = [master.replicas.enough]
    master.replicas.report(master.replicas.connect("a:1"), 0)
    seen.append(master.replicas.enough)
    master.log.end = NEAR
    assert [*seen, master.replicas.enough] == wanted
    assert Master("ASYNC_MASTER", min_in_sync_replicas=least).replicas.enough


def test_clients_read_what_so_many_slaves_have():
    """As many as sends wait for; less than they had once, when one comes back with less, is no way back for anybody."""
    master = Master(in_sync_replicas=3)
    master.log.end = 100
    one, other = master.replicas.connect("a:1"), master.replicas.connect("b:1")
    master.replicas.report(one, 100)
    assert master.log.read_end == READ_ALL
    master.replicas.report(other, 90)
    assert master.log.read_end == 90
    master.replicas.report(other, 100)
    master.replicas.disconnect(other)
    master.replicas.tick()
    assert master.log.read_end == READ_ALL
    master.replicas.report(master.replicas.connect("b:1"), 50)
    assert master.log.read_end == 100


def test_readers_are_told_when_they_may_read_on():
    """With a report of something new, when no slave is near any more, and when one has stalled."""
    master, told = Master(slave_timeout=3000), list[int]()
    master.replicas.when_readable(lambda: told.append(master.log.read_end))
    replica = master.replicas.connect("a:1")
    for copied in (0, 100, 100, 200):
        master.log.end = 250
        master.replicas.report(replica, copied)
    assert told == [0, 100, 200]
    master.clock.advance(3.0)
    master.replicas.tick()
    assert told[3:] == [READ_ALL]
    master.replicas.report(replica, 201)
    master.replicas.disconnect(replica)
    master.replicas.tick()
    assert told[4:] == [201, READ_ALL]


def test_a_slave_that_falls_far_behind_limits_nobody():
    """Sends do not wait for it either."""
    master = Master()
    master.replicas.report(master.replicas.connect("a:1"), 0)
    assert master.log.read_end == 0
    master.log.end = NEAR
    master.replicas.tick()
    assert master.log.read_end == READ_ALL


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SLAVE"])
def test_other_roles_limit_nobody(role):
    """Whatever slaves report."""
    master = Master(role)
    master.log.end = 100
    master.replicas.report(master.replicas.connect("a:1"), 50)
    master.replicas.tick()
    assert master.log.read_end == READ_ALL


def test_a_cut_takes_back_what_slaves_had():
    """Other records come there, which none of them has."""
    master = Master()
    master.log.end = 200
    master.replicas.report(master.replicas.connect("a:1"), 200)
    master.log.end = 100
    master.replicas.log_was_cut()
    master.ask(150)
    assert (master.replicas.copied, master.done) == (100, [])
