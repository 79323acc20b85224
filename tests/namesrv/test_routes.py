"""The route table on a clock that the test owns."""

from __future__ import annotations

import pytest
from tests.namesrv.support import Link

from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import DataVersion, Perm, TopicConfig
from metaq.model.topics.registration import BrokerIdentity, Registration, VersionCheck
from metaq.namesrv.routes import RouteTable

LEASE_MS = 120_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def routes(clock: FakeClock) -> RouteTable:
    return RouteTable(clock, LEASE_MS)


def registration(broker="a", broker_id=0, address="10.0.0.1:10911", version=1, topics=("T",), queues=4, sys_flag=0):
    table = {name: TopicConfig(name, queues, queues, sys_flag=sys_flag) for name in topics}
    return Registration(
        BrokerIdentity("C", broker, broker_id, address, "10.0.0.1:10912"), DataVersion(0, version), table
    )


def test_a_registered_topic_has_a_route(routes):
    """A master's registration makes its topics known with queues and address."""
    routes.register(registration(), Link())
    route = routes.route("T")
    assert route is not None
    assert route.brokers[0].addresses == {0: "10.0.0.1:10911"}
    assert [str(queue) for queue in route.writable()] == ["T@a:0", "T@a:1", "T@a:2", "T@a:3"]
    assert routes.route("other") is None


def test_a_silent_broker_is_dropped_when_its_lease_ends(routes, clock):
    """The lease runs from the last registration; with the broker go its queues and its cluster."""
    routes.register(registration(), Link())
    clock.advance(LEASE_MS / 1000)
    assert routes.expire() == []
    clock.advance(0.001)
    assert routes.expire() == ["10.0.0.1:10911"]
    assert routes.route("T") is None
    assert routes.clusters().brokers == {}
    assert routes.topics() == []


def test_asking_for_the_version_renews_the_lease(routes, clock):
    """An unchanged broker that only asks stays alive; a changed one is told so and must register."""
    routes.register(registration(version=3), Link())
    clock.advance(100)
    assert routes.check_version("10.0.0.1:10911", DataVersion(0, 3)) == VersionCheck(
        changed=False, known=DataVersion(0, 3)
    )
    clock.advance(100)
    assert routes.expire() == []
    assert routes.check_version("10.0.0.1:10911", DataVersion(0, 4)) == VersionCheck(
        changed=True, known=DataVersion(0, 3)
    )
    assert routes.check_version("10.0.0.9:1", DataVersion(0, 4)) == VersionCheck(changed=True, known=None)


def test_a_broken_connection_takes_its_brokers_with_it(routes):
    """Only what came through that connection goes."""
    one = Link()
    routes.register(registration("a", address="10.0.0.1:1"), one)
    routes.register(registration("b", address="10.0.0.2:1"), Link())
    assert routes.disconnected(one) == ["10.0.0.1:1"]
    route = routes.route("T")
    assert route is not None
    assert [queue.broker for queue in route.queues] == ["b"]


def test_a_registration_over_a_new_connection_survives_the_end_of_the_old(routes):
    """A broker that reconnected before the old connection's end was noticed stays known."""
    old = Link()
    routes.register(registration(), old)
    routes.register(registration(), Link())
    assert routes.disconnected(old) == []
    assert routes.route("T") is not None


def test_a_registration_never_removes_a_topic(routes):
    """A topic that a later registration leaves out stays, until it is deleted."""
    routes.register(registration(topics=("T", "U")), Link())
    routes.register(registration(topics=("T",), version=2), Link())
    assert routes.topics() == ["T", "U"]
    routes.delete_topic("U")
    assert routes.topics() == ["T"]


def test_only_a_moved_version_rewrites_queues(routes):
    """A wiped permission lasts until the broker tells a change, not just until its next heartbeat."""
    routes.register(registration(version=1), Link())
    assert routes.set_writable("a", writable=False) == 1
    routes.register(registration(version=1), Link())
    assert routes.route("T").queues[0].perm == int(Perm.READ)
    assert routes.route("T").writable() == []
    routes.register(registration(version=2), Link())
    assert routes.route("T").queues[0].perm == int(Perm.READ | Perm.WRITE)
    assert routes.set_writable("unknown", writable=False) == 0


def test_write_permission_is_restored(routes):
    """Restoring sets read and write."""
    routes.register(registration(), Link())
    routes.set_writable("a", writable=False)
    assert routes.set_writable("a", writable=True) == 1
    assert len(routes.route("T").writable()) == 4


def test_a_slave_adds_an_address_but_no_queues(routes):
    """A slave alone makes no route; with its master it is a second address."""
    routes.register(registration(broker_id=1, address="10.0.0.2:10911"), Link())
    assert routes.route("T") is None
    master = routes.register(registration(), Link())
    assert master.addresses == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert routes.ha_address("10.0.0.1:10911") == "10.0.0.1:10912"


