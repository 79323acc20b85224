"""A cluster of real processes with a network that fails, against the real Python client."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import metaq
from metaq.testing import Cluster, ServerDied, free_port, ports
from tests.support import PATIENCE, ROOT, environment, eventually

pytestmark = pytest.mark.slow

SMALL_WAIT = 0.5
"""A client's patience with what will not come."""


@pytest.fixture(scope="module")
def cluster():
    """Two brokers and two name servers with networks, for all tests that leave them as they found them."""
    with Cluster(brokers=2, name_servers=2, networks=True) as running:
        yield running


@pytest.fixture
def mended(cluster):
    """The cluster, its networks mended behind the test and its brokers back at their name servers."""
    yield cluster
    cluster.mend()
    for broker in cluster.brokers:  # one test that fails with a broker down is not the end of all others
        if not broker.alive:
            broker.start()
    cluster.wait_registered()


@pytest.fixture
def topic(cluster, request):
    """A topic of the test's own on broker-0 alone, with one queue."""
    name = request.node.name
    with metaq.admin.Admin(cluster.namesrv) as admin:
        admin.create_topic(name, queues=1, broker="broker-0")
    return name


def read(namesrv, topic, **options):
    with metaq.Reader(namesrv, topic, start="earliest", stop_at_end=True, **options) as reader:
        return [message.body for message in reader]


def test_everything_is_registered_everywhere_when_the_block_is_entered(cluster):
    """Each name server alone knows both brokers, and clients are told the addresses of the networks."""
    for server in cluster.name_servers:
        with metaq.admin.Admin(server.listens) as admin:
            listed = {status.broker: status.address for status in admin.list_brokers() if not status.error}
        assert listed == {"broker-0": cluster.address(0), "broker-1": cluster.address(1)}
    assert len({server.pid for server in (*cluster.brokers, *cluster.name_servers)}) == 4
    assert len(cluster.namesrv.split(";")) == 2
    for number, server in enumerate(cluster.brokers):
        assert cluster.address(number) != server.listens
        assert cluster.client_to_broker(number).target == server.listens


def test_send_through_a_cut_network_fails_clearly_and_works_once_it_is_mended(mended, topic):
    """The error names the broker's address; the other broker is not disturbed; nothing that failed was stored."""
    network = mended.client_to_broker(0)
    with metaq.Producer(mended.namesrv, timeout=PATIENCE, retries=0) as producer:
        producer.send(topic, b"before")
        carried = network.connections
        assert carried
        network.cut()
        with pytest.raises(metaq.SendFailed, match=mended.address(0)):
            producer.send(topic, b"lost")
        network.mend()
        producer.send(topic, b"after")
        assert network.connections > carried
    assert read(mended.namesrv, topic) == [b"before", b"after"]


def test_client_goes_to_the_other_name_server_when_one_is_cut_off(mended, topic):
    """One name server out of reach costs nothing; without any, the error says which were asked."""
    mended.client_to_namesrv(0).cut()
    with metaq.Producer(mended.namesrv) as producer:
        producer.send(topic, b"x")
    mended.client_to_namesrv(1).cut()
    with metaq.Producer(mended.namesrv, timeout=2.0) as producer, pytest.raises(metaq.MetaqError) as caught:
        producer.send(topic, b"y")
    assert all(address in str(caught.value) for address in mended.namesrv.split(";"))


def test_broker_that_is_cut_off_from_a_name_server_is_dropped_there_and_comes_back(mended):
    """Only there: the other name server goes on knowing it, and so do clients."""

    def known(name_server):
        with metaq.admin.Admin(mended.name_servers[name_server].listens) as admin:
            return {status.broker for status in admin.list_brokers()}

    mended.broker_to_namesrv(0, 0).cut()
    eventually(lambda: known(0) == {"broker-1"}, what="the name server drops the broker")
    assert known(1) == {"broker-0", "broker-1"}
    mended.mend()
    eventually(lambda: known(0) == {"broker-0", "broker-1"}, what="the broker registers again")


