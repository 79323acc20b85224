"""What we ship for users' tests."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

import metaq
from metaq.testing import EmbeddedBroker, FlakyNetwork
from metaq.testing.embedded import BrokerDied
from metaq.testing.ports import HOLDS, PORTS
from tests.support import PATIENCE, environment, eventually


def test_embedded_broker_serves_and_leaves_nothing_behind():
    """A real broker in a block; its folder goes with it."""
    with EmbeddedBroker() as broker, metaq.Producer(broker.namesrv) as producer:
        assert producer.send("orders", b"x").status is metaq.SendStatus.SEND_OK
        data = broker.data
        assert data.exists()
    assert not data.exists()
    assert not broker.log.exists()


def test_killed_broker_comes_back_with_its_messages(fresh_metaq_broker):
    """kill -9 and start again: same ports, same data."""
    broker = fresh_metaq_broker
    with metaq.Producer(broker.namesrv, timeout=PATIENCE, retries=50) as producer:
        producer.send("orders", b"before")
        before = broker.namesrv, broker.broker
        broker.kill()
        assert not broker.alive
        for address in before:  # nobody can take its ports while it is down, and no outgoing connection gets one
            port = int(address.rpartition(":")[2])
            assert port in PORTS
            if HOLDS:
                with socket.socket() as other, pytest.raises(OSError, match="in use"):
                    other.bind(("127.0.0.1", port))
        broker.start()
        assert (broker.namesrv, broker.broker) == before
        producer.send("orders", b"after")
    with metaq.admin.Admin(broker.namesrv) as admin:
        assert admin.describe_topic("orders").messages == 2


def test_broker_that_ended_by_itself_says_so_and_starts_again(fresh_metaq_broker):
    """By `start` and `stop`; `kill` is the word for "be that as it may"."""
    broker = fresh_metaq_broker
    with metaq.Producer(broker.namesrv, timeout=PATIENCE, retries=50) as producer:
        producer.send("orders", b"1")
        os.kill(broker.pid, signal.SIGKILL)
        eventually(lambda: broker.death)
        for call in (broker.start, broker.stop):
            with pytest.raises(BrokerDied, match=r"ended by itself, exit code -9"):
                call()
        broker.kill()
        broker.start()
        assert producer.send("orders", b"2").status is metaq.SendStatus.SEND_OK


def test_frozen_broker_answers_nothing_until_it_thaws(fresh_metaq_broker):
    """A machine that hangs: the connection stays, the answer does not come."""
    broker = fresh_metaq_broker
    with metaq.Producer(broker.namesrv, timeout=1.0, retries=0) as producer:
        producer.send("orders", b"x")
        broker.freeze()
        if sys.platform == "linux":
            states = [
                path.read_text().rpartition(") ")[2][0]
                for path in pathlib.Path(f"/proc/{broker.pid}/task").glob("*/stat")
            ]
            assert set(states) == {"T"}, "it stands when the call returns"
        with pytest.raises(metaq.MetaqError):
            producer.send("orders", b"y")
        broker.thaw()
        eventually(lambda: producer.send("orders", b"z"), what="sends work again")


def test_failed_start_tells_why(tmp_path):
    """The child's last words are in the error."""
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(BrokerDied, match=r"exit code 1(?s:.*)holiday|exit code 1"):
        EmbeddedBroker(tmp_path).start()


def test_what_others_print_is_not_taken_for_the_broker(tmp_path):
    """A sitecustomize that greets: the start does not wait for the end of a broker that runs well."""
    (tmp_path / "sitecustomize.py").write_text("print('good morning', flush=True)\n")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    with EmbeddedBroker(environment={"PYTHONPATH": paths}, timeout=PATIENCE) as broker:
        assert broker.namesrv


def test_broker_goes_when_its_parent_is_killed():
    """A test run that is killed leaves no broker behind."""
    program = (
        "import os, signal\n"
        "from metaq.testing import EmbeddedBroker\n"
        "broker = EmbeddedBroker().start()\n"
        "print(broker.pid, broker.data, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )
    pid, data = done.stdout.split()

    def gone():
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        except FileNotFoundError:
            return True

    try:
        eventually(gone, what="the broker ended")
    finally:
        import shutil

        shutil.rmtree(data, ignore_errors=True)
        pathlib.Path(f"{data}.log").unlink(missing_ok=True)


def test_options_and_environment_reach_the_broker():
    """Any option, and the pure-Python fallback by its variable."""
    options = {"autoCreateTopicEnable": "false"}
    with (
        EmbeddedBroker(options=options, environment={"METAQ_HOT": "0"}) as broker,
        metaq.Producer(broker.namesrv) as producer,
    ):
        with pytest.raises(metaq.MetaqError):
            producer.send("orders", b"x")
        assert "plain" in broker.log_tail()


def test_network_can_be_cut_and_mended(metaq_broker):
    """A producer that meets a cut network fails, and works again once it is mended."""
    with FlakyNetwork(metaq_broker.namesrv) as network:
        with metaq.admin.Admin(network.address) as admin:
            assert admin.list_brokers()
            network.cut()
            with pytest.raises(metaq.ClientError):
                admin.list_topics()
            network.mend()
            assert eventually(admin.list_brokers, what="the mended network carries requests")
        assert network.connections >= 2


def test_network_can_stall_and_tear_a_frame(metaq_broker, monkeypatch):
    """Stalled, nothing comes; cut inside a frame, the connection breaks there."""
    with FlakyNetwork(metaq_broker.namesrv) as network, metaq.admin.Admin(network.address) as admin:
        admin.list_brokers()
        network.stall()
        with monkeypatch.context() as patch, pytest.raises(metaq.RequestTimeout):
            patch.setattr("metaq.client.conversation.call.Call.seconds", 0.5)
            admin.list_topics()
        network.resume()
        network.cut_after(7)
        with pytest.raises(metaq.ConnectionFailed):
            admin.list_topics()
