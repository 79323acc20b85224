"""Transactions over several brokers: who asks whom, what becomes of parts at a broker that was away, and of lost answers."""

from __future__ import annotations

import contextlib

import pytest

from metaq.app.files import broker_files
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.broker.requests import Apply
from metaq.broker.staged.peers import Finish, NoAnswer, Settle, StateOf
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model.transactions.staging import DecisionOutcome, PartLifetime, Phase
from metaq.options import BrokerOptions
from metaq.store.config_file import ConfigFile
from metaq.store.message_store import MessageStore
from tests.broker.staged.support import SOMEBODY, bodies, commit, decide, refused, rollback, stage, whole_part
from tests.broker.support import STORE_HOST, FakeChannel, small_store

T = "t@broker-a"
AGE = 60
"""Seconds that a transaction may be open: the brokers' time, which tests own."""
HERE, ONE = whole_part("p", "orders", 0, b"a")
THERE, TWO = whole_part("q", "orders", 1, b"b", broker="broker-b")


class Pair:
    """Two brokers that can reach each other, or not."""

    def __init__(self, root):
        self._root, self.clock = root, FakeClock()
        self.asked = []
        self.up = True
        self._exits = {}
        for name in ("broker-a", "broker-b"):
            self.start(name)

    def start(self, name):
        exits, options = contextlib.ExitStack(), small_store(self._root / name)
        store = exits.enter_context(MessageStore(options, self.clock, STORE_HOST, "DefaultCluster"))
        table = BrokerOptions(broker_name=name, broker_cluster_name="DefaultCluster")
        environment = Environment(table, options, self.clock, store, name, STORE_HOST)
        files = broker_files(lambda file: ConfigFile(self._root / name / "config" / file))
        broker = Broker(environment, files, peers=self)
        broker.lead()
        broker.topics.ensure("orders", 4)
        exits.callback(broker.close)
        self._exits[name] = exits
        setattr(self, name[-1], broker)

    def restart(self, name):
        self._exits[name].close()
        self.start(name)

    def stop(self):
        for exits in self._exits.values():
            exits.close()

    def ask(self, broker, question, done):
        self.asked.append((broker, question))
        if not self.up:
            done(NoAnswer("away"))
            return
        staging = (self.a if broker == "broker-a" else self.b).staging
        try:
            if isinstance(question, Finish):
                decision = question.decision
                done(staging.apply(Apply(transaction=decision.transaction, decision=decision), SOMEBODY))
            elif isinstance(question, Settle):
                done(staging.settle(question.transaction))
            else:
                done(staging.state(question.transaction))
        except Refused as error:
            done(NoAnswer(str(error)))

    def time_passes(self, seconds, step=1):
        for _ in range(int(seconds / step)):
            self.clock.advance(step)
            for broker in (self.a, self.b):
                broker.tick()
                broker.staging.step()

    def stage(self, **more):
        stage(self.a, HERE, transaction=T, **more)
        stage(self.b, THERE, transaction=T, **more)

    @property
    def seen(self):
        return bodies(self.a), bodies(self.b, "orders", 1)


@pytest.fixture
def pair(tmp_path):
    made = Pair(tmp_path)
    yield made
    made.stop()


def test_a_coordinator_tells_participants_that_the_client_did_not_reach(pair):
    """Once, when the client has said nothing; then it is finished everywhere, and nobody is asked any more."""
    pair.stage()
    assert commit(pair.a, ONE, TWO, transaction=T).first
    assert pair.seen == ([b"a"], [])
    assert pair.a.staging.state(T).unconfirmed == ("broker-b",)
    pair.time_passes(3)
    assert pair.seen == ([b"a"], [b"b"])
    assert [type(question) for _, question in pair.asked] == [Finish]
    for broker in (pair.a, pair.b):
        assert broker.staging.state(T).phase is Phase.COMMITTED
        assert broker.staging.listing("", 10) == []


