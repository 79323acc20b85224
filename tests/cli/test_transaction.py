"""`metaq transaction` against two running brokers, as an operator types it."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

import pytest

import metaq
from metaq.admin import Admin
from metaq.cli import commands
from metaq.client.conversation.staged.staging import Decide, GetTransaction
from metaq.model.transactions.staging import DecisionOutcome, PartLifetime
from metaq.testing import Cluster
from metaq.wire.staging import DecideBody
from tests import staged
from tests.staged import PlannedPart
from tests.support import eventually, run_metaq


@pytest.fixture(scope="module")
def cluster():
    with Cluster(brokers=2) as running:
        with Admin(running.namesrv) as admin:
            admin.create_topic("orders", queues=2)
        yield running


@pytest.fixture(scope="module")
def cli(cluster):
    """cli("list") runs `metaq transaction list`, in this process: its imports alone cost more than what it does."""

    def run(*args):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = commands.run(["transaction", *args, "-n", cluster.namesrv])
        return CompletedProcess(args, code, out.getvalue(), err.getvalue())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands.signal, "signal", lambda *_: None)
        yield run


def prepared(cluster, name, **more):
    """A transaction over both brokers, whose end nobody has decided; its id and parts."""
    transaction = f"{name}@{cluster.brokers[0].name}"
    parts = [
        PlannedPart(broker.name, f"p{n}", "orders", n, ((b"%s-%d" % (name.encode(), n),),))
        for n, broker in enumerate(cluster.brokers)
    ]
    for broker, part in zip(cluster.brokers, parts, strict=True):
        staged.ask(broker.listens, staged.stage(transaction, [part], lifetime=PartLifetime.PREPARED))
    body = DecideBody(DecisionOutcome.PREPARED, tuple(part.manifest for part in parts), **more)
    staged.ask(cluster.brokers[0].listens, Decide(transaction, body))
    return transaction, parts


def seen(cluster, name):
    with metaq.Reader(cluster.namesrv, "orders", start="earliest", stop_at_end=True) as reader:
        return sorted(message.body for message in reader if message.body.startswith(name.encode() + b"-"))


def test_transaction_is_listed_shown_and_committed(cluster, cli):
    """Its life, in text and in JSON: phase, age and size while it waits, and its messages afterwards."""
    transaction, parts = prepared(cluster, "paid")
    listed = json.loads(cli("list", "--json").stdout)
    [one] = [one for one in listed["transactions"] if one["transaction"] == transaction]
    assert (one["phase"], one["messages"], one["decision"]["outcome"]) == ("prepared", 2, "prepared")
    assert one["bytes"] == sum(part.seal.bytes for part in parts)
    assert one["age_seconds"] >= 0
    assert listed["not_asked"] == {}
    assert transaction in run_metaq("transaction", "list", "-n", cluster.namesrv).stdout
    shown = json.loads(cli("show", transaction, "--json").stdout)
    assert [(part["broker"], part["part"], part["queue_id"], part["sealed"]) for part in shown["parts"]] == [
        (broker.name, f"p{n}", n, True) for n, broker in enumerate(cluster.brokers)
    ]
    assert "prepared, decided 20" in cli("show", transaction).stdout
    committed = cli("commit", transaction, "--yes")
    assert (committed.returncode, committed.stdout) == (0, f"transaction {transaction} is committed\n"), (
        committed.stderr
    )
    assert seen(cluster, "paid") == [b"paid-0", b"paid-1"]
    eventually(
        lambda: json.loads(cli("show", transaction, "--json").stdout)["phase"] == "committed",
        what="it is over everywhere",
    )
    again = cli("commit", transaction, "--yes", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["first"] is False


def test_rollback_drops_the_messages_and_stands(cluster, cli):
    """A commit afterwards says what was decided, and fails."""
    transaction, _ = prepared(cluster, "dropped")
    assert cli("rollback", transaction, "--yes").stdout == f"transaction {transaction} is rolled back\n"
    late = cli("commit", transaction, "--yes")
    assert late.returncode == 1
    assert f"transaction {transaction} was rolled back already, at 20" in late.stdout
    assert seen(cluster, "dropped") == []


def test_transaction_that_is_not_prepared_cannot_be_committed_by_hand(cluster, cli):
    """Only its writer knows what belongs to it; the broker's text says so."""
    transaction = f"open@{cluster.brokers[0].name}"
    part = PlannedPart(cluster.brokers[0].name, "p", "orders", 0, ((b"open-0",),))
    staged.ask(cluster.brokers[0].listens, staged.stage(transaction, [part]))
    refused = cli("commit", transaction, "--yes")
    assert refused.returncode == 1
    assert "commit transaction" in refused.stderr or "decide transaction" in refused.stderr
    assert seen(cluster, "open") == []
    assert cli("rollback", transaction, "--yes").returncode == 0


