"""A broker with a slave is drained: both are, and both are stopped."""

from __future__ import annotations

import pytest

from metaq.admin import Admin
from metaq.errors import ConfigError
from metaq.model import Perm
from metaq.testing import Cluster
from tests.support import PATIENCE, eventually


def writable(admin, topic):
    return {data.broker for data in admin.describe_topic(topic).route.queues if data.perm & Perm.WRITE}


def test_a_slave_is_drained_with_its_master_and_stops_before_it():
    """The slave's own address is refused by name; who is promoted then is drained, too."""
    cluster = Cluster(brokers=3, broker_options=({}, {"brokerId": 1, "brokerRole": "SLAVE"}))
    for one in cluster.brokers[:2]:
        one.name = one.broker_name = "pair"
    with cluster, Admin(cluster.namesrv) as admin:
        eventually(lambda: len(admin.list_brokers()) == 3)
        admin.create_topic("pairs", queues=2)
        with pytest.raises(ConfigError, match="is a slave of pair, which takes no sends: name pair"):
            admin.drain_broker(cluster.address(1))
        admin.drain_broker(cluster.address(0), quiet_seconds=0, timeout=PATIENCE)
        assert writable(admin, "pairs") == {"broker-2"}
        eventually(
            lambda: (
                {one.broker_id: one.draining for one in admin.list_brokers() if one.broker == "pair"}
                == {0: True, 1: True}
            )
        )
        admin.promote("pair")
        eventually(lambda: [one.broker_id for one in admin.list_brokers() if one.address == cluster.address(1)] == [0])
        eventually(lambda: "pairs" in admin.list_topics())
        assert writable(admin, "pairs") == {"broker-2"}
        eventually(lambda: sorted(one.broker_id for one in admin.list_brokers() if one.broker == "pair") == [0, 1])
        done = admin.drain_broker("pair", quiet_seconds=0, timeout=PATIENCE, stop=True)
        assert done.stopped
        assert [cluster.brokers[number].wait_ended(PATIENCE) for number in (0, 1)] == [0, 0]
        assert {one.broker for one in admin.list_brokers()} == {"broker-2"}