def test_no_other_broker_is_told_of_a_decision_that_a_power_cut_could_take_back(tmp_path):
    """With SYNC_FLUSH, and a disk that is slow: a participant would deliver what the coordinator then knows nothing of."""
    asked, clock = [], FakeClock()

    class Peers:
        def ask(self, broker, question, done):
            asked.append(question)
            done(NoAnswer("away"))

    options = small_store(tmp_path, flush_disk_type="SYNC_FLUSH")
    with MessageStore(options, clock, STORE_HOST, "DefaultCluster", threads=False) as store:
        table = BrokerOptions(broker_name="broker-a", broker_cluster_name="DefaultCluster")
        environment = Environment(table, options, clock, store, "broker-a", STORE_HOST)
        files = broker_files(lambda file: ConfigFile(tmp_path / "config" / file))
        broker = Broker(environment, files, peers=Peers())
        broker.lead()
        assert commit(broker, TWO, transaction=T).first
        for _ in range(5):
            clock.advance(2)
            broker.tick()
        assert asked == []
        store.flusher.flush()
        clock.advance(2)
        broker.tick()
        assert [type(question) for question in asked] == [Finish]
        broker.close()


def test_a_client_that_applies_everywhere_spares_the_brokers_their_questions(pair):
    """It brings the participant the decision, and tells the coordinator who has confirmed."""
    pair.stage()
    decision = commit(pair.a, ONE, TWO, transaction=T).decision
    for _ in range(2):  # the answer may be lost
        state = pair.b.staging.apply(Apply(transaction=T, decision=decision), SOMEBODY)
        assert (state.phase, state.remaining, state.missing) == (Phase.COMMITTED, 0, ())
        pair.b.tick()
    pair.a.staging.apply(Apply(transaction=T, confirmed=("broker-b",)), SOMEBODY)
    pair.time_passes(30)
    assert pair.asked == []
    assert pair.seen == ([b"a"], [b"b"])


def test_a_participant_that_was_away_learns_the_outcome_by_asking(pair):
    """At its start, when nobody else tells it."""
    pair.stage()
    pair.up = False
    commit(pair.a, ONE, TWO, transaction=T)
    pair.time_passes(2)
    pair.asked.clear()
    pair.restart("broker-b")
    pair.up = True
    pair.b.tick()
    assert pair.asked == [("broker-a", StateOf(T))]
    assert pair.seen == ([b"a"], [b"b"])
    pair.restart("broker-b")
    pair.time_passes(300)
    assert pair.seen == ([b"a"], [b"b"])
    assert pair.a.staging.listing("", 10) == []


def test_brokers_that_cannot_be_reached_are_asked_ever_more_seldom(pair):
    """And neither side guesses."""
    pair.stage()
    pair.up = False
    commit(pair.a, ONE, TWO, transaction=T)
    pair.time_passes(3600, step=5)
    assert pair.seen == ([b"a"], [])
    assert 10 < len(pair.asked) < 60
    pair.up = True
    pair.time_passes(301, step=5)
    assert pair.seen == ([b"a"], [b"b"])


def test_what_has_expired_at_a_participant_is_rolled_back_by_its_coordinator(pair):
    """Which had nothing of it: from then on it says so to everybody."""
    stage(pair.b, THERE, transaction=T, seconds=AGE)
    pair.up = False
    pair.time_passes(100, step=5)
    assert pair.b.staging.state(T).phase is Phase.OPEN
    pair.up = True
    pair.time_passes(301, step=5)
    assert pair.b.staging.state(T).phase is Phase.ROLLED_BACK
    assert commit(pair.a, TWO, transaction=T).decision.outcome is DecisionOutcome.ROLLBACK


def test_what_was_committed_does_not_expire(pair):
    """The participant hears of the commit instead."""
    stage(pair.b, THERE, transaction=T, seconds=AGE)
    pair.up = False
    commit(pair.a, TWO, transaction=T)
    pair.time_passes(100, step=5)
    pair.up = True
    pair.time_passes(301, step=5)
    assert bodies(pair.b, "orders", 1) == [b"b"]