def test_half_open_connection_is_not_mistaken_for_a_slow_one(mended, topic):
    """A slow answer is waited for and counts; from a half-open connection nothing ever comes, and the client goes on by a
    new one as soon as it can."""
    network = mended.client_to_broker(0)
    with metaq.Producer(mended.namesrv, timeout=PATIENCE, retries=0) as patient:
        patient.send(topic, b"first")
        network.delay(1.0, "to client")
        start = time.monotonic()
        assert patient.send(topic, b"slow").status is metaq.SendStatus.SEND_OK
        assert time.monotonic() - start >= 1.0
        network.delay(0)
        with metaq.Producer(mended.namesrv, timeout=SMALL_WAIT, retries=0) as hasty:
            network.half_open()
            with pytest.raises(metaq.SendFailed, match="timeout"):
                hasty.send(topic, b"half-open")
        broken = network.connections
        network.mend()
        assert eventually(lambda: patient.send(topic, b"last"), what="sends work over a new connection")
        assert network.connections > broken
    bodies = read(mended.namesrv, topic)
    assert bodies[:2] == [b"first", b"slow"]
    assert bodies[-1] == b"last"
    assert b"half-open" not in bodies


def test_answer_that_is_lost_leaves_a_message_that_may_be_stored(mended, topic):
    """Only the way back is stalled: the send fails, and says that it may have been stored; it was."""
    network = mended.client_to_broker(0)
    with metaq.Producer(mended.namesrv, timeout=SMALL_WAIT, retries=0) as producer:
        eventually(lambda: producer.send(topic, b"first"))
        network.stall("to client")
        with pytest.raises(metaq.SendFailed, match="may store it twice"):
            producer.send(topic, b"unanswered")
    network.resume()
    eventually(lambda: read(mended.namesrv, topic)[-1] == b"unanswered")


def test_throttled_network_is_slow_and_complete(mended, topic):
    """A reader behind a narrow line gets everything, no faster than the line."""
    with metaq.Producer(mended.namesrv, timeout=PATIENCE) as producer:
        for _ in range(4):
            producer.send(topic, os.urandom(25_000))
    mended.client_to_broker(0).throttle(200_000, "to client")
    start = time.monotonic()
    assert sum(map(len, read(mended.namesrv, topic))) == 100_000
    assert time.monotonic() - start >= 0.4


def test_killed_broker_has_its_messages_after_a_start(mended, topic):
    """kill -9 and start: same address, same messages, registered again; meanwhile nobody answers."""
    broker = mended.brokers[0]
    with metaq.Producer(mended.namesrv, timeout=PATIENCE, retries=0) as producer:
        producer.send(topic, b"before")
        broker.kill()
        assert not broker.alive
        assert not broker.death, "a killed process has not died by itself"
        with (
            metaq.Producer(mended.namesrv, timeout=SMALL_WAIT, retries=0) as hurried,
            # The network between them accepts, and ends the connection before or after the request is on its way.
            pytest.raises(metaq.SendFailed, match=r"nothing was stored|is unknown"),
        ):
            hurried.send(topic, b"meanwhile")
        before = broker.port
        broker.start()
        assert broker.port == before
        mended.wait_registered()
        eventually(lambda: producer.send(topic, b"after"))
    assert read(mended.namesrv, topic) == [b"before", b"after"]


def test_paused_broker_times_its_clients_out_and_goes_on(mended, topic):
    """A machine that hangs: connections stay, nothing is answered; resumed, it does what it was asked."""
    broker = mended.brokers[0]
    with metaq.Producer(mended.namesrv, timeout=SMALL_WAIT, retries=0) as producer:
        eventually(lambda: producer.send(topic, b"before"))
        broker.pause()
        try:
            with pytest.raises(metaq.SendFailed, match=r"the timeout of 0\.5 s is over"):
                producer.send(topic, b"paused")
        finally:
            broker.resume()
        eventually(lambda: producer.send(topic, b"after"), what="the broker goes on")
    assert read(mended.namesrv, topic)[-1] == b"after"


def test_name_server_restarts_and_learns_of_its_brokers_again(mended):
    """A name server keeps no routes: after its restart the brokers tell it everything."""
    server = mended.name_servers[0]
    first = server.pid
    server.restart()
    assert server.pid != first
    mended.wait_registered()