def test_a_role_change_moves_the_address(routes):
    """The same address under another id replaces the old id."""
    routes.register(registration(broker_id=1, address="10.0.0.1:10911"), Link())
    routes.register(registration(broker_id=0, address="10.0.0.1:10911"), Link())
    assert routes.route("T").brokers[0].addresses == {0: "10.0.0.1:10911"}


def test_goodbye_removes_only_the_own_address(routes):
    """A goodbye with an address that is not registered under that id changes nothing."""
    routes.register(registration(), Link())
    routes.unregister("a", 0, "10.0.0.7:1")
    assert routes.route("T") is not None
    routes.unregister("a", 0, "10.0.0.1:10911")
    assert routes.route("T") is None


def test_topics_by_cluster_and_by_flag(routes):
    """Lists are sorted and filtered."""
    routes.register(registration(topics=("U", "T"), sys_flag=3), Link())
    assert routes.topics("C") == ["T", "U"]
    assert routes.topics("D") == []
    assert routes.topics_flagged([1]) == ["T", "U"]
    assert routes.topics_flagged([2], drop=1) == []
    routes.delete_topic("T", broker="nobody")
    routes.delete_topic("T", "D")
    assert routes.topics() == ["T", "U"]
    routes.delete_topic("T", "C")
    assert routes.topics() == ["U"]


def test_memory_counts_at_the_connection_that_registered_it_and_is_given_back(routes):
    """A name server keeps what brokers register for as long as they live: 500 bytes for each topic."""
    first, second = Link(), Link()
    routes.register(registration(topics=[f"{number:0100d}" for number in range(100)]), first)
    assert 40_000 < first.kept < 70_000
    before = first.kept
    routes.register(registration(topics=[f"{number:0100d}" for number in range(100)], version=2), first)
    assert first.kept == before, "it has them already"
    routes.delete_topic(f"{7:0100d}")
    assert 400 <= before - first.kept <= 600
    routes.register(registration(topics=["T"], version=3), second)
    assert first.kept == 0, "the broker is connected anew"
    assert 40_000 < second.kept < 70_000
    routes.disconnected(second)
    assert second.kept == 0


def test_queues_of_a_broker_whose_slave_lives_count_there(routes):
    master, slave = Link(), Link()
    routes.register(registration(topics=[str(number) for number in range(100)]), master)
    routes.register(registration(broker_id=1, address="10.0.0.2:1"), slave)
    assert slave.kept < 2000
    routes.disconnected(master)
    assert master.kept == 0
    assert slave.kept > 35_000
    again = Link()
    routes.register(registration(broker_id=1, address="10.0.0.2:1"), again)
    assert slave.kept == 0
    assert again.kept > 35_000, "the slave is connected anew"
    slave = again
    routes.register(registration(version=2), master)
    assert slave.kept < 2000
    routes.unregister("a", 1, "10.0.0.2:1")
    routes.unregister("a", 0, "10.0.0.1:10911")
    assert (master.kept, slave.kept) == (0, 0)


def test_a_registration_that_would_be_too_much_is_refused_whole(routes):
    """The broker hears why; one that is already known stays as it is."""
    link = Link(room=30_000)
    routes.register(registration(), link)
    with pytest.raises(
        Refused, match=r"the registration of a at 10\.0\.0\.1:10911 takes .* bytes more.*peerBytesMax"
    ) as error:
        routes.register(registration(topics=[str(number) for number in range(100)], version=2), link)
    assert error.value.reason is Reason.BUSY
    assert routes.topics() == ["T"]
    routes.register(registration(), link)


def test_a_new_leader_takes_the_place_of_one_that_said_no_goodbye(routes):
    """The old one sleeps, and its connection stays: the route has the new one at once, with its topics, whatever version both have."""
    sleeper = Link()
    routes.register(registration(address="10.0.0.1:10911", topics=("T",)), sleeper)
    routes.register(registration(broker_id=1, address="10.0.0.2:10911"), Link())
    routes.register(registration(broker_id=0, address="10.0.0.2:10911", topics=("T", "U")), Link())
    for topic in ("T", "U"):
        assert routes.route(topic).brokers[0].addresses == {0: "10.0.0.2:10911"}
    assert routes.clusters().brokers["a"].addresses == {0: "10.0.0.2:10911"}
    # The end of the sleeper's connection takes nothing from its successor.
    assert routes.disconnected(sleeper) == ["10.0.0.1:10911"]
    assert routes.route("U").brokers[0].addresses == {0: "10.0.0.2:10911"}