def test_the_end_of_a_connection_rolls_back_what_lasts_as_long(pair):
    """At the coordinator at once, at a participant by asking; a restart is the end of all connections."""
    one, two = FakeChannel(), FakeChannel()
    stage(pair.a, HERE, transaction=T, channel=one, lifetime=PartLifetime.CONNECTION)
    stage(pair.b, THERE, transaction=T, channel=two, lifetime=PartLifetime.CONNECTION)
    stage(pair.b, THERE, transaction="u@broker-a", channel=one, lifetime=PartLifetime.CONNECTION)
    stage(pair.b, THERE, transaction="v@broker-a", channel=FakeChannel(), lifetime=PartLifetime.PREPARED)
    pair.a.closed(one)
    assert pair.a.staging.state(T).phase is Phase.ROLLED_BACK
    pair.b.closed(two)
    pair.b.tick()
    assert pair.b.staging.state(T).phase is Phase.ROLLED_BACK
    assert pair.b.staging.state("u@broker-a").phase is Phase.OPEN
    pair.restart("broker-b")
    pair.time_passes(1)
    assert pair.b.staging.state("u@broker-a").phase is Phase.ROLLED_BACK
    pair.time_passes(200_000, step=5000)
    assert pair.b.staging.state("v@broker-a").phase is Phase.OPEN


def test_what_is_prepared_waits_for_its_end_however_long(pair):
    """Also at participants whose parts had an age; a rollback by a client ends it."""
    pair.stage(seconds=AGE)
    decide(pair.a, DecisionOutcome.PREPARED, [ONE, TWO], T)
    pair.time_passes(1000, step=10)
    pair.restart("broker-a")
    pair.restart("broker-b")
    pair.time_passes(100_000, step=1000)
    for broker in (pair.a, pair.b):
        assert broker.staging.state(T).phase is Phase.PREPARED
    assert rollback(pair.a, T).first
    pair.time_passes(1000, step=10)
    for broker in (pair.a, pair.b):
        assert broker.staging.state(T).phase is Phase.ROLLED_BACK
    assert pair.seen == ([], [])


def test_parts_that_a_participant_does_not_have_are_told_as_missing(pair):
    """Each time that it is asked, and after a restart; what it has is applied, and the coordinator is not kept waiting."""
    _, lost = whole_part("lost", "orders", 2, b"x", broker="broker-b")
    pair.stage()
    decision = commit(pair.a, ONE, TWO, lost, transaction=T).decision
    for _ in range(2):
        for _ in range(2):
            state = pair.b.staging.apply(Apply(transaction=T, decision=decision), SOMEBODY)
            assert (state.phase, state.missing) == (Phase.COMMITTED, ("lost",))
            pair.time_passes(2)
        pair.restart("broker-b")
    assert pair.seen == ([b"a"], [b"b"])
    assert pair.a.staging.listing("", 10) == []
    unknown = commit(pair.a, lost, transaction="u@broker-a").decision
    assert pair.b.staging.apply(Apply(transaction="u@broker-a", decision=unknown), SOMEBODY).missing == ("lost",)


def test_a_stage_that_comes_once_more_after_the_end_brings_no_second_copy(pair):
    """However late it is: what is here when the outcome is learned again came after the end."""
    pair.stage()
    commit(pair.a, ONE, TWO, transaction=T)
    pair.time_passes(3)
    for broker in ("broker-a", "broker-b"):
        pair.restart(broker)  # what was over is not remembered, it is found in the index
    stage(pair.b, THERE, transaction=T)
    stage(pair.a, HERE, transaction=T)
    assert commit(pair.a, ONE, TWO, transaction=T).first is False
    pair.time_passes(30)
    assert pair.seen == ([b"a"], [b"b"])
    assert pair.b.staging.listing("", 10) == []


def test_an_administrator_drops_what_waits_for_a_broker_that_is_gone(pair):
    """A participant's parts, or the coordinator's debt; what is committed and not applied is not to be dropped."""
    pair.stage()
    pair.up = False
    commit(pair.a, ONE, TWO, transaction=T)
    pair.time_passes(1)
    pair.a.staging.forget(T)
    assert pair.a.staging.listing("", 10) == []
    pair.b.staging.forget(T)
    refused(Reason.NOT_FOUND, pair.b.staging.forget, T)
    for broker in ("broker-a", "broker-b"):
        pair.restart(broker)
    assert [broker.staging.listing("", 10) for broker in (pair.a, pair.b)] == [[], []]
    assert pair.seen == ([b"a"], [])
