"""Transactions while things go wrong between client and broker: what was committed comes, and what was rolled back does not."""

from __future__ import annotations

import pytest
from msgspec import structs

import metaq
from metaq import Told, TransactionOutcome, TransactionProducer
from metaq.testing import EmbeddedBroker
from metaq.wire.codes import RequestCode
from tests.scripted import Fate, ScriptedCluster
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.slow

QUICK = {"transactionCheckInterval": 200, "transactionTimeOut": 200}
TOPIC = "orders"


@pytest.fixture
def broker():
    """One that asks after a fifth of a second."""
    with EmbeddedBroker(options=QUICK) as running:
        yield running


@pytest.fixture
def cluster(tmp_path):
    """A broker whose time stands still until it is told, behind a proxy with a script."""
    with ScriptedCluster(tmp_path) as running:
        running.answer_script = Answers()
        running.make_topic(TOPIC, 1)
        yield running


def delivered(namesrv, topic=TOPIC):
    with metaq.Reader(namesrv, topic, stop_at_end=True) as reader:
        return list(reader)


def bodies(namesrv, topic=TOPIC):
    return [message.body for message in delivered(namesrv, topic)]


class Answers:
    """What comes from the broker: its checks are counted, and one script after the other may have its way with it."""

    def __init__(self):
        self.checks = 0
        self.script = lambda command: None

    def __call__(self, command):
        verdict = self.script(command)
        self.checks += command.code == RequestCode.CHECK_TRANSACTION_STATE and not command.is_response
        return verdict


def let_ask(cluster, producer, done, what):
    """The broker's minute passes, and it asks, as often as it takes. The producer's heartbeats are by its own clock."""

    def probe():
        producer._core.thread.run(producer._core.send_heartbeats(), PATIENCE)
        before = cluster.answer_script.checks
        cluster.clock.advance(61)
        eventually(lambda: done() or cluster.answer_script.checks > before, what=f"a check, or {what}")
        return done()

    eventually(probe, what=what)


def refuse_to_answer(message):
    raise AssertionError("the check was called")


def test_commit_reaches_a_broker_that_was_killed_meanwhile(broker):
    """kill -9 between half message and commit, then a restart: within the producer's timeout it is told, once."""
    with TransactionProducer(broker.namesrv, group="g", check=refuse_to_answer, timeout=PATIENCE) as producer:
        with producer.transaction(TOPIC, b"x") as tx:
            broker.kill()
            broker.start()
        assert tx.result.told is Told.HANDED_OVER
        eventually(lambda: bodies(broker.namesrv) == [b"x"], what="it is delivered")


def test_commit_that_nobody_heard_is_asked_for_after_the_restart(broker, caplog):
    """The broker was down for longer than the timeout. This process knows the outcome and answers by itself."""
    with TransactionProducer(broker.namesrv, group="g", check=refuse_to_answer, timeout=PATIENCE) as producer:
        with producer.transaction(TOPIC, b"first"):
            pass
        yes, no = producer.transaction(TOPIC, b"yes").begin(), producer.transaction(TOPIC, b"no").begin()
        producer._accumulator.limits = structs.replace(producer._accumulator.limits, timeout=0.5)
        broker.kill()
        assert yes.commit().told is Told.UNTOLD
        assert no.rollback().told is Told.UNTOLD
        broker.start()
        eventually(lambda: set(bodies(broker.namesrv)) >= {b"first", b"yes"}, what="it is delivered")
        asked_again = producer.transaction(TOPIC, b"last").begin()
        place = asked_again._begun.half
        eventually(lambda: asked_again._begun.half != place, what="a round of checks has passed")
        asked_again.rollback()
        assert sorted(bodies(broker.namesrv)) == [b"first", b"yes"]
    assert "could not commit transaction" in caplog.text


@pytest.mark.parametrize("outcome", [TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK])
def test_end_that_is_lost_on_its_way_is_asked_for(cluster, outcome):
    """Handed over, and then the network ate it."""
    asked = []

    def check(message):
        asked.append(message.body)
        return True

    lost = []

    def script(command):
        if command.code == RequestCode.END_TRANSACTION and not lost:
            lost.append(command)
            return Fate.LOSE
        return None

    cluster.script = script
    with TransactionProducer(cluster.namesrv, group="g", check=check, timeout=PATIENCE) as producer:
        tx = producer.transaction(TOPIC, b"x").begin()
        told = tx.commit() if outcome is TransactionOutcome.COMMIT else tx.rollback()
        assert told.told is Told.HANDED_OVER
        eventually(lambda: lost, what="it is lost")
        let_ask(cluster, producer, lambda: cluster.count(RequestCode.END_TRANSACTION) == 2, "it is told once more")
        with producer.transaction(TOPIC, b"last"):
            pass
        wanted = [b"x", b"last"] if outcome is TransactionOutcome.COMMIT else [b"last"]
        eventually(lambda: bodies(cluster.namesrv) == wanted, what="both ends are in effect")
    assert asked == []


