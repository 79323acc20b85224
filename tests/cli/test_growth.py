"""`metaq broker drain`, `metaq cluster add-broker|remove-broker` and `metaq topic move`, as an operator types them."""

from __future__ import annotations

import json
import signal

import pytest

import metaq
from metaq.admin import Admin
from metaq.admin.growth.moving import MoveProgress
from metaq.cli.cluster import growth
from metaq.clock import FakeClock
from metaq.model import Perm
from metaq.testing import Cluster
from tests.support import PATIENCE, eventually, metaq_command, process, run_metaq

pytestmark = pytest.mark.slow

A, B = "broker-0", "broker-1"


@pytest.fixture(scope="module")
def cluster():
    with Cluster(brokers=2) as running:
        with Admin(running.namesrv) as admin:
            admin.create_topic("orders", queues=2)
        yield running


@pytest.fixture
def cli(cluster):
    """Run a command, and return what it prints, or with `code` above 0 its error."""

    def run(*args, code=0):
        done = run_metaq(*args, "-n", cluster.namesrv)
        assert done.returncode == code, (args, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    yield run
    with Admin(cluster.namesrv) as admin:
        for name in (A, B):
            admin.undo_drain(name)


def writable(cluster, topic="orders"):
    with Admin(cluster.namesrv) as admin:
        return {data.broker for data in admin.describe_topic(topic).route.queues if data.perm & Perm.WRITE}


def test_a_broker_is_drained_and_undone(cli, cluster):
    """In words, and as a document; `metaq cluster` shows it."""
    told = cli("broker", "drain", A, "--quiet-seconds", "0.1", "--timeout", str(PATIENCE))
    assert told.startswith("broker broker-0 is drained: producers do not send to it")
    assert "--undo" in told
    assert writable(cluster) == {B}
    shown = {one["broker"]: one["draining"] for one in json.loads(cli("cluster", "--json"))}
    assert shown == {A: True, B: False}
    assert "broker-0: drained" in cli("cluster")
    assert cli("broker", "drain", A, "--undo") == "producers send to broker broker-0 again\n"
    assert writable(cluster) == {A, B}
    done = json.loads(cli("broker", "drain", A, "--quiet-seconds", "0", "--json"))
    assert (done["broker"], done["drained"], done["stopped"], done["work"]["lags"]) == (A, True, False, {})
    assert json.loads(cli("broker", "drain", A, "--undo", "--json")) == {"broker": A, "drained": False}


def test_an_interrupted_drain_says_in_which_state_the_broker_is(cli, cluster):
    """Ctrl-C: it stays drained, and the text says how to go on and how to undo it; so does a time-out, with what is open."""
    with process(*metaq_command("broker", "drain", A, "--quiet-seconds", "600", "-n", cluster.namesrv)) as child:
        eventually(lambda: writable(cluster) == {B})
        eventually(lambda: "no send for" in child.stderr.readline())
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE) == 130
        text = child.stderr.read()
    assert "broker broker-0 stays drained" in text
    assert "metaq broker drain broker-0 --undo" in text
    assert "Traceback" not in text
    assert writable(cluster) == {B}
    error = cli("broker", "drain", A, "--quiet-seconds", "600", "--timeout", "0.1", code=1)
    assert "is not empty after 0.1 s: no send for " in error
    assert "It stays drained: drain it again to go on, or undo it" in error


def test_progress_is_a_document_a_line(cluster):
    done = run_metaq("broker", "drain", A, "--quiet-seconds", "0", "--json", "-n", cluster.namesrv)
    looks = [json.loads(line) for line in done.stderr.splitlines()]
    assert {look["broker"] for look in looks} == {A}
    assert looks[-1]["phase"] == "done"
    assert run_metaq("broker", "drain", A, "--undo", "-n", cluster.namesrv).returncode == 0


