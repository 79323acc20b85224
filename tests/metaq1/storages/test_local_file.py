"""Offsets in a local file: Java's format, shared by consumers and processes, whole after any crash."""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
from pathlib import Path

import pytest

from metaq.errors import ConfigError
from metaq.metaq1 import Partition
from metaq.metaq1.storages import local_file
from metaq.metaq1.storages.local_file import LocalFileOffsetStorage
from metaq.metaq1.storages.storage import BulkLoading, OffsetStorage, StoredOffset, load_all
from tests.support import PATIENCE

P0, P1 = Partition(0, 0), Partition(0, 1)
JAVA = '{"G":[{"topic":"test","partition":{"brokerId":0,"partition":1},"offset":123,"messageId":77,"modified":false}]}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "offsets" / "file"


@pytest.fixture
def storage(path: Path) -> LocalFileOffsetStorage:
    return LocalFileOffsetStorage(path)


def test_what_is_committed_is_there_for_another_instance(storage, path):
    assert storage.load("t", "g", P0) is None
    storage.init_offset("t", "g", P0, 5)
    assert storage.load("t", "g", P0) is None
    assert not path.exists()
    first, second = StoredOffset("t", P0, 7, -5468926395948204032), StoredOffset("t", P1, 2**63 - 1)
    storage.commit_offset("g", [first, second])
    storage.close()
    other = LocalFileOffsetStorage(path)
    assert [other.load("t", "g", each) for each in (P0, P1)] == [first, second]
    assert other.load("u", "g", P0) is None
    assert other.load("t", "h", P0) is None
    assert load_all(other, "g", [("t", P1), ("u", P1)]) == {("t", P1): second}


def test_it_is_a_storage():
    kept: OffsetStorage = LocalFileOffsetStorage("~/offsets")
    assert isinstance(kept, BulkLoading)
    assert "~" not in str(LocalFileOffsetStorage("~/offsets").path)


def test_javas_file(storage, path):
    """Read, and written in the same form, whatever else is in it."""
    path.parent.mkdir()
    path.write_text(JAVA)
    assert storage.load("test", "G", P1) == StoredOffset("test", P1, 123, 77)
    storage.commit_offset("G", [StoredOffset("test", P0, 9)])
    assert json.loads(path.read_text()) == {
        "G": [
            {"topic": "test", "partition": {"brokerId": 0, "partition": 1}, "offset": 123, "messageId": 77, "modified": False},
            {"topic": "test", "partition": {"brokerId": 0, "partition": 0}, "offset": 9, "messageId": -1, "modified": False},
        ]
    }  # fmt: skip


def test_an_empty_file_is_one_without_offsets(storage, path):
    """Java's client makes it so."""
    path.parent.mkdir()
    path.touch()
    assert storage.load("t", "g", P0) is None
    storage.commit_offset("g", [StoredOffset("t", P0, 1)])
    assert storage.load("t", "g", P0) == StoredOffset("t", P0, 1)


@pytest.mark.parametrize("text", ["{", '{"G":[{"topic":1}]}', "[]", JAVA.replace("123", '"x"')])
def test_a_file_that_is_no_such_is_left_alone(storage, path, text):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"the file of offsets {path} cannot be read"):
        storage.load("t", "g", P0)
    with pytest.raises(ConfigError, match="move it away"):
        storage.commit_offset("g", [StoredOffset("t", P0, 1)])
    assert path.read_text() == text


def test_a_negative_offset_is_refused(storage, path):
    with pytest.raises(ValueError, match="offset -1 of t 0-0"):
        storage.commit_offset("g", [StoredOffset("t", P0, -1)])
    assert not path.exists()


def test_what_has_not_changed_is_not_written(storage, monkeypatch):
    written = []
    original = local_file.write_whole
    monkeypatch.setattr(local_file, "write_whole", lambda *args: (written.append(args), original(*args)))
    for offset in (1, 1, 2, 2):
        storage.commit_offset("g", [StoredOffset("t", P0, offset)])
    storage.commit_offset("g", [])
    assert len(written) == 2


def test_a_crash_while_it_is_written_leaves_what_was_there(storage, path, monkeypatch):
    storage.commit_offset("g", [StoredOffset("t", P0, 1)])

    def crash(*_):
        raise OSError(5, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", crash)
        with pytest.raises(OSError, match="input/output"):
            storage.commit_offset("g", [StoredOffset("t", P0, 2)])
    assert LocalFileOffsetStorage(path).load("t", "g", P0) == StoredOffset("t", P0, 1)
    storage.commit_offset("g", [StoredOffset("t", P0, 2)])
    assert LocalFileOffsetStorage(path).load("t", "g", P0) == StoredOffset("t", P0, 2)


def commit_many(path: str, group: str, count: int) -> None:
    storage = LocalFileOffsetStorage(path)
    for offset in range(1, count + 1):
        storage.commit_offset(group, [StoredOffset("t", P0, offset)])


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_groups_of_several_writers_do_not_overwrite_each_other(path, kind):
    """Each with an instance of its own, as consumers have."""
    pool: concurrent.futures.Executor = (
        concurrent.futures.ThreadPoolExecutor(4)
        if kind == "threads"
        else concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    )
    with pool:
        for done in [pool.submit(commit_many, str(path), f"g{number}", 20) for number in range(4)]:
            done.result(PATIENCE)
    storage = LocalFileOffsetStorage(path)
    for number in range(4):
        stored = storage.load("t", f"g{number}", P0)
        assert stored is not None
        assert stored.offset == 20
