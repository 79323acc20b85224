"""`repair` makes derived files anew, and leaves what is not derived."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from metaq.clock import FakeClock
from metaq.errors import StoreLocked
from metaq.store.upkeep.check import check
from metaq.store.upkeep.repair import repair
from metaq.store.upkeep.scrub import scrub
from tests.store.support import START_MS, log_file, open_store, overwrite, read_all
from tests.store.upkeep.support import all_damage, filled, with_tables


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = filled(tmp_path_factory.mktemp("whole") / "store")
    scrub(root)
    return root


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "store")


def contents(root: pathlib.Path, part: str) -> dict[pathlib.Path, bytes]:
    return {path.relative_to(root): path.read_bytes() for path in (root / part).rglob("*") if path.is_file()}


def damage_unit(root):
    overwrite(root / "consumequeue/orders/1" / f"{0:020d}", 400, b"\xff")


def lose_queue(root):
    shutil.rmtree(root / "consumequeue/orders/0")


def damage_index(root):
    overwrite(min((root / "index").iterdir()), 300, b"\xff\xff")


def damage_checkpoint(root):
    overwrite(root / "checkpoint", 2, b"\x11")


def damage_tails(root):
    path = root / "config/metaqTails.json"
    path.write_bytes(path.read_bytes().replace(b'"log_end":', b'"log_end":1'))


def damage_sums(root):
    overwrite(root / "sums" / log_file(root).name, 33, b"\x99")


def damage_all(root):
    for one in (damage_unit, lose_queue, damage_index, damage_checkpoint, damage_tails, damage_sums):
        one(root)


@pytest.mark.parametrize(
    "damage", [damage_unit, lose_queue, damage_index, damage_checkpoint, damage_tails, damage_sums, damage_all]
)
def test_what_is_derived_is_made_anew_as_it_was(folder, whole, damage):
    """The dry run says it and changes nothing; afterwards the folder is clean, and its queues are byte for byte those of before."""
    damage(folder)
    assert all_damage(check(folder))
    before = {part: contents(folder, part) for part in ("consumequeue", "index", "config", "commitlog")}
    said = repair(folder, dry_run=True)
    assert {part: contents(folder, part) for part in before} == before
    done = repair(folder)
    assert done.done == said.done != []
    assert done.left == []
    assert all_damage(check(folder)) == []
    for part in ("consumequeue", "commitlog"):
        assert contents(folder, part) == contents(whole, part)
    with open_store(folder, FakeClock(START_MS + 1_000_000)) as store:
        assert sum(len(read_all(store, "orders", queue_id)) for queue_id in range(2)) == 500


def test_a_damaged_record_stays_and_what_lies_behind_it_is_kept(folder):
    """Also where queues and index are rebuilt at the same time: the log does not end at it."""
    overwrite(log_file(folder), 89, b"\xff\xff")
    damage_all(folder)
    done = repair(folder)
    assert [one.path for one in done.left] == [str(log_file(folder))]
    assert not (folder / "cut").exists()
    with open_store(folder, FakeClock(START_MS + 1_000_000)) as store:
        assert [store.reader.queue("orders", queue_id).max_offset for queue_id in range(2)] == [250, 250]
        assert len(read_all(store, "orders", 1)) == 250


def test_everything_can_be_made_anew(folder, whole):
    """Of a folder that is whole."""
    assert repair(folder).done == []
    assert len(repair(folder, everything=True).done) == 4
    assert all_damage(check(folder)) == []
    assert contents(folder, "consumequeue") == contents(whole, "consumequeue")


def test_tables_and_a_running_store_are_left_alone(folder):
    """A table is not derived from the log: it is named. A folder in use is refused."""
    with_tables(folder)
    overwrite(folder / "config/topics.json", 30, b"\xff")
    done = repair(folder)
    assert done.done == []
    assert done.left[0].path == str(folder / "config/topics.json")
    with open_store(folder, FakeClock(START_MS + 1_000_000)), pytest.raises(StoreLocked):
        repair(folder)
