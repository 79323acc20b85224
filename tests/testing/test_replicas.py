"""Clusters of replicas: who copies from whom, links of brokers by themselves, disks and clocks that fail."""

from __future__ import annotations

import os
import socket

import pytest

import metaq
from metaq.model import SendStatus
from metaq.testing import Cluster
from metaq.testing.checking import Ledger, Trouble, read_history
from metaq.testing.faketime import VARIABLE, FakedClock, find_faketime
from metaq.testing.listening import process_at
from metaq.testing.nemesis import Fault, Nemesis, Schedule, Step, topology_of
from metaq.testing.ways import BROKER, CLIENT, NAMESRV, NetworkWay
from tests.support import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair():
    """A master and its slave with networks and disks that fail, for tests that leave them well."""
    with Cluster(
        replicas=2,
        networks=True,
        faulty_disks=True,
        options={"registerNameServerPeriod": 1000, "haHousekeepingInterval": 1000, "mappedFileSizeCommitLog": 1 << 20},
    ) as running:
        yield running


@pytest.fixture
def even(pair):
    """The pair, in sync before and behind the test."""
    eventually(lambda: pair.wait_in_sync() is None)
    yield pair
    pair.mend()
    for broker in pair.brokers:
        if not broker.alive:
            broker.start()
    eventually(lambda: pair.wait_in_sync() is None)


def send(pair, body=b"x"):
    with metaq.Producer(pair.namesrv, retries=0) as producer:
        return eventually(lambda: producer.send("replicated", body))


def test_replicas_are_a_master_and_its_slaves(even):
    """With one name, numbers of their own, and folders of their own."""
    assert [broker.name for broker in even.brokers] == ["broker-0-1", "broker-0-2"]
    assert {broker.broker_name for broker in even.brokers} == {"broker-0"}
    states = even.states()
    assert {number: (state.leads, state.broker_id) for number, state in states.items()} == {0: (True, 0), 1: (False, 1)}
    assert even.leader() == 0
    assert topology_of(even).replicas == 2


def test_a_link_of_brokers_fails_without_that_of_clients(even):
    """The slave is cut off from its master, and clients send on; so do both the other way round."""
    eventually(lambda: send(even).status is SendStatus.SEND_OK)
    even.broker_to_broker(1, 0).cut()
    eventually(lambda: send(even).status is SendStatus.SLAVE_NOT_AVAILABLE)
    even.broker_to_broker(1, 0).mend()
    eventually(lambda: send(even).status is SendStatus.SEND_OK)
    even.client_to_broker(0).cut()
    with pytest.raises(metaq.SendFailed), metaq.Producer(even.namesrv, retries=0, timeout=1.0) as producer:
        producer.send("replicated", b"lost")
    end = even.states()[0].log_end
    assert even.states()[1].log_end == end
    even.mend()
    assert send(even)


def test_every_way_has_its_network(even):
    assert set(even.ways()) == {
        NetworkWay(CLIENT, 0, NAMESRV, 0), NetworkWay(BROKER, 0, NAMESRV, 0), NetworkWay(BROKER, 1, NAMESRV, 0),
        NetworkWay(CLIENT, 0, BROKER, 0), NetworkWay(CLIENT, 0, BROKER, 1), NetworkWay(BROKER, 0, BROKER, 1), NetworkWay(BROKER, 1, BROKER, 0),
    }  # fmt: skip
    with pytest.raises(metaq.ConfigError, match="no network from broker 7 to zookeeper 0"):
        even.broker_to_zookeeper(7, 0)


def test_a_follower_that_loses_its_power_copies_what_it_lacks(even):
    """And keeps beside its folder what it had held."""
    receipt = send(even)
    follower = even.brokers[1]
    follower.cut_power()
    assert follower.lost_data is not None
    assert follower.lost_data.is_dir()
    assert not follower.alive
    follower.start()
    even.wait_in_sync()
    with metaq.Reader(even.namesrv, "replicated", queues=[receipt.queue], stop_at_end=True) as reader:
        assert receipt.offset in {message.queue_offset for message in reader}


