"""A ZooKeeper of a cluster's own, from jars that the machine has; and what is said where it has none."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys

import pytest

import metaq
from metaq.errors import ConfigError
from metaq.testing import Cluster, free_port, ports
from metaq.testing.zookeeper import HOME, java, zookeeper_jars
from tests.support import eventually

pytestmark = pytest.mark.slow


def jars_or_skip():
    try:
        java()
        return zookeeper_jars()
    except ConfigError as error:
        pytest.skip(str(error))


def test_jars_are_found_where_they_are_named(tmp_path, monkeypatch):
    """A folder of jars, or a distribution, which has them in `lib`; the argument before the variable."""
    flat, distribution = tmp_path / "flat", tmp_path / "apache-zookeeper"
    for folder in (flat, distribution / "lib"):
        folder.mkdir(parents=True)
        (folder / "zookeeper-3.8.4.jar").touch()
    assert zookeeper_jars(flat) == [flat]
    monkeypatch.setenv(HOME, str(distribution))
    assert zookeeper_jars() == [distribution / "lib"]
    assert zookeeper_jars(flat) == [flat]


def test_a_machine_without_jars_or_java_is_told_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "zookeeper-jute-3.8.4.jar").touch()
    with pytest.raises(ConfigError, match=rf"no zookeeper-VERSION\.jar\. Name a folder .* in {HOME}"):
        zookeeper_jars(tmp_path)
    with pytest.raises(ConfigError, match="no ZooKeeper to start"):
        Cluster(zookeeper=True, zookeeper_home=tmp_path / "nowhere")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="ZooKeeper needs Java: set JAVA_HOME"):
        java()
    with pytest.raises(ConfigError, match="PySpark, whose jars would do, is not installed"):
        zookeeper_jars()


def test_an_ensemble_is_of_one_or_three():
    jars_or_skip()
    with pytest.raises(ConfigError, match="2 ZooKeeper servers: need 1 or 3"):
        Cluster(zookeeper=2)


def test_an_address_is_taken_as_it_is():
    """Of one that runs somewhere; nothing is started for it."""
    cluster = Cluster(zookeeper="zk1:2181,zk2:2181/chroot", options={"failover": "zookeeper"}, replicas=2)
    assert cluster.zookeeper == "zk1:2181,zk2:2181/chroot"
    assert cluster.zookeepers == ()
    assert "failoverZookeeper=zk1:2181,zk2:2181/chroot" in cluster._broker_arguments(0)
    assert [broker.options["brokerId"] for broker in cluster.brokers] == [1, 2]
    assert all("brokerRole" not in broker.options for broker in cluster.brokers)


def test_brokers_and_a_zookeeper_with_networks_between_them(monkeypatch):
    """It outlives a kill, is paused, and ends with its cluster; its ports are its own all that time."""
    jars_or_skip()
    with Cluster(zookeeper=True, networks=True) as cluster:
        (server,) = cluster.zookeepers
        assert "Mode: standalone" in server.ask()
        assert cluster.zookeeper == server.listens
        assert cluster.broker_to_zookeeper(0, 0).address != server.listens
        assert cluster._zookeeper_for(0) == cluster.broker_to_zookeeper(0, 0).address
        server.kill()
        with pytest.raises(OSError, match="refused"):
            server.ask()
        held = server.port, *server.quorum_ports
        if ports.HOLDS:
            for port in held:
                monkeypatch.setattr(ports, "PORTS", [port])
                with pytest.raises(OSError, match="in use"):
                    free_port()
        monkeypatch.undo()
        server.start()
        server.wait_serving()
        pid = server.pid
    with pytest.raises(metaq.testing.ServerDied):
        server.pause()
    eventually(lambda: not pid_runs(pid))
    for port in held[1:]:  # nobody has connected to these
        monkeypatch.setattr(ports, "PORTS", [port])
        assert free_port() == port


def test_a_zookeeper_ends_with_the_process_that_started_it(tmp_path):
    """Though it is killed."""
    jars_or_skip()
    program = (
        "import os, signal, sys; from metaq.testing import Cluster\n"
        f"c = Cluster(brokers=0, zookeeper=True, folder={str(tmp_path / 'c')!r}).start()\n"
        "print(c.zookeepers[0].pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    pid = int(done.stdout)
    eventually(lambda: not pid_runs(pid), what="ZooKeeper ends")


def pid_runs(pid):
    """Whether it runs; a zombie that nobody waits for does not."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