def test_servers_start_beside_each_other(tmp_path, monkeypatch):
    """No broker waits for another's start: all are launched before the first is waited for, and so are the name servers."""
    from metaq.testing import servers as module

    seen = []
    launch, wait = module.ClusterServer.launch, module.ClusterServer.wait_ready
    monkeypatch.setattr(module.ClusterServer, "launch", lambda self: (seen.append(f"+{self.name}"), launch(self))[1])
    monkeypatch.setattr(module.ClusterServer, "wait_ready", lambda self: (wait(self), seen.append(f"-{self.name}"))[0])
    with Cluster(brokers=2, name_servers=2, folder=tmp_path) as cluster:
        assert seen == [
            "+namesrv-0", "+namesrv-1", "-namesrv-0", "-namesrv-1", "+broker-0", "+broker-1", "-broker-0", "-broker-1",
        ]  # fmt: skip
        assert cluster.address(0) == cluster.brokers[0].listens
        with pytest.raises(metaq.ConfigError, match="networks=True"):
            cluster.client_to_broker(0)
        with metaq.Producer(cluster.namesrv) as producer:
            producer.send("kept", b"x")
        pids = [server.pid for server in (*cluster.brokers, *cluster.name_servers)]
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)
    assert not (tmp_path / "broker-0" / "data" / "abort").exists(), "it was stopped, not killed"
    assert "compiled extension" in (tmp_path / "broker-0" / "log.txt").read_text()
    with Cluster(brokers=2, name_servers=1, folder=tmp_path) as again:
        assert read(again.namesrv, "kept") == [b"x"]


def test_options_reach_the_servers_and_change_with_a_restart(metaq_cluster):
    """Options for all brokers, for one, and for the next start of one."""
    cluster = metaq_cluster(
        brokers=2, options={"autoCreateTopicEnable": "false"}, broker_options=[{"brokerClusterName": "other"}]
    )
    with metaq.admin.Admin(cluster.namesrv) as admin:
        clusters = {status.broker: status.cluster for status in admin.list_brokers()}
    assert clusters == {"broker-0": "other", "broker-1": "DefaultCluster"}
    with metaq.Producer(cluster.namesrv) as producer:
        with pytest.raises(metaq.MetaqError):
            producer.send("made-by-itself", b"x")
        for broker in cluster.brokers:
            broker.options["autoCreateTopicEnable"] = "true"
            broker.restart()
        eventually(lambda: producer.send("made-by-itself", b"x"))


def test_process_that_ends_by_itself_is_noticed_and_told():
    """By the next call, by `check`, and when the block is left; a wanted end is waited for."""
    with (
        pytest.raises(ServerDied, match=r"(?s)broker-0 ended by itself, exit code -9.*compiled extension"),
        Cluster() as cluster,
    ):
        cluster.check()
        os.kill(cluster.brokers[0].pid, signal.SIGKILL)
        eventually(lambda: cluster.brokers[0].death)
        for call in (cluster.check, cluster.brokers[0].pause, cluster.brokers[0].kill, cluster.brokers[0].start):
            with pytest.raises(ServerDied, match="broker-0 ended by itself"):
                call()
        os.kill(cluster.name_servers[0].pid, signal.SIGTERM)
        assert cluster.name_servers[0].wait_ended(PATIENCE) == 0
        cluster.name_servers[0].start()


def test_exception_ends_everything_and_carries_what_died():
    """A test that fails is told which server was gone, also a paused one is ended, and no folder is left."""
    with pytest.raises(ZeroDivisionError) as caught, Cluster(brokers=2) as cluster:
        pids = [server.pid for server in (*cluster.brokers, *cluster.name_servers)]
        cluster.brokers[1].pause()
        os.kill(cluster.brokers[0].pid, signal.SIGKILL)
        eventually(lambda: cluster.brokers[0].death)
        raise ZeroDivisionError
    assert "broker-0 ended by itself" in caught.value.__notes__[0]
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)
    assert not cluster.folder.exists()


def test_second_start_is_refused_and_harms_nothing(cluster):
    """The servers run on, on their ports."""
    before = [(server.pid, server.port) for server in (*cluster.brokers, *cluster.name_servers)]
    with pytest.raises(metaq.ConfigError, match="started already"):
        cluster.start()
    assert before == [(server.pid, server.port) for server in (*cluster.brokers, *cluster.name_servers)]
    cluster.wait_registered()


def test_network_that_was_closed_leaves_no_process(tmp_path):
    """A test closed one by itself: its server can be killed, and all others end with the block."""
    with Cluster(networks=True, folder=tmp_path) as cluster:
        pids = [server.pid for server in (*cluster.brokers, *cluster.name_servers)]
        cluster.client_to_namesrv(0).close()
        with pytest.raises(metaq.ConfigError, match="closed"):
            cluster.name_servers[0].kill()
        assert not cluster.name_servers[0].alive
        with pytest.raises(metaq.ConfigError, match="closed"):
            cluster.close()
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)