def test_a_disk_without_room_refuses_and_is_well_again(even):
    send(even)
    even.brokers[0].set_disk(room=0, no_files=True)

    def refused():
        with metaq.Producer(even.namesrv, retries=0, compress_over=1 << 20) as producer:
            try:
                producer.send("replicated", b"x" * 100_000)
            except metaq.MetaqError:
                return True

    eventually(refused)
    even.brokers[0].set_disk()
    assert send(even, b"x" * 100_000)


def test_a_nemesis_undoes_all_that_it_has_done(even, tmp_path):
    """Also the ends that lie behind the schedule's, and where faults meet each other."""
    faults = [
        Fault("kill", "leader 0"), Fault("stop", "follower 0"), Fault("restart", "follower 0"),
        Fault("partition", "follower 0", "everything", "stall", "to it"), Fault("partition", "leader 0", "clients", "cut", "both"),
        Fault("slow-network", "follower 0", "brokers", amount=0.01), Fault("slow-disk", "follower 0", amount=0.01),
        Fault("power", "follower 0"), Fault("clock", "leader 0", amount=5),
    ]  # fmt: skip
    steps = tuple(Step(0.02 * at, 5.0, fault) for at, fault in enumerate(faults, 1))
    with Ledger(tmp_path) as ledger:
        with Nemesis(even, ledger, Schedule(1, 0.0, steps[:-2])) as nemesis:
            for number, step in enumerate(steps):
                nemesis._begin(number, step)
        assert all(broker.alive and not broker.paused for broker in even.brokers)
        told = [event.text for event in read_history(tmp_path) if isinstance(event, Trouble)]
    assert "kill leader 0: broker-0-1" in told
    assert any(line.startswith("clock leader 0 (5): left out") for line in told), "its clock cannot be set"
    assert any(line.startswith("restart follower 0") for line in told)
    eventually(lambda: even.wait_in_sync() is None)
    assert send(even)


def test_clusters_without_such_disks_and_clocks_say_so(metaq_cluster, monkeypatch):
    cluster = metaq_cluster()
    with pytest.raises(metaq.ConfigError, match="faulty_disks=True"):
        cluster.brokers[0].cut_power()
    with pytest.raises(metaq.ConfigError, match="clocks=True"):
        cluster.brokers[0].set_clock(3)
    with pytest.raises(metaq.ConfigError, match="17 replicas"):
        Cluster(replicas=17)
    monkeypatch.setenv(VARIABLE, "/nowhere")
    with pytest.raises(metaq.ConfigError, match="libfaketime is not installed"):
        Cluster(clocks=True)


def test_where_the_time_comes_from_is_written_whole(tmp_path):
    clock = FakedClock(tmp_path / "lib.so", tmp_path / "clock")
    assert (tmp_path / "clock").read_text() == "+0.000\n"
    clock.set(-3600)
    assert (tmp_path / "clock").read_text() == "-3600.000\n"
    assert clock.environment["LD_PRELOAD"] == str(tmp_path / "lib.so")


@pytest.mark.skipif(find_faketime() is None, reason="libfaketime is not installed (Debian: apt install libfaketime)")
def test_a_brokers_clock_jumps_and_comes_back():
    """Messages are stored with its time, which a log never lets go back."""
    with Cluster(clocks=True) as cluster, metaq.Producer(cluster.namesrv) as producer:
        for seconds in (-7200, 0, 7200, 0):
            cluster.brokers[0].set_clock(seconds)
            producer.send("clock", b"x")
        with metaq.Reader(cluster.namesrv, "clock", stop_at_end=True) as reader:
            stored = sorted(message.store_ms for message in reader)
    hours = [(at - stored[0]) / 3_600_000 for at in stored]
    assert hours == pytest.approx([0, 2, 4, 4], abs=0.2)


def test_connections_are_told_apart_by_the_process_that_made_them():
    """Of this process, and of none that is known."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            assert process_at(accepted, {os.getpid(): "us"}) == "us"
            assert process_at(accepted, {1: "others"}) == ""
            assert process_at(client, {os.getpid(): "us"}) == "us"
