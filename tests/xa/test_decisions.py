"""The file of decisions: what is read again after any crash, and what stops a start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from metaq.errors import ClientClosed, ConfigError, StoreCorrupt, StoreFailed, StoreFull, StoreLocked
from metaq.xa import decisions
from metaq.xa.decisions import BranchAt, Decisions

A, B = BranchAt("database", "t:1"), BranchAt("messages", "t:2@host:1")


def test_what_is_open_is_found_again(tmp_path: Path) -> None:
    """Noted, decided, over; with the same id."""
    first = Decisions(tmp_path / "new" / "log")
    for name in ("t1", "t2", "t3"):
        first.note(name, A)
        first.note(name, B)
    first.commit("t2", (A, B))
    first.commit("t3", (A,))
    first.over("t3")
    first.over("never")
    identity = first.id
    first.close()
    second = Decisions(tmp_path / "new" / "log")
    assert second.id == identity
    assert set(second.open) == {"t1", "t2"}
    assert second.open["t1"].committed is None
    assert second.open["t1"].branches == (A, B)
    assert second.open["t2"].committed == (A, B)
    second.close()


def test_a_crash_in_the_middle_of_a_record(tmp_path: Path) -> None:
    """Cut off anywhere, the last record counts as not written, and what comes next is readable."""
    log = Decisions(tmp_path)
    log.commit("t1", (A,))
    whole_before = len((tmp_path / "decisions").read_bytes())
    log.commit("t2", (B,))
    log.close()
    data = (tmp_path / "decisions").read_bytes()
    for size in range(whole_before, len(data) + 1):
        (tmp_path / "decisions").write_bytes(data[:size])
        again = Decisions(tmp_path)
        assert set(again.open) == ({"t1", "t2"} if size == len(data) else {"t1"}), size
        again.commit("t3", (A,))
        again.close()
        third = Decisions(tmp_path)
        assert "t3" in third.open
        third.close()


def test_a_damaged_last_line_was_not_written_and_any_other_stops_the_start(tmp_path: Path) -> None:
    log = Decisions(tmp_path)
    log.commit("t1", (A,))
    log.commit("t2", (B,))
    log.close()
    path = tmp_path / "decisions"
    first, second, _ = path.read_bytes().split(b"\n")
    path.write_bytes(first.replace(b"t1", b"t9") + b"\n" + second + b"\n")
    with pytest.raises(StoreCorrupt, match="line 1 is damaged"):
        Decisions(tmp_path)
    path.write_bytes(first + b"\n" + second.replace(b"t2", b"t9") + b"\n")
    again = Decisions(tmp_path)
    assert set(again.open) == {"t1"}
    again.close()


def test_a_folder_has_one_coordinator(tmp_path: Path) -> None:
    log = Decisions(tmp_path)
    with pytest.raises(StoreLocked, match="in use"):
        Decisions(tmp_path)
    log.close()
    Decisions(tmp_path).close()
    with pytest.raises(ClientClosed):
        log.note("t", A)


def test_an_identity_that_is_lost_or_odd(tmp_path: Path) -> None:
    """Another id would not find the branches of the decisions."""
    Decisions(tmp_path).close()
    identity = tmp_path / "identity.json"
    for text in ("nonsense", '{"id": "other"}', "{}"):
        identity.write_text(text)
        with pytest.raises(StoreCorrupt, match="identity"):
            Decisions(tmp_path)
    identity.unlink()
    with pytest.raises(StoreCorrupt, match="is missing"):
        Decisions(tmp_path)


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file"):
        Decisions(tmp_path / "file")


def test_it_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is open stays."""
    monkeypatch.setattr(decisions, "GROWN_BYTES", 2000)
    log = Decisions(tmp_path)
    log.commit("stays", (A, B))
    for number in range(200):
        log.commit(f"t{number}", (A,))
        log.over(f"t{number}")
        assert (tmp_path / "decisions").stat().st_size < 2300
    assert set(log.open) == {"stays"}
    log.close()
    again = Decisions(tmp_path)
    assert set(again.open) == {"stays"}
    again.close()


def test_a_decision_is_synced_and_the_end_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Decisions(tmp_path)
    synced: list[int] = []
    real = os.fsync

    def counted(handle: int) -> None:
        synced.append(os.fstat(handle).st_size)
        real(handle)

    monkeypatch.setattr(os, "fsync", counted)
    log.note("t", A)
    log.commit("t", (A,))
    size = (tmp_path / "decisions").stat().st_size
    assert synced[-1] == size
    assert len(synced) == 2
    log.over("t")
    assert len(synced) == 2
    log.close()


def test_a_disk_that_fails_ends_all_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be synced may be there or not: nothing more is decided in this run."""
    log = Decisions(tmp_path)

    def fails(handle: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(StoreFailed, match="decisions"):
            log.commit("t1", (A,))
    with pytest.raises(StoreFailed):
        log.commit("t2", (A,))
    log.close()
    again = Decisions(tmp_path)
    assert set(again.open) == {"t1"}
    again.close()


def test_a_full_disk_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Decisions(tmp_path)
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:5]))
    with pytest.raises(StoreFull):
        log.commit("t1", (A,))
    monkeypatch.undo()
    log.close()
    again = Decisions(tmp_path)
    assert again.open == {}
    again.close()
