"""Rows: writers that number their transactions, and are told what became of a number that they ask for again."""

from __future__ import annotations

import shutil

import pytest

from metaq.broker.requests import Apply
from metaq.broker.staged.decisions import ENDED_MAX
from metaq.clock import FakeClock
from metaq.errors import Reason
from metaq.model.transactions.staging import DecisionOutcome, Phase
from tests.broker.staged.support import SOMEBODY, T, bodies, commit, decide, refused, rollback, stage, whole_part
from tests.broker.support import open_broker


def names(number):
    return f"t{number}@broker-a"


def commit_row(broker, transaction, sequence, body):
    chunk, part = whole_part("p", "orders", 0, body)
    stage(broker, chunk, transaction=transaction)
    return commit(broker, part, transaction=transaction, row="writer", sequence=sequence)


def test_a_number_that_is_done_is_not_done_again_by_another_transaction(tmp_path):
    """A writer that starts anew does its last step once more, under another id; the answer tells which one counts."""
    with open_broker(tmp_path, FakeClock()) as broker:
        assert commit_row(broker, names(1), 7, b"a").first
        for _ in range(2):
            again = commit_row(broker, names(2), 7, b"a")
            assert (again.first, again.decision.transaction, again.decision.outcome) == (
                False,
                names(1),
                DecisionOutcome.COMMIT,
            )
        assert broker.staging.state(names(2)).phase is Phase.ROLLED_BACK
        assert commit_row(broker, names(3), 8, b"b").first
        assert bodies(broker) == [b"a", b"b"]
        assert broker.staging.row("writer").sequence == 8
        assert broker.staging.row("writer").transaction == names(3)


def test_a_writer_that_was_overtaken_is_told_so(tmp_path):
    """Its transaction stays as it was, for it to roll back."""
    with open_broker(tmp_path, FakeClock()) as broker:
        commit_row(broker, names(1), 7, b"a")
        chunk, part = whole_part("p", "orders", 0, b"old")
        stage(broker, chunk, transaction=names(2))
        text = refused(Reason.STALE, commit, broker, part, transaction=names(2), row="writer", sequence=6)
        assert "writer" in text
        assert broker.staging.state(names(2)).phase is Phase.OPEN
        assert bodies(broker) == [b"a"]


def test_rows_outlast_restarts_and_are_forgotten_by_hand(tmp_path):
    """A commit without parts moves a row too: a step may have nothing to say."""
    with open_broker(tmp_path, FakeClock()) as broker:
        commit(broker, transaction=names(1), row="writer", sequence=3)
        commit(broker, transaction=names(2), row="other", sequence=1)
        assert [row.key for row in broker.staging.rows("", 10)] == ["other", "writer"]
        assert [row.key for row in broker.staging.rows("other", 10)] == ["writer"]
    with open_broker(tmp_path, FakeClock()) as broker:
        assert broker.staging.row("writer").sequence == 3
        broker.staging.forget("other")
        refused(Reason.NOT_FOUND, broker.staging.forget, "other")
    with open_broker(tmp_path, FakeClock()) as broker:
        assert broker.staging.row("other") is None
        again = commit(broker, transaction=names(4), row="writer", sequence=3)
        assert again.decision.transaction == names(1)
        refused(Reason.INVALID, commit, broker, transaction=names(5), row="a b", sequence=1)
        refused(Reason.INVALID, commit, broker, transaction=names(5), row="writer")


def test_a_row_goes_on_when_its_last_transaction_is_finished_everywhere(tmp_path):
    """Otherwise a writer could be ahead of what its readers can see."""
    with open_broker(tmp_path, FakeClock()) as broker:
        _, there = whole_part("p", "orders", 0, b"a", broker="broker-b")
        commit(broker, there, transaction=names(1), row="writer", sequence=1)
        text = refused(Reason.BUSY, commit, broker, transaction=names(2), row="writer", sequence=2)
        assert "broker-b" in text
        broker.staging.apply(Apply(transaction=names(1), confirmed=("broker-b",)), SOMEBODY)
        assert commit(broker, transaction=names(2), row="writer", sequence=2).first
        assert decide(broker, DecisionOutcome.ROLLBACK, None, names(1)).decision.outcome is DecisionOutcome.COMMIT


def test_a_prepared_transaction_whose_number_another_one_took_is_rolled_back(tmp_path):
    """It can never be committed: its parts would stay for good."""
    with open_broker(tmp_path, FakeClock()) as broker:
        for number in (1, 2):
            chunk, part = whole_part("p", "orders", 0, b"%d" % number)
            stage(broker, chunk, transaction=names(number))
            decide(broker, DecisionOutcome.PREPARED, [part], names(number), row="writer", sequence=5)
        assert decide(broker, DecisionOutcome.COMMIT, None, names(1)).first
        told = decide(broker, DecisionOutcome.COMMIT, None, names(2))
        assert (told.first, told.decision.transaction) == (False, names(1))
        assert broker.staging.state(names(2)).phase is Phase.ROLLED_BACK
        broker.tick()
        assert broker.staging.held == (0, 0)
        assert bodies(broker) == [b"1"]


def test_the_last_transaction_of_a_row_stays_committed_however_long_ago_it_was(tmp_path):
    """Without an index nothing but the row knows of it."""
    no_index = {"message_index_enable": False, "mapped_file_size_commit_log": 32 << 20}
    with open_broker(tmp_path, FakeClock(), store=no_index) as broker:
        commit_row(broker, names(1), 7, b"a")
        broker.tick()
        for number in range(ENDED_MAX + 1):
            rollback(broker, f"o{number}@broker-a")
        assert broker.staging.state(names(1)).phase is Phase.UNKNOWN
        again = commit_row(broker, names(1), 7, b"a")
        assert (again.first, again.decision.outcome) == (False, DecisionOutcome.COMMIT)
        assert broker.staging.state(names(1)).phase is not Phase.ROLLED_BACK
        assert broker.staging.held == (0, 0)
        assert bodies(broker) == [b"a"]


@pytest.mark.parametrize("index", [True, False])
def test_a_commit_that_was_forgotten_before_its_end_stays_a_commit(tmp_path, index):
    """Nobody waits for the other broker any more; a request that comes again is told what was decided."""
    options = {"message_index_enable": index}
    chunk, part = whole_part("p", "orders", 0, b"a")
    _, there = whole_part("q", "orders", 0, b"a", broker="broker-z")
    with open_broker(tmp_path / "a", FakeClock(), store=options) as broker:
        stage(broker, chunk)
        commit(broker, part, there)
        broker.tick()
        broker.staging.forget(T)
        assert broker.staging.state(T).phase is Phase.COMMITTED
        shutil.copytree(tmp_path / "a", tmp_path / "crashed")
    with open_broker(tmp_path / "crashed", FakeClock(), store=options) as broker:
        assert broker.staging.state(T).phase is Phase.COMMITTED
        stage(broker, chunk)
        assert not commit(broker, part, there).first
        assert bodies(broker) == [b"a"]
