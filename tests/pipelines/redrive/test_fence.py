"""Whether a planned step was sent: what the broker that decides says, and what it says when it does not fit. Without Spark."""

from __future__ import annotations

import shutil

import pytest

from metaq.admin import Admin
from metaq.client.conversation.staged import numbered
from metaq.errors import ConfigError
from metaq.model.transactions.staging import transaction_id
from metaq.pipelines.redrive.fence import Fence, row_of
from metaq.pipelines.redrive.ledger import Ledger, Witness
from metaq.spark.cluster.courier import Courier

SECONDS = 60.0


class Steps:
    """A ledger, and the transactions of its steps as Spark's sink would commit them."""

    def __init__(self, namesrv, place):
        self.place = place
        place.mkdir(exist_ok=True)
        self.courier = Courier(namesrv, SECONDS)
        self.fence = Fence(self.courier, SECONDS)
        self.ledger = Ledger(place)
        if self.ledger.head is None:
            self.ledger.begin(self.fence.new_head("%DLQ%fenced"))
        self.settled = self.fence.settle(self.ledger)

    @property
    def head(self):
        return self.ledger.head

    def plan(self):
        self.ledger.plan("r", {("a", 0): [(self.ledger.number, self.ledger.number + 1)]}, {("a", 0): Witness(0, 0)})

    def commit(self):
        """What the sink does. Returns whether this is what counts."""
        transaction = transaction_id(f"spark-write-{self.head.ledger}-{self.ledger.number}", self.head.coordinator)
        steps = numbered.commit(
            transaction, (), row_of(self.head.ledger), self.ledger.number, SECONDS, self.courier.now
        )
        return not self.courier.drive(steps).again


@pytest.fixture
def begin(metaq_broker, tmp_path):
    begun = []

    def start(place=tmp_path):
        begun.append(Steps(metaq_broker.namesrv, place))
        return begun[-1]

    yield start
    for one in begun:
        one.courier.close()


def test_a_step_whose_end_is_not_written_down_was_sent_or_is_void(begin):
    """And a void one stays so, however late its writer comes."""
    first = begin()
    assert first.settled is None
    first.plan()
    assert first.commit()
    second = begin()  # As after a crash between the decision and the ledger.
    assert (second.settled, second.ledger.sent) == (True, {("a", 0): [(0, 1)]})
    second.plan()
    third = begin()  # As after one between the plan and the decision.
    assert (third.settled, third.ledger.sent) == (False, {("a", 0): [(0, 1)]})
    assert not second.commit(), "the process that was given up comes too late"
    third.plan()
    assert third.commit()
    third.ledger.end(sent=True)
    assert begin().ledger.sent == {("a", 0): [(0, 1), (2, 3)]}


def test_whoever_asks_twice_does_not_take_its_own_question_for_the_answer(begin, monkeypatch):
    """A crash of the asker leaves an empty transaction of that number: the step was not sent all the same."""
    first = begin()
    first.plan()
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "end", lambda *_, **__: (_ for _ in ()).throw(InterruptedError))
        with pytest.raises(InterruptedError):
            begin()
    assert begin().settled is False


def test_a_broker_that_remembers_nothing_stops_the_run(begin, metaq_broker):
    """Nobody knows what was sent then."""
    first = begin()
    first.plan()
    with Admin(metaq_broker.namesrv) as admin:
        admin.forget_transaction(row_of(first.head.ledger), row=True)
    with pytest.raises(
        ConfigError, match=r"remembers nothing of this redrive .* Begin in a new folder with checkTarget"
    ):
        begin()


def test_an_older_copy_of_the_folder_is_refused(begin, tmp_path):
    """It does not know what was sent since."""
    place = tmp_path / "new"
    first = begin(place)
    shutil.copytree(place, tmp_path / "empty")
    first.plan()
    shutil.copytree(place, tmp_path / "planned")
    assert first.commit()
    first.ledger.end(sent=True)
    first.plan()
    assert first.commit()
    for copy in ("empty", "planned"):
        with pytest.raises(ConfigError, match="is an older copy"):
            begin(tmp_path / copy)
    shutil.rmtree(first.place / "_steps")
    with pytest.raises(ConfigError, match="is an older copy"):
        begin(place)
