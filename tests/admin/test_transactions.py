"""What an operator is told of a staged transaction, made of what single brokers say."""

from __future__ import annotations

import pytest

from metaq.admin import Admin, StagedTransaction, TransactionNotFound
from metaq.admin.transactions import UNSUPPORTED
from metaq.errors import BrokerError, ConfigError
from metaq.model.transactions.staging import (
    DecisionOutcome,
    PartLifetime,
    PartState,
    Phase,
    TransactionDecision,
    TransactionState,
)
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import reply
from tests.scripted import BROKER, ScriptedCluster

T = "t@a"


def told(**states):
    return StagedTransaction(T, states, 10_000)


def state(phase, *parts, decision=None):
    return TransactionState(T, phase, decision, tuple(parts))


def part(name, staged_ms=4_000, rows=2, size=300):
    return PartState(name, "orders", 0, 1, rows, size, True, PartLifetime.AGE, staged_ms)


@pytest.mark.parametrize(
    ("phases", "whole"),
    [
        ({}, Phase.UNKNOWN),
        ({"a": Phase.OPEN, "b": Phase.OPEN}, Phase.OPEN),
        ({"b": Phase.OPEN}, Phase.OPEN),
        ({"a": Phase.PREPARED, "b": Phase.OPEN}, Phase.PREPARED),
        ({"a": Phase.COMMITTED, "b": Phase.OPEN}, Phase.COMMITTING),
        ({"a": Phase.COMMITTED, "b": Phase.COMMITTING}, Phase.COMMITTING),
        ({"a": Phase.COMMITTED, "b": Phase.COMMITTED}, Phase.COMMITTED),
        ({"b": Phase.COMMITTED, "c": Phase.OPEN}, Phase.COMMITTING),
        ({"a": Phase.ROLLED_BACK, "b": Phase.OPEN}, Phase.ROLLED_BACK),
        ({"b": Phase.ROLLED_BACK, "c": Phase.OPEN}, Phase.ROLLED_BACK),
    ],
)
def test_phase_of_a_transaction_is_its_coordinators_unless_others_are_behind(phases, whole):
    """`a` decides; a commit is under way until everybody has delivered."""
    assert told(**{name: state(phase) for name, phase in phases.items()}).phase is whole


def test_decision_is_the_coordinators_if_it_tells_one():
    """Else that of a participant that has learned it."""
    own, learned = TransactionDecision(T, DecisionOutcome.COMMIT), TransactionDecision(T, DecisionOutcome.ROLLBACK)
    committed, rolled_back = state(Phase.COMMITTED, decision=own), state(Phase.ROLLED_BACK, decision=learned)
    assert told(b=rolled_back, a=committed).decision is own
    assert told(b=rolled_back, a=state(Phase.OPEN)).decision is learned
    assert told(a=state(Phase.OPEN)).decision is None


def test_age_and_size_are_those_of_what_brokers_hold():
    """The oldest part counts; without any, the decision; without that, nobody can tell."""
    shown = told(b=state(Phase.OPEN, part("q", 7_000), part("p")), a=state(Phase.OPEN, part("r", rows=1, size=5)))
    assert (shown.age_seconds, shown.rows, shown.bytes) == (6.0, 5, 605)
    assert [(broker, one.part) for broker, one in shown.parts] == [("a", "r"), ("b", "p"), ("b", "q")]
    decided = TransactionDecision(T, DecisionOutcome.COMMIT, decided_ms=9_500)
    assert told(a=state(Phase.COMMITTED, decision=decided)).age_seconds == 0.5
    assert told(a=state(Phase.OPEN, part("p", staged_ms=99_000))).age_seconds == 0.0
    assert told(a=state(Phase.OPEN)).age_seconds is None


def test_broker_that_knows_no_staged_transactions_is_told(tmp_path):
    """A RocketMQ answers code 3: it has none, and nobody is to believe that it was asked."""
    with ScriptedCluster(tmp_path) as cluster, Admin(cluster.namesrv) as admin:
        cluster.script = lambda asked: (
            reply(asked, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=" request type not supported")
            if asked.code >= RequestCode.STAGE
            else None
        )
        found = admin.list_transactions()
        assert (found.transactions, found.complete, found.unreached) == ([], True, {BROKER: UNSUPPORTED})
        with pytest.raises(TransactionNotFound, match=f"{BROKER} could not be asked: {UNSUPPORTED}"):
            admin.show_transaction(f"t@{BROKER}")
        with pytest.raises(BrokerError, match="not supported"):
            admin.end_transaction(f"t@{BROKER}", commit=False)


def test_what_is_no_id_of_a_transaction_is_a_config_error(tmp_path):
    """As of a producer's `outcome`: nobody is asked."""
    with ScriptedCluster(tmp_path) as cluster, Admin(cluster.namesrv) as admin:
        for call in (
            lambda: admin.show_transaction("nonsense"),
            lambda: admin.end_transaction("nonsense", commit=True),
            lambda: admin.forget_transaction("nonsense"),
            lambda: admin.forget_transaction("a b", row=True),
            lambda: admin.transaction_row(""),
        ):
            with pytest.raises(ConfigError):
                call()
