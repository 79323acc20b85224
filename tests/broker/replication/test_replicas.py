"""What a master makes of its slaves' reports: who is waited for, and what is acknowledged when."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from metaq.broker.replication.replicas import Replicas
from metaq.options import BrokerOptions

NEAR = 1000


class Master:
    """A log whose end the test sets, and the slaves of its broker."""

    def __init__(self, role: str = "SYNC_MASTER", **options: object) -> None:
        self.log = SimpleNamespace(end=0)
        self.options = BrokerOptions(broker_role=role, ha_slave_fallbehind_max=NEAR, **options)
        self.replicas = Replicas(
            SimpleNamespace(options=self.options, store=SimpleNamespace(log=SimpleNamespace(tail=self.log)))
        )
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
