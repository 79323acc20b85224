"""A group whose machines lose their power: what was acknowledged, and who leads then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import metaq
from metaq.admin import Admin
from metaq.testing import Cluster
from metaq.testing.trial.running import FILES
from tests.interop.test_failover import OPTIONS, QUICK, TOPIC, Group, Load
from tests.support import PATIENCE, eventually

pytestmark = [pytest.mark.interop, pytest.mark.all, pytest.mark.xdist_group("failover")]


@pytest.fixture(scope="module", params=["SYNC_FLUSH", "ASYNC_FLUSH"])
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder: Path = tmp_path_factory.mktemp("power")
    options = {**FILES, **OPTIONS, "autoCreateTopicEnable": "true", "flushDiskType": request.param}
    with (
        Cluster(replicas=3, zookeeper=True, faulty_disks=True, folder=folder, options=options) as cluster,
        Admin(cluster.namesrv) as admin,
    ):
        found = Group(cluster, admin)
        found.whole()
        admin.create_topic(TOPIC, queues=2)
        found.syncs = request.param == "SYNC_FLUSH"
        yield found


def whole_of(group: Group, number: int) -> bool:
    """Whether a broker says that its log has all that it ever reported."""
    file = group.cluster.brokers[number].data / "config" / "metaqFailover.json"
    return '"whole":true' in file.read_text()


@pytest.mark.parametrize("which", ["the leader", "a follower"])
def test_one_member_loses_its_power(group: Group, which: str) -> None:
    """The others have all that was acknowledged; it is whole again when it has caught up."""
    leader, cluster = group.whole(), group.cluster
    victim = leader if which == "the leader" else group.followers(leader)[0]
    with Load(group, f"one-{victim}") as load:
        cluster.brokers[victim].cut_power()
        load.more()
        cluster.brokers[victim].start()
        load.more()
        after = group.whole()
        load.more()
    assert (after == leader) is (which == "a follower")
    eventually(lambda: whole_of(group, victim), what="its log is whole again")
    load.check()


def test_all_members_lose_their_power(group: Group) -> None:
    """With SYNC_FLUSH nothing is lost. Without, the longest log leads, when all are back, and the others follow it."""
    leader, cluster = group.whole(), group.cluster
    with metaq.Producer(cluster.namesrv, timeout=PATIENCE, **QUICK) as producer:
        for at in range(100):
            producer.send(TOPIC, b"all-%d" % at)
    for number in range(3):
        cluster.brokers[number].cut_power()
    first, second = group.followers(leader)
    cluster.brokers[first].start()
    if not group.syncs:
        assert not whole_of(group, first)
        eventually(
            lambda: "may have lost the ends of their logs with their power" in cluster.brokers[first].log_text(),
            what="it waits for the others of the set",
        )
        assert group.cluster.leader() is None
    for number in (second, leader):
        cluster.brokers[number].start()
    group.whole()
    with metaq.Producer(cluster.namesrv, timeout=PATIENCE, **QUICK) as producer:
        producer.send(TOPIC, b"after")
    found = group.read()
    assert found[b"after"] == 1
    if group.syncs:
        assert {b"all-%d" % at for at in range(100)} <= found.keys()
    for number in range(3):
        eventually(lambda number=number: whole_of(group, number), what="all logs are whole again")
    ends = {state.log_end for state in group.states().values()}
    assert len(ends) == 1
