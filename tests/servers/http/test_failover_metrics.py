"""What a broker of a group with failover tells of its part in it."""

from __future__ import annotations

from metaq.clock import FakeClock
from metaq.metrics import table
from metaq.model.failover import GroupState, Place
from metaq.servers.http.metrics.broker import of_group
from tests.broker.support import open_broker

OF_GROUPS = {metric.name for metric in table.ALL if metric.name.startswith("failover_")}
GROUP = ("DefaultCluster", "broker-a")


def told(broker):
    """Return (name, labels behind those of the group) → value."""
    found = {}
    for metric, value, labels in of_group(broker):
        assert labels[:2] == GROUP
        assert len(labels) == len(metric.labels)
        found[metric.name, labels[2:]] = value
    return found


def test_a_leader_and_a_follower_tell_of_their_group(tmp_path):
    """Every metric of the table that is about groups, and no other."""
    clock = FakeClock()
    options = {"failover": "zookeeper", "broker_id": 2, "min_in_sync_replicas": 2}
    with open_broker(tmp_path, clock, **options) as broker:
        in_sync = broker.in_sync
        follows = told(broker)
        assert follows["failover_leads", ()] == follows["failover_in_sync_members", ()] == 0
        assert follows["failover_lease_seconds", ()] == 0
        assert follows["failover_in_sync_minimum", ()] == 2
        places = (Place(1, "s1"), Place(2, "s2"))
        state = GroupState("h", 4, 2, "i", places)
        in_sync.begin(2, state, 0)
        in_sync.renewed(clock.elapsed(), 2.0)
        assert told(broker)["failover_in_doubt", ()] == 1  # one of two is there
        replica = in_sync.connect("127.0.0.1:40000")
        assert in_sync.identify(replica, in_sync.ticket(places[0], 4))
        in_sync.report(replica, 0)
        leads = told(broker)
        assert {name for name, _ in leads} == OF_GROUPS
        assert leads["failover_leads", ()] == 1
        assert leads["failover_in_sync_members", ()] == 2
        assert leads["failover_in_doubt", ()] == 0
        lease = int(1000 * in_sync.lease.seconds)
        assert 0 < lease < 2000
        assert leads["failover_lease_seconds", ()] == lease / 1000
        assert leads["failover_member_lag_bytes", ("1",)] == leads["failover_member_lag_seconds", ("1",)] == 0
        role = broker.roles.state().group
        assert (role.minimum, role.lease_ms, role.behind_ms) == (2, lease, {1: 0})


def test_a_broker_without_failover_has_none_of_them(tmp_path):
    with open_broker(tmp_path, FakeClock()) as broker:
        assert not list(of_group(broker))
