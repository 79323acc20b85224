"""Brokers finish staged transactions among themselves, whoever of client and brokers goes away: the link between real processes."""

from __future__ import annotations

import pytest

import metaq
from metaq.admin import Admin
from metaq.client.conversation.staged.staging import Decide, GetTransaction, ListStaged, end
from metaq.model.transactions.staging import DecisionOutcome, PartLifetime, Phase
from metaq.testing import Cluster
from metaq.wire.staging import DecideBody
from tests import staged
from tests.staged import PlannedPart
from tests.support import eventually, exchange

pytestmark = pytest.mark.slow

QUEUES = 2


@pytest.fixture(scope="module")
def cluster():
    with Cluster(brokers=2) as running:
        with Admin(running.namesrv) as admin:
            admin.create_topic("orders", queues=QUEUES)
        yield running


def parts_of(cluster, name, queue_id=0, chunks=2):
    """One part at each broker, several chunks each."""
    return [
        PlannedPart(
            broker.name, f"p{n}", "orders", queue_id,
            tuple(tuple(b"%s-%d-%d-%d" % (name.encode(), n, c, m) for m in range(3)) for c in range(chunks)),
        )
        for n, broker in enumerate(cluster.brokers)
    ]  # fmt: skip


def stage(cluster, transaction, parts, **more):
    for broker, part in zip(cluster.brokers, parts, strict=True):
        staged.ask(broker.listens, staged.stage(transaction, [part], **more))


def commit(cluster, transaction, parts, coordinator=0):
    body = DecideBody(DecisionOutcome.COMMIT, tuple(part.manifest for part in parts))
    return staged.ask(cluster.brokers[coordinator].listens, Decide(transaction, body))


def phase(broker, transaction):
    return staged.ask(broker.listens, GetTransaction(transaction)).phase


def seen(cluster, name):
    """The bodies of a transaction that readers see, in the order of brokers and queues."""
    with metaq.Reader(cluster.namesrv, "orders", start="earliest", stop_at_end=True) as reader:
        found = [message for message in reader if message.body.startswith(name.encode() + b"-")]
    found.sort(key=lambda one: (one.queue.broker, one.queue_id, one.queue_offset))
    return [message.body for message in found]


def test_coordinator_brings_its_decision_to_the_others(cluster):
    """The client decides and is never seen again: every broker has delivered, and the coordinator knows it."""
    transaction = f"push@{cluster.brokers[0].name}"
    parts = parts_of(cluster, "push")
    stage(cluster, transaction, parts)
    assert commit(cluster, transaction, parts).first
    for broker in cluster.brokers:
        eventually(lambda broker=broker: phase(broker, transaction) is Phase.COMMITTED, what=f"{broker.name} is done")
    assert seen(cluster, "push") == [body for part in parts for body in part.bodies]
    eventually(lambda: not staged.ask(cluster.brokers[0].listens, GetTransaction(transaction)).unconfirmed)


def test_participant_that_was_away_learns_the_outcome(cluster):
    """Killed before the decision: it holds its part until the coordinator is reached, and delivers it once."""
    coordinator, other = cluster.brokers
    transaction = f"away@{coordinator.name}"
    parts = parts_of(cluster, "away")
    stage(cluster, transaction, parts)
    other.kill()
    commit(cluster, transaction, parts)
    assert phase(coordinator, transaction) is Phase.COMMITTING
    assert staged.ask(coordinator.listens, GetTransaction(transaction)).unconfirmed == (other.name,)
    other.start()
    eventually(lambda: phase(other, transaction) is Phase.COMMITTED, what="the participant has learned it")
    eventually(lambda: phase(coordinator, transaction) is Phase.COMMITTED, what="the coordinator knows")
    assert seen(cluster, "away") == [body for part in parts for body in part.bodies]