def test_transaction_and_row_are_forgotten(cluster, cli):
    """Where they are known; a second time there is nothing to forget."""
    transaction, parts = prepared(cluster, "gone")
    forgotten = json.loads(cli("forget", transaction, "--yes", "--json").stdout)
    assert forgotten == {"transaction": transaction, "brokers": sorted(broker.name for broker in cluster.brokers)}
    assert cli("forget", transaction, "--yes").returncode == 3
    counted, parts = prepared(cluster, "counted")
    body = DecideBody(DecisionOutcome.COMMIT, tuple(part.manifest for part in parts), "query-1", 7)
    staged.ask(cluster.brokers[0].listens, Decide(counted, body))
    for command in (("show", "query-1", "--row", "--json"), ("list", "--rows", "--json")):
        [row] = json.loads(cli(*command).stdout)["rows"]
        assert (row["row"], row["broker"], row["sequence"], row["transaction"]) == (
            "query-1", cluster.brokers[0].name, 7, counted,
        )  # fmt: skip
    assert counted in cli("show", "query-1", "--row").stdout
    assert cli("forget", "query-1", "--row", "--yes").returncode == 0
    assert cli("show", "query-1", "--row").returncode == 3


def test_what_waits_for_a_broker_that_is_gone_is_forgotten_though_others_are_done(cluster, cli):
    """These have nothing left to forget, and do not keep the coordinator from it."""
    participant, coordinator = sorted(cluster.brokers, key=lambda broker: broker.name)
    transaction = f"stuck@{coordinator.name}"
    here = PlannedPart(participant.name, "p", "orders", 0, ((b"stuck-0",),))
    gone = PlannedPart("broker-gone", "q", "orders", 0, ((b"stuck-1",),))
    staged.ask(participant.listens, staged.stage(transaction, [here], lifetime=PartLifetime.PREPARED))
    body = DecideBody(DecisionOutcome.COMMIT, (here.manifest, gone.manifest))
    staged.ask(coordinator.listens, Decide(transaction, body))
    asks = GetTransaction(transaction)
    eventually(lambda: staged.ask(coordinator.listens, asks).unconfirmed == ("broker-gone",))
    eventually(lambda: not staged.ask(participant.listens, asks).parts)
    told = cli("forget", transaction, "--yes", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["brokers"] == [coordinator.name]
    again = cli("forget", transaction, "--yes")
    assert (again.returncode, "over" in again.stderr) == (3, True), again.stderr


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (("show", "nobody@broker-x"), 3, "no broker knows transaction nobody@broker-x"),
        (("show", "no-id"), 2, "UNIQUE@BROKER"),
        (("show", "no row", "--row"), 2, "the row's key"),
        (("commit", "t@nowhere", "--yes"), 3, "the broker nowhere, which decides t@nowhere"),
        (("forget", "nobody@broker-x", "--yes"), 3, "no broker knows"),
        (("commit", "t@nowhere"), 3, "the broker nowhere, which decides t@nowhere"),
        (("rollback", "t@nowhere"), 3, "the broker nowhere, which decides t@nowhere"),
        (("commit", "no-id"), 2, "UNIQUE@BROKER"),
        (("forget", "nobody@broker-x"), 3, "no broker knows"),
        (("forget", "nobody", "--row"), 3, "no broker knows row nobody"),
        (("forget", "nobody@broker-x", "--broker", "nowhere"), 3, "nowhere"),
        (("list", "--broker", "nowhere"), 3, "nowhere"),
        (("list", "--limit", "0"), 2, "limit"),
    ],
)
def test_wrong_ids_are_told(cli, command, code, says):
    """With an exit code for scripts."""
    told = cli(*command)
    assert (told.returncode, says in told.stderr) == (code, True), told.stderr
    assert "[y/N]" not in told.stderr


def test_a_commit_of_a_transaction_that_its_coordinator_does_not_know_is_not_found(cluster, cli, monkeypatch):
    """Nothing is asked, or committed; a rollback keeps its writer from committing it later."""
    transaction = f"unknown@{cluster.brokers[0].name}"
    for more in ((), ("--yes",)):
        told = cli("commit", transaction, *more)
        assert (told.returncode, "[y/N]" in told.stderr) == (3, False), told.stderr
        assert f"does not know transaction {transaction}" in told.stderr
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    asked = cli("rollback", transaction)
    assert (asked.returncode, "[y/N]" in asked.stderr) == (1, True)


def test_long_list_is_cut_and_says_so(cluster, cli):
    """--limit cuts over all brokers, in the order of ids."""
    transactions = [prepared(cluster, f"many-{n}")[0] for n in range(5)]
    listed = json.loads(cli("list", "--limit", "3", "--json").stdout)
    every = json.loads(cli("list", "--json").stdout)
    assert every["complete"]
    assert not listed["complete"]
    ids = [one["transaction"] for one in every["transactions"]]
    assert [one["transaction"] for one in listed["transactions"]] == ids[:3]
    assert set(transactions) <= set(ids)
    assert ids == sorted(ids)
    assert "--limit" in cli("list", "--limit", "3").stdout


def test_broker_that_cannot_be_asked_is_told(cluster, cli):
    """What the others know is shown all the same, and what ends meanwhile ends there later."""
    transaction, _ = prepared(cluster, "late")
    cluster.brokers[1].kill()
    shown = cli("show", transaction)
    assert shown.returncode == 0
    assert f"broker {cluster.brokers[1].name} could not be asked" in shown.stderr
    committed = cli("commit", transaction, "--yes")
    assert committed.returncode == 1
    assert "continues by itself" in committed.stdout
    cluster.brokers[1].start()
    eventually(lambda: seen(cluster, "late") == [b"late-0", b"late-1"], what="the other broker has delivered its part")