def test_check_that_is_lost_on_its_way_is_asked_again(cluster):
    """And so is one whose answer is."""
    lost = []

    def lose(code):
        def script(command):
            if command.code == code and not command.is_response and len(lost) < limit:
                lost.append(code)
                return Fate.LOSE
            return None

        return script

    limit = 1
    with TransactionProducer(cluster.namesrv, group="g", check=lambda _: True, timeout=PATIENCE) as producer:
        with producer.transaction(TOPIC, b"x") as tx:
            tx.unknown()
        eventually(lambda: cluster.count(RequestCode.END_TRANSACTION) == 1, what="the broker has been told")
        cluster.answer_script.script = lose(RequestCode.CHECK_TRANSACTION_STATE)
        let_ask(cluster, producer, lambda: len(lost) == 1, "a check is lost")
        limit = 2
        cluster.script = lose(RequestCode.END_TRANSACTION)
        let_ask(cluster, producer, lambda: len(lost) == 2, "an answer is lost")
        let_ask(cluster, producer, lambda: bodies(cluster.namesrv) == [b"x"], "it is delivered")


def test_half_message_whose_answer_was_lost_keeps_its_id(cluster):
    """The re-send is another half message; what is delivered, once or twice, has one id, which is the transaction's."""
    hung_up = []

    def hang_up(answer):
        if answer.is_response and "queueOffset" in answer.ext and not hung_up:
            hung_up.append(answer)
            return Fate.HANG_UP
        return None

    cluster.answer_script.script = hang_up
    with TransactionProducer(cluster.namesrv, group="g", check=refuse_to_answer, timeout=PATIENCE) as producer:
        with producer.transaction(TOPIC, b"x") as tx:
            assert hung_up
        eventually(lambda: bodies(cluster.namesrv), what="it is delivered")
        let_ask(cluster, producer, lambda: len(bodies(cluster.namesrv)) == 2, "the first copy is asked about")
    assert {message.message_id for message in delivered(cluster.namesrv)} == {tx.id}


def test_transaction_that_nobody_decides_is_kept_for_the_administrator():
    """A check that answers "unknown" for ever is asked so often and no more; the message is not delivered and not lost."""
    asked = []

    def check(message):
        asked.append(int(message.properties["TRANSACTION_CHECK_TIMES"]))

    with (
        EmbeddedBroker(options={**QUICK, "transactionCheckMax": 3}) as broker,
        TransactionProducer(broker.namesrv, group="g", check=check, timeout=PATIENCE) as producer,
    ):
        with producer.transaction(TOPIC, b"x", keys=["k"]) as tx:
            tx.unknown()

        def kept():
            try:
                return delivered(broker.namesrv, "TRANS_CHECK_MAX_TIME_TOPIC")
            except metaq.NoRoute:
                return None

        [message] = eventually(kept, what="it is given up")
        with producer.transaction(TOPIC, b"other"):
            pass
        eventually(lambda: bodies(broker.namesrv) == [b"other"], what="the topic goes on")
    assert (message.message_id, message.body, message.keys) == (tx.id, b"x", ("k",))
    assert asked == [1, 2, 3]


def test_commit_counts_also_behind_the_last_check():
    """A block that takes longer than all checks together: given up by the broker, and delivered when it ends."""
    with (
        EmbeddedBroker(options={**QUICK, "transactionCheckMax": 2}) as broker,
        TransactionProducer(
            broker.namesrv, group="g", check=refuse_to_answer, timeout=PATIENCE, confirm=True
        ) as producer,
    ):

        def given_up():
            try:
                return bodies(broker.namesrv, "TRANS_CHECK_MAX_TIME_TOPIC")
            except metaq.NoRoute:
                return None

        with producer.transaction(TOPIC, b"slow") as tx:
            eventually(lambda: given_up() == [b"slow"], what="it is given up")
        assert tx.result.told is Told.CONFIRMED
        assert bodies(broker.namesrv) == [b"slow"]