def test_participant_asks_a_coordinator_that_was_away(cluster):
    """The coordinator rolled back and died before it told anybody: the participant guesses nothing, and asks."""
    coordinator, other = cluster.brokers
    transaction = f"asked@{coordinator.name}"
    parts = parts_of(cluster, "asked")
    stage(cluster, transaction, parts)
    staged.ask(coordinator.listens, end(transaction, DecisionOutcome.ROLLBACK))
    coordinator.kill()
    assert phase(other, transaction) in {Phase.OPEN, Phase.ROLLED_BACK}
    other.kill()
    other.start()
    assert phase(other, transaction) in {Phase.OPEN, Phase.ROLLED_BACK}
    coordinator.start()
    eventually(lambda: phase(other, transaction) is Phase.ROLLED_BACK, what="the participant has learned it")
    assert staged.ask(other.listens, GetTransaction(transaction)).parts == ()
    assert seen(cluster, "asked") == []


def test_parts_of_a_lost_connection_are_rolled_back_at_the_coordinator(cluster):
    """A participant's connection ends: it asks for a rollback where that is decided, and a late commit gets it back."""
    coordinator, other = cluster.brokers
    transaction = f"lost@{coordinator.name}"
    parts = parts_of(cluster, "lost")
    # `exchange` closes each connection behind its answer.
    stage(cluster, transaction, parts, lifetime=PartLifetime.CONNECTION)
    eventually(lambda: phase(other, transaction) is Phase.ROLLED_BACK, what="the participant has learned it")
    late = commit(cluster, transaction, parts)
    assert (late.first, late.decision.outcome) == (False, DecisionOutcome.ROLLBACK)
    assert seen(cluster, "lost") == []


def test_parts_that_expire_are_rolled_back_everywhere(cluster):
    """One second for the participant's part, a day for the coordinator's own: the decision is one for both."""
    coordinator, other = cluster.brokers
    transaction = f"expired@{coordinator.name}"
    parts = parts_of(cluster, "expired")
    staged.ask(coordinator.listens, staged.stage(transaction, parts[:1]))
    staged.ask(other.listens, staged.stage(transaction, parts[1:], expire_after=1))
    for broker in cluster.brokers:
        eventually(lambda broker=broker: phase(broker, transaction) is Phase.ROLLED_BACK, what=broker.name)


def test_many_decisions_reach_the_others_soon(cluster):
    """Five hundred clients decide and are never seen again: more than the link asks about at once."""
    coordinator, other = cluster.brokers
    names = [f"many-{n}" for n in range(500)]
    planned = {f"{name}@{coordinator.name}": parts_of(cluster, name, chunks=1) for name in names}
    for n, broker in enumerate(cluster.brokers):
        calls = [staged.stage(transaction, [parts[n]]) for transaction, parts in planned.items()]
        answers = exchange(broker.listens, [call.request() for call in calls])
        for call, answer in zip(calls, answers, strict=True):
            call.outcome(answer)
    with Admin(cluster.namesrv) as admin:  # in pages
        listed, cut = admin.list_transactions(limit=1000), admin.list_transactions(limit=450)
    assert planned.keys() <= {one.transaction for one in listed.transactions}
    assert {len(one.parts) for one in listed.transactions if one.transaction in planned} == {2}
    assert (len(cut.transactions), cut.complete, listed.complete) == (450, False, True)
    calls = [
        Decide(transaction, DecideBody(DecisionOutcome.COMMIT, tuple(part.manifest for part in parts)))
        for transaction, parts in planned.items()
    ]
    for call, answer in zip(calls, exchange(coordinator.listens, [one.request() for one in calls]), strict=True):
        assert call.outcome(answer).first

    def open_at(broker):
        return [one for one in staged.ask(broker.listens, ListStaged(count=1000)) if one.transaction in planned]

    for broker in (other, coordinator):
        eventually(lambda broker=broker: not open_at(broker), what=f"all are over at {broker.name}")
    assert len(seen(cluster, "many")) == 500 * 2 * 3
