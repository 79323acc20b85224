"""The coordinator over two systems: all or none, whoever is away, and what the next start does."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.errors import (
    ClientClosed,
    ClientError,
    ClientForked,
    ConfigError,
    StoreError,
    TransactionEnded,
    TransactionFailed,
)
from metaq.xa import Coordinator, DataManager, OtherwiseEnded, join
from metaq.xa.resource import BranchName
from tests.xa.files import Files


@pytest.fixture
def left(tmp_path: Path) -> Files:
    return Files(tmp_path / "left", "left")


@pytest.fixture
def right(tmp_path: Path) -> Files:
    return Files(tmp_path / "right", "right")


@pytest.fixture
def coordinator(tmp_path: Path, left: Files, right: Files) -> Iterator[Coordinator]:
    with Coordinator(tmp_path / "log", [left, right]) as made:
        made.recover()
        yield made


def fill(coordinator: Coordinator, left: Files, right: Files, name: str):
    tx = coordinator.transaction()
    tx.enlist(left).append(name)
    tx.enlist(right).append(name)
    return tx


def test_a_block_commits_both(coordinator: Coordinator, left: Files, right: Files) -> None:
    with coordinator.transaction() as tx:
        tx.enlist(left).append("a")
        tx.enlist(right).append("a")
        tx.enlist(left).append("b")  # the same branch
        assert left.names == []
    assert left.names == ["a", "b"]
    assert right.names == ["a"]
    assert tx.state == "committed"
    assert coordinator.open == ()
    assert "left, right, committed" in repr(tx)


def test_a_block_that_raises_commits_none(coordinator: Coordinator, left: Files, right: Files) -> None:
    with pytest.raises(ValueError, match="mine"), coordinator.transaction() as tx:
        tx.enlist(left).append("a")
        raise ValueError("mine")
    assert left.names == []
    assert tx.state == "rolled back"
    tx.rollback()  # once more is no error
    with pytest.raises(TransactionEnded):
        tx.commit()


def test_one_that_refuses_rolls_back_all(coordinator: Coordinator, left: Files, right: Files) -> None:
    right.refuses = True
    tx = fill(coordinator, left, right, "a")
    with pytest.raises(TransactionFailed, match="right refuses") as failed:
        tx.commit()
    assert failed.value.state == "rolled back"
    assert failed.value.retriable
    assert isinstance(failed.value.__cause__, ValueError)
    assert (left.names, left.prepared, right.names) == ([], 0, [])
    with pytest.raises(TransactionEnded):
        tx.enlist(left)


def test_one_without_work_has_no_part_in_the_decision(coordinator: Coordinator, left: Files, right: Files) -> None:
    with coordinator.transaction() as tx:
        tx.enlist(left)
        tx.enlist(right).append("a")
    assert right.names == ["a"]
    with coordinator.transaction() as tx:
        pass
    assert tx.state == "committed"


def test_one_that_is_away_at_the_commit_is_told_later(coordinator: Coordinator, left: Files, right: Files) -> None:
    tx = fill(coordinator, left, right, "a")
    tx.prepare()
    right.away = True
    committed = tx.commit()
    assert committed.pending == ("right: right is away",)
    assert (left.names, right.names) == (["a"], [])
    assert coordinator.open == (tx.id,)
    pending = coordinator.recover().pending
    assert len(pending) == 2  # it cannot be asked, and its branch cannot be told
    right.away = False
    recovered = coordinator.recover()
    assert (recovered.committed, recovered.pending) == ((tx.id,), ())
    assert right.names == ["a"]
    assert coordinator.open == ()
    assert coordinator.recover().committed == ()


def test_one_that_is_away_at_the_rollback_is_rolled_back_later(
    coordinator: Coordinator, left: Files, right: Files
) -> None:
    tx = fill(coordinator, left, right, "a")
    tx.prepare()
    right.away = True
    tx.rollback()
    right.away = False
    assert right.prepared == 1
    assert coordinator.recover().rolled_back == (tx.id,)
    assert (right.prepared, right.names) == (0, [])


@pytest.mark.parametrize("decided", [True, False])
def test_the_next_start_ends_what_this_one_could_not(tmp_path: Path, left: Files, right: Files, decided: bool) -> None:
    coordinator = Coordinator(tmp_path / "log", [left, right])
    coordinator.recover()
    tx = fill(coordinator, left, right, "a")
    tx.prepare()
    if decided:
        left.away = right.away = True
        tx.commit()
        left.away = right.away = False
    coordinator.close()
    with Coordinator(tmp_path / "log", [left, right]) as later:
        with pytest.raises(ClientError, match="recover"):
            later.transaction()
        found = later.recover()
        assert (found.committed, found.rolled_back) == (((tx.id,), ()) if decided else ((), (tx.id,)))
        later.transaction().rollback()
    names = ["a"] if decided else []
    assert (left.names, right.names, left.prepared, right.prepared) == (names, names, 0, 0)


def test_recovery_leaves_others_and_what_is_under_way_alone(
    coordinator: Coordinator, left: Files, right: Files, tmp_path: Path
) -> None:
    tx = fill(coordinator, left, right, "a")
    tx.prepare()
    foreign = left.begin(BranchName("mq0000000000000000ab", 1), lambda _: None)
    foreign.handle.append("foreign")
    foreign.prepare()
    recovering = threading.Thread(target=coordinator.recover)
    recovering.start()
    recovering.join()
    assert left.prepared == 2
    tx.commit()
    assert left.names == ["a"]
    assert left.prepared == 1


def test_a_decision_that_cannot_be_written(
    tmp_path: Path, coordinator: Coordinator, left: Files, right: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both wait; leaving the block does not roll them back, and the next start does as the file says."""

    def fails(handle: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(TransactionFailed, match="unknown") as failed, coordinator.transaction() as tx:
        tx.enlist(left).append("a")
        tx.enlist(right).append("a")
    assert failed.value.state == "unknown"
    assert isinstance(failed.value.__cause__, StoreError)
    assert (left.prepared, right.prepared) == (1, 1)
    monkeypatch.undo()
    coordinator.close()
    with Coordinator(tmp_path / "log", [left, right]) as later:
        assert later.recover().committed == (tx.id,)
    assert (left.names, right.names) == (["a"], ["a"])


def test_a_resource_that_recovery_would_not_know(coordinator: Coordinator, tmp_path: Path, left: Files) -> None:
    other = Files(tmp_path / "left", "left")
    with pytest.raises(ConfigError, match="no resource of this coordinator"):
        coordinator.transaction().enlist(other)
    with pytest.raises(ConfigError, match="two resources"):
        Coordinator(tmp_path / "log2", [left, other])
    with pytest.raises(ConfigError, match="name="):
        Coordinator(tmp_path / "log2", [Files(tmp_path / "left", "a b")])


def test_a_resource_that_is_missing_after_a_restart(tmp_path: Path, left: Files, right: Files) -> None:
    coordinator = Coordinator(tmp_path / "log", [left, right])
    coordinator.recover()
    tx = fill(coordinator, left, right, "a")
    tx.prepare()
    left.away = right.away = True
    tx.commit()
    coordinator.close()
    left.away = right.away = False
    with Coordinator(tmp_path / "log", [left]) as later:
        assert "made without this resource" in later.recover().pending[0]
    with Coordinator(tmp_path / "log", [left, right]) as later:
        assert later.recover().committed == (tx.id,)


def test_a_branch_that_somebody_has_ended_by_hand(
    coordinator: Coordinator, left: Files, right: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit says so, after it has told all the others; so does each recovery, until it is mended."""
    tx = fill(coordinator, left, right, "a")
    tx.prepare()
    right.away = True
    tx.commit()
    right.away = False

    def by_hand(text: str, *, commit: bool) -> None:
        raise OtherwiseEnded("rolled back by Otto")

    with monkeypatch.context() as patch:
        patch.setattr(right, "settle", by_hand)
        assert coordinator.recover().otherwise == ("right: rolled back by Otto",)
        assert coordinator.open == (tx.id,)
        tx = fill(coordinator, right, left, "b")
        with pytest.raises(OtherwiseEnded, match="but not everywhere: right: rolled back by Otto"):
            tx.commit()
        assert left.names == ["a", "b"]


def test_closed_and_forked(tmp_path: Path, left: Files) -> None:
    coordinator = Coordinator(tmp_path / "log", [left])
    coordinator.recover()
    tx = coordinator.transaction()
    child = os.fork()
    if child == 0:
        try:
            coordinator.transaction()
        except ClientForked:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    coordinator.close()
    with pytest.raises(ClientClosed):
        tx.enlist(left)
    with pytest.raises(ClientClosed):
        coordinator.recover()


# ---------------------------------------------------------------------------- the package `transaction`


@pytest.fixture
def manager():
    package = pytest.importorskip("transaction", reason="transaction is not installed: it comes with the extra xa")
    made = package.TransactionManager()
    yield made
    made.abort()


def test_a_transaction_of_the_package_carries_ours(
    coordinator: Coordinator, left: Files, right: Files, manager
) -> None:
    with manager:
        join(coordinator, manager).enlist(left).append("a")
        join(coordinator, manager).enlist(right).append("a")  # the same
    assert (left.names, right.names) == (["a"], ["a"])
    with manager:
        join(coordinator, manager).enlist(left).append("b")  # another
    assert left.names == ["a", "b"]


def test_an_abort_of_the_package(coordinator: Coordinator, left: Files, right: Files, manager) -> None:
    with pytest.raises(ValueError, match="mine"), manager:
        join(coordinator, manager).enlist(left).append("a")
        raise ValueError("mine")
    assert left.names == []
    assert coordinator.open == ()


def test_another_data_manager_that_votes_no(coordinator: Coordinator, left: Files, right: Files, manager) -> None:
    """Ours is prepared before it, and rolled back."""

    class No(DataManager):
        def tpc_vote(self, transaction: object) -> None:
            assert left.prepared == 1
            raise ValueError("no")

    manager.begin()
    join(coordinator, manager).enlist(left).append("a")
    manager.get().join(No(coordinator.transaction(), manager, "~last"))
    with pytest.raises(ValueError, match="no"):
        manager.commit()
    manager.abort()
    assert (left.names, left.prepared) == ([], 0)


def test_one_of_ours_that_refuses(coordinator: Coordinator, left: Files, right: Files, manager) -> None:
    right.refuses = True
    manager.begin()
    tx = join(coordinator, manager)
    tx.enlist(left).append("a")
    tx.enlist(right).append("a")
    with pytest.raises(TransactionFailed, match="right refuses"):
        manager.commit()
    manager.abort()
    assert left.names == []
    assert tx.state == "rolled back"