def test_what_cannot_be_done_is_said(cli, cluster):
    """Unknown brokers, the last one, itself, numbers out of bounds."""
    assert "no broker nobody is registered" in cli("broker", "drain", "nobody", code=3)
    assert "no broker 127.0.0.1:1 is registered" in cli("broker", "drain", "127.0.0.1:1", code=3)
    assert "quiet-seconds" in cli("broker", "drain", A, "--quiet-seconds", "-1", code=2)
    assert "no broker nobody" in cli("cluster", "add-broker", "nobody", code=3)
    assert "like itself" in cli("cluster", "add-broker", A, "--like", A, code=2)
    assert "no broker nobody" in cli("cluster", "remove-broker", "nobody", "--yes", code=3)
    assert "not done" in run_metaq("cluster", "remove-broker", A, "-n", cluster.namesrv, stdin="n\n").stderr
    assert "itself" in cli("topic", "move", "orders", "--from", A, "--to", A, code=2)
    assert "no topic nothing" in cli("topic", "move", "nothing", "--from", A, "--to", B, code=3)
    assert "no such" in cli("topic", "move", "no such", "--from", A, "--to", B, code=2)
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("alone", queues=1, broker=A)
    assert "sends would fail" in cli("broker", "drain", A, code=1)
    assert writable(cluster) == {A, B}
    cli("topic", "delete", "alone", "--yes")


def test_nothing_is_asked_of_a_broker_that_does_not_exist_or_cannot_be_removed(cli):
    told = cli("cluster", "remove-broker", "nobody", code=3)
    assert "no broker nobody is registered" in told
    assert "[y/N]" not in told
    cli("topic", "create", "growth-alone", "--broker", A)
    refused = cli("cluster", "remove-broker", A, code=1)
    assert "topic growth-alone" in refused
    assert "[y/N]" not in refused
    cli("topic", "delete", "growth-alone", "--yes")
    asked = cli("cluster", "remove-broker", A, code=1)
    assert "Drain broker broker-0 and stop it when it is empty?" in asked


def test_a_topic_is_moved_and_a_broker_removed_and_added(cli, cluster):
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("letters", queues=3, broker=A)
    move = ("topic", "move", "letters", "--from", A, "--to", B, "--quiet-seconds", "0.1")
    plan = cli(*move, "--dry-run").splitlines()
    assert plan[0] == "topic letters is made at broker-1 with 3 queues"
    assert plan[-1] == "topic letters is deleted at broker-0"
    assert writable(cluster, "letters") == {A}
    with metaq.Producer(cluster.namesrv) as producer:
        producer.send("letters", b"1")
    with metaq.Consumer(cluster.namesrv, group="reader", topics="letters", start="earliest") as consumer:
        consumer.receive(PATIENCE).ack()
    assert cli(*move) == "topic letters is at broker-1, and no longer at broker-0\n"
    assert "there is nothing to do" in cli(*move)
    assert json.loads(cli(*move, "--json"))["steps"] == []
    told = cli("cluster", "remove-broker", A, "--quiet-seconds", "0.1", "--yes")
    assert told.startswith(
        "broker broker-0 is stopped, and registered at no name server any more\nnothing is left behind"
    )
    assert cluster.brokers[0].wait_ended(PATIENCE) == 0
    cluster.brokers[0].start()
    assert f"is drained, and nobody would send to it: `metaq broker drain {A} --undo` first" in cli(
        "cluster", "add-broker", A, code=1
    )
    cli("broker", "drain", A, "--undo")
    plan = json.loads(cli("cluster", "add-broker", A, "--dry-run", "--json"))
    assert (plan["topics"], plan["dry_run"]) == (["letters"], True)
    told = cli("cluster", "add-broker", A, "--like", B)
    assert "topic letters" in told
    assert "not copied: accounts" in told
    assert writable(cluster, "letters") == {A, B}


def test_a_long_wait_is_told_when_its_phase_changes_and_each_ten_seconds(capsys):
    """Its text counts seconds."""
    clock = FakeClock()
    told = growth._told(as_json=False, clock=clock)
    for second in range(25):
        phase = "moving" if second < 22 else "reading"
        told(MoveProgress("orders", A, B, phase, passed=second, quiet=second, quiet_wanted=40))
        clock.advance(1)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" of ")[0].rsplit(" ", 2)[1] for line in lines] == ["0", "10", "20", "22"]
    assert [line.split(":")[0] for line in lines] == ["moving"] * 3 + ["reading"]