def note_held(monkeypatch):
    """Return a list that gets the ports of servers that are made from now on: they are not given back by being forgotten."""
    from metaq.testing import servers as module

    made = []
    monkeypatch.setattr(module, "HeldPort", lambda *distances: made.append(ports.HeldPort(*distances)) or made[-1])
    return made


def test_start_that_fails_says_why_and_leaves_nothing(tmp_path, monkeypatch):
    """The last lines of the one that did not start; the others are ended, and ports are given back."""
    held = note_held(monkeypatch)
    (tmp_path / "broker-1" / "data").mkdir(parents=True)
    (tmp_path / "broker-1" / "data" / "holiday.jpg").write_bytes(b"x")
    before = set(threading.enumerate())
    cluster = Cluster(brokers=2, folder=tmp_path, networks=True)
    with pytest.raises(ServerDied, match=r"(?s)broker-1 did not get ready, exit code 1.*holiday"):
        cluster.start()
    assert not any(server.alive for server in (*cluster.brokers, *cluster.name_servers))
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "flaky-network"]
    assert (tmp_path / "broker-0" / "log.txt").exists()
    assert held[-1].port == cluster.brokers[1].port
    monkeypatch.setattr(ports, "PORTS", [held[-1].port])  # it never listened: its port is free at once
    assert free_port() == held[-1].port


def test_taken_port_is_given_up_for_another(monkeypatch):
    """Somebody who asked nobody listened there between the choice of the port and the start of the server."""
    from metaq.testing import servers as module

    strangers = []

    def hold(*distances):
        held = ports.HeldPort(*distances)
        if not strangers:
            strangers.append(socket.create_server(("127.0.0.1", held.port)))
        return held

    monkeypatch.setattr(module, "HeldPort", hold)
    with Cluster() as cluster, strangers[0] as stranger:
        taken = stranger.getsockname()[1]
        assert taken not in {server.port for server in cluster.servers}
        monkeypatch.setattr(ports, "PORTS", [taken + 1])  # the neighbours are given back with it
        assert free_port() == taken + 1


@pytest.mark.skipif(not ports.HOLDS, reason="ports are held on Linux only")
def test_servers_keep_their_ports_until_the_cluster_is_closed(monkeypatch):
    """Nobody is given the port of one that is down, which refuses connections meanwhile, or one of its neighbours."""

    def is_free(port):
        monkeypatch.setattr(ports, "PORTS", [port])
        try:
            return free_port() == port
        except OSError:
            return False

    held = note_held(monkeypatch)
    with Cluster() as cluster:
        killed = [server.port for server in cluster.servers]
        for server in reversed(cluster.servers):
            server.kill()
            assert not any(map(is_free, (server.port - 2, server.port, server.port + 1)))
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", server.port))
        for server in cluster.servers:
            server.start()
        assert [server.port for server in cluster.servers] == killed
        for server in cluster.servers:
            server.kill()
    assert set(killed) <= {one.port for one in held}
    # A connection that the server ended first keeps its port for a minute (TIME_WAIT).
    assert eventually(lambda: all(map(is_free, killed)), what="the ports are given back")


def test_example_of_the_documentation_runs(capsys):
    """The cluster of docs/testing.md, as it stands."""
    text = (ROOT / "docs" / "testing.md").read_text()
    [block] = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "Cluster(" in block]
    exec(block, {})
    assert capsys.readouterr().out == "[b'before', b'after']\n"


@pytest.mark.parametrize(
    "wrong", [{"brokers": -1}, {"brokers": 17}, {"name_servers": 0}, {"name_servers": 9}, {"broker_options": [{}, {}]}]
)
def test_numbers_are_bounded(wrong):
    """No cluster of nobody, and none that takes the machine."""
    with pytest.raises(metaq.ConfigError):
        Cluster(**wrong)


def test_servers_go_when_their_parent_is_killed():
    """A test run that is killed leaves no process behind."""
    program = (
        "import os, signal\n"
        "from metaq.testing import Cluster\n"
        "cluster = Cluster(brokers=2, networks=True).start()\n"
        "print(cluster.folder, *(server.pid for server in (*cluster.brokers, *cluster.name_servers)), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False,
    )  # fmt: skip
    folder, *pids = done.stdout.split()

    def gone(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        except FileNotFoundError:
            return True

    try:
        assert len(pids) == 3
        eventually(lambda: all(map(gone, pids)), what="all have ended")
    finally:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
