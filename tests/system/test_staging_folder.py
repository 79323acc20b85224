"""Staged transactions are derived from the log and nothing else: a copy of its files is enough."""

from __future__ import annotations

import shutil

import metaq
from metaq.client.conversation.staged.staging import Apply, Decide, GetRow, GetTransaction
from metaq.model.transactions.staging import DecisionOutcome, PartLifetime, Phase, TransactionDecision, transaction_id
from metaq.store.offline.reader import StoreReader
from metaq.store.offline.staged import StagedSurvey
from metaq.testing import EmbeddedBroker
from metaq.wire.staging import DecideBody
from tests.staged import PlannedPart, ask, stage
from tests.support import eventually

BROKER, TOPIC, ROW = "broker-a", "orders", "query-1.sink"
OPTIONS = {"brokerName": BROKER}
NAMES = ("open", "prepared", "committed", "rolled-back", "row", "foreign", "learned")


def part_of(name):
    return PlannedPart(BROKER, name, TOPIC, 0, ((f"{name} 0".encode(), f"{name} 1".encode()), (f"{name} 2".encode(),)))


def id_of(name):
    return transaction_id(name, "broker-b" if name in {"foreign", "learned"} else BROKER)


def decide(address, name, outcome, **more):
    parts = (part_of(name).manifest,) if outcome is not DecisionOutcome.ROLLBACK else None
    return ask(address, Decide(id_of(name), DecideBody(outcome, parts, **more)))


def delivered(broker):
    with metaq.Reader(broker.namesrv, TOPIC, stop_at_end=True) as reader:
        return [message.body for message in reader if message.queue_id == 0]


def settled(broker, name):
    """It is applied, or dropped."""
    eventually(lambda: not ask(broker.broker, Apply(id_of(name))).remaining, what=f"{name} is applied")


def states(broker):
    return {name: ask(broker.broker, GetTransaction(id_of(name))) for name in NAMES}


def what_stays(state):
    """What does not depend on when it is asked: parts that are applied are forgotten soon."""
    parts = () if state.phase is Phase.COMMITTED else state.parts
    return state.phase, state.decision, state.remaining, state.missing, parts


def test_a_broker_on_a_copy_of_the_log_files_knows_what_the_first_one_knew(tmp_path):
    """kill -9, and only `commitlog` is copied: open, prepared and decided transactions, rows, and what was delivered."""
    with EmbeddedBroker(tmp_path / "first", options=OPTIONS) as first:
        with metaq.Producer(first.namesrv) as producer:
            producer.send(TOPIC, b"plain")
        for name in NAMES:
            lifetime = PartLifetime.PREPARED if name == "prepared" else PartLifetime.AGE
            ask(first.broker, stage(id_of(name), [part_of(name)], lifetime=lifetime))
        decide(first.broker, "prepared", DecisionOutcome.PREPARED)
        decide(first.broker, "rolled-back", DecisionOutcome.ROLLBACK)
        decide(first.broker, "committed", DecisionOutcome.COMMIT)
        settled(first, "committed")
        decide(first.broker, "row", DecisionOutcome.COMMIT, row=ROW, sequence=7)
        settled(first, "row")
        learned = TransactionDecision(
            id_of("learned"), DecisionOutcome.COMMIT, (part_of("learned").manifest,), decided_ms=1
        )
        eventually(lambda: not ask(first.broker, Apply(id_of("learned"), learned)).remaining, what="it is applied")
        before, row, read = states(first), ask(first.broker, GetRow(ROW)), delivered(first)
        first.kill()
    assert {name: state.phase for name, state in before.items()} == {
        "open": Phase.OPEN, "prepared": Phase.PREPARED, "committed": Phase.COMMITTED, "rolled-back": Phase.ROLLED_BACK,
        "row": Phase.COMMITTED, "foreign": Phase.OPEN, "learned": Phase.COMMITTED,
    }  # fmt: skip
    assert row.sequence == 7

    shutil.copytree(tmp_path / "first" / "commitlog", tmp_path / "second" / "commitlog")
    with EmbeddedBroker(tmp_path / "second", options=OPTIONS) as second:
        now = states(second)
        assert {name: what_stays(state) for name, state in now.items()} == {
            name: what_stays(state) for name, state in before.items()
        }
        assert ask(second.broker, GetRow(ROW)) == row
        with metaq.admin.Admin(second.namesrv) as admin:  # the table of topics was not copied
            admin.create_topic(TOPIC, queues=4)
        assert sorted(delivered(second)) == sorted(read)
        decide(second.broker, "open", DecisionOutcome.COMMIT)
        settled(second, "open")
        assert ask(second.broker, Decide(id_of("prepared"), DecideBody(DecisionOutcome.COMMIT))).first
        settled(second, "prepared")
        foreign = TransactionDecision(
            id_of("foreign"), DecisionOutcome.COMMIT, (part_of("foreign").manifest,), decided_ms=1
        )
        eventually(lambda: not ask(second.broker, Apply(id_of("foreign"), foreign)).remaining, what="it is applied")
        assert not decide(second.broker, "committed", DecisionOutcome.ROLLBACK).first
        late = [body for name in ("open", "prepared", "foreign") for body in part_of(name).bodies]
        assert delivered(second)[-len(late) :] == late
        assert len(delivered(second)) == len(read) + len(late)
    survey = StagedSurvey(StoreReader(tmp_path / "second"))
    assert survey.problems == [problem for one in survey.transactions.values() for problem in one.problems] == []
