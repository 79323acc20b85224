"""`metaq meta1 move-partitions` and `delete-partitions`, on folders as the original server lays them out."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from metaq.cli.meta1 import folders
from metaq.cli.meta1.folders import JOURNAL, delete_partitions, move_partitions
from metaq.errors import ConfigError, StoreFailed
from tests.support import run_metaq

SEGMENT = "00000000000000000000.meta"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Partitions 0 to 4 of `orders`, others beside; each file tells its first number."""
    for name in (*(f"orders-{number}" for number in range(5)), "orders-x-1", "orders-01", "other-7"):
        (tmp_path / name).mkdir()
        (tmp_path / name / SEGMENT).write_text(name)
    return tmp_path


def layout(folder: Path) -> dict[str, str]:
    return {path.name: (path / SEGMENT).read_text() for path in folder.iterdir() if path.is_dir()}


def words(folder: Path, *more: str, topic: str = "orders") -> tuple[str, ...]:
    return ("--data-dir", str(folder), "--topic", topic, *more)


@pytest.mark.parametrize("offset", [2, -1, 7])
def test_a_move_goes_through_names_that_are_taken_by_partitions_that_move(data: Path, offset: int) -> None:
    """Upwards and downwards; what is not in the range, and folders that are no partitions, stay."""
    before = layout(data)
    done = run_metaq("meta1", "move-partitions", *words(data, "--start", "1", "--end", "4", f"--offset={offset}"))
    if offset == -1:
        assert done.returncode == 2
        assert "orders-0 is in the way of partition 1" in done.stderr
        assert layout(data) == before
        (data / "orders-0").rename(data / "orders-50")
        done = run_metaq("meta1", "move-partitions", *words(data, "--start", "1", "--end", "4", "--offset=-1"))
    assert done.returncode == 0, done.stderr
    now = layout(data)
    assert {f"orders-{number + offset}": f"orders-{number}" for number in range(1, 5)}.items() <= now.items()
    assert len(now) == len(before)
    assert not (data / JOURNAL).exists()


@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("offset", [2, -2])
def test_an_interrupted_move_goes_on(data: Path, monkeypatch: pytest.MonkeyPatch, steps: int, offset: int) -> None:
    """After any number of renames; others are refused until then, and a folder that somebody exchanged is not touched."""
    for number in (4, 3, 2, 1, 0):
        (data / f"orders-{number}").rename(data / f"orders-{number + 10}")
    true, made = folders._rename, itertools.count()

    def breaking(*given):
        if next(made) == steps:
            raise KeyboardInterrupt
        return true(*given)

    with monkeypatch.context() as patch:
        patch.setattr(folders, "_rename", breaking)
        with pytest.raises(KeyboardInterrupt):
            move_partitions(data, "orders", 10, 14, offset)
    with pytest.raises(ConfigError, match="was interrupted"):
        move_partitions(data, "orders", 10, 14, offset * 5)
    with pytest.raises(ConfigError, match="was interrupted"):
        delete_partitions(data, "orders", 10, 14)
    done = move_partitions(data, "orders", 10, 14, offset)
    assert (len(done.before), len(done.moved)) == (steps, 5 - steps)
    assert {f"orders-{number + 10 + offset}": f"orders-{number}" for number in range(5)}.items() <= layout(data).items()
    assert not (data / JOURNAL).exists()


def test_a_folder_that_was_exchanged_in_between_is_not_moved(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said with the file that tells what was to be done."""
    with monkeypatch.context() as patch:
        patch.setattr(folders, "_rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            move_partitions(data, "orders", 4, 4, 3)
    (data / "orders-4").rename(data / "aside")
    (data / "orders-4").mkdir()
    with pytest.raises(StoreFailed, match="is not the folder"):
        move_partitions(data, "orders", 4, 4, 3)
    assert not (data / "orders-7").exists()


def test_partitions_are_deleted_after_a_yes(data: Path) -> None:
    """Not without; -f asks nothing; the others stay."""
    asked = run_metaq("meta1", "delete-partitions", *words(data, "--start", "1", "--end", "2"), stdin="n\n")
    assert asked.returncode == 1
    assert len(layout(data)) == 8
    done = run_metaq("meta1", "delete-partitions", *words(data, "--start", "1", "--end", "2", "-f", "--json"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"topic": "orders", "deleted": [1, 2]}
    assert sorted(layout(data)) == ["orders-0", "orders-01", "orders-3", "orders-4", "orders-x-1", "other-7"]


def test_nothing_is_asked_of_partitions_that_do_not_exist_or_are_in_use(data: Path) -> None:
    def told(start: str) -> tuple[int, bool]:
        done = run_metaq("meta1", "delete-partitions", *words(data, "--start", start, "--end", "9"), stdin="n\n")
        return done.returncode, "[y/N]" in done.stderr

    before = layout(data)
    assert told("7") == (3, False)
    with (data / "orders-4" / SEGMENT).open("rb"):
        assert told("4") == (2, False)
    assert told("4") == (1, True)
    assert layout(data) == before


def test_what_an_interrupted_delete_left_goes_with_the_next(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that starts in between sees no half partition: the folder has another name."""

    def breaking(path):
        (path / SEGMENT).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folders.shutil, "rmtree", breaking)
        with pytest.raises(KeyboardInterrupt):
            delete_partitions(data, "orders", 3, 4)
    assert not [path for path in data.iterdir() if path.name in {"orders-3", "orders-4"}]
    assert [path for path in data.iterdir() if "deleting" in path.name]
    assert delete_partitions(data, "orders", 3, 4) == [3, 4]
    assert not [path for path in data.iterdir() if "deleting" in path.name]


def test_what_is_refused_says_why(data: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A server that has the folder open; a store of ours; no such topic, folder or range. Nothing is changed."""
    ours = tmp_path_factory.mktemp("ours")
    (ours / "commitlog").mkdir()
    for folder, more, topic, code, why in (
        (ours, ("--start", "0", "--end", "1"), "orders", 2, "metaq topic"),
        (data / "none", ("--start", "0", "--end", "1"), "orders", 2, "there is no data folder"),
        (data, ("--start", "7", "--end", "9"), "orders", 3, "there are 0, 1, 2, 3, 4"),
        (data, ("--start", "0", "--end", "1"), "nope", 3, "no other of it"),
        (data, ("--start", "3", "--end", "1"), "orders", 2, "no range"),
        (data, ("--start", "0", "--end", "1"), "../x", 2, "no name of a topic"),
    ):
        for command in (("delete-partitions", "-f"), ("move-partitions", "--offset", "9")):
            done = run_metaq("meta1", *command, *words(folder, *more, topic=topic))
            assert done.returncode == code, done.stderr
            assert why in done.stderr
    before = layout(data)
    with (data / "orders-2" / SEGMENT).open("rb"):
        for command in (("delete-partitions", "-f"), ("move-partitions", "--offset", "9")):
            done = run_metaq("meta1", *command, *words(data, "--start", "0", "--end", "4"))
            assert done.returncode == 2
            assert "stop the server first" in done.stderr
    with pytest.raises(ConfigError, match="offset of 0"):
        move_partitions(data, "orders", 0, 1, 0)
    with pytest.raises(ConfigError, match="cannot exist"):
        move_partitions(data, "orders", 0, 1, -1)
    assert layout(data) == before
