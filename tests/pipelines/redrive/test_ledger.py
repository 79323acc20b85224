"""What a redrive writes down: after a crash at any point each message is known as sent, as not sent, or as planned. Without Spark."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError, StoreCorrupt, StoreFull
from metaq.pipelines.redrive import ledger as redrive_ledger
from metaq.pipelines.redrive.ledger import Head, Ledger, Witness
from metaq.pipelines.redrive.offset_ranges import count, first_gap, joined, pieces, ranges_of, within

HEAD = Head(ledger="redrive-1", topic="%DLQ%g", coordinator="a")
OFFSETS = st.sets(st.integers(0, 60))


def members(ranges):
    return {offset for start, end in ranges for offset in range(start, end)}


@given(OFFSETS, OFFSETS, st.integers(0, 60), st.integers(0, 60))
def test_ranges_are_sets_of_offsets(one, other, start, end):
    """In the fewest pieces."""
    first, second = ranges_of(sorted(one)), ranges_of(sorted(other))
    assert members(first) == one
    both = joined(first, second)
    assert members(both) == one | other
    assert all(stop < begin for (_, stop), (begin, _) in itertools.pairwise(both))
    assert members(within(first, start, end)) == {offset for offset in one if start <= offset < end}
    assert first_gap(first, start) == next(offset for offset in range(start, 100) if offset not in one)
    cut = list(pieces(first, 7))
    assert members(cut) == one
    assert all(0 < stop - begin <= 7 for begin, stop in cut)
    assert count({("a", 0): first}) == len(one)


def sent(ledger, offsets, queue=0, run="r"):
    ledger.plan(run, {("a", queue): ranges_of(offsets)}, {("a", queue): Witness(max(offsets), max(offsets) * 10)})
    ledger.end(sent=True)


def test_a_step_is_planned_then_sent_and_known_by_the_next_run(tmp_path):
    """What is not sent is void, and its number is not used again."""
    ledger = Ledger(tmp_path)
    ledger.begin(HEAD)
    sent(ledger, [3, 4, 5])
    ledger.plan("r", {("a", 1): [(0, 2)]}, {("a", 1): Witness(1, 10)})
    ledger.end(sent=False)
    ledger.plan("r", {("a", 0): [(0, 2)]}, {("a", 0): Witness(1, 10)})

    again = Ledger(tmp_path)
    assert (again.head, again.number, again.planned.number, again.planned.rows) == (HEAD, 3, 3, 2)
    assert (again.sent, again.witnesses) == ({("a", 0): [(3, 6)]}, {("a", 0): Witness(5, 50)})
    again.end(sent=True)
    assert Ledger(tmp_path).sent == again.sent == {("a", 0): [(0, 2), (3, 6)]}
    assert Ledger(tmp_path).witnesses == {("a", 0): Witness(5, 50)}
    assert Ledger(tmp_path).sent_by("r") == 5


def test_many_steps_become_one_file(tmp_path, monkeypatch):
    """And nothing changes by that, also where a crash leaves files that were merged."""
    monkeypatch.setattr(redrive_ledger, "MERGE_FILES", 3)
    ledger = Ledger(tmp_path)
    ledger.begin(HEAD)
    left: dict[Path, bytes] = {}
    for number in range(10):
        sent(ledger, [2 * number], queue=number % 2, run=f"r{number // 6}")
        left |= {path: path.read_bytes() for path in (tmp_path / "_steps").glob("*.json")}
        found = Ledger(tmp_path)
        assert (found.sent, found.number, found.sent_by("r1")) == (ledger.sent, number + 1, max(0, number - 5))
    assert len(list((tmp_path / "_steps").glob("*.json"))) == 1
    for path, data in left.items():
        path.write_bytes(data)
    assert Ledger(tmp_path).sent == ledger.sent
    assert count(ledger.sent) == 10


@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 20), min_size=1)), max_size=12), st.data())
def test_a_crash_at_any_write_leaves_every_step_known(tmp_path_factory, steps, data):
    """Sent, void, or planned and to be asked about; nothing sent is ever lost."""
    place = tmp_path_factory.mktemp("ledger")
    ledger = Ledger(place)
    ledger.begin(HEAD)
    expected: set[int] = set()
    for number, (is_sent, offsets) in enumerate(steps, 1):
        ledger.plan("r", {("a", 0): ranges_of(sorted(offsets))}, {})
        if data.draw(st.booleans(), label="crash"):
            ledger = Ledger(place)
            assert ledger.planned.number == number
        ledger.end(sent=is_sent)
        expected |= offsets if is_sent else set()
        if data.draw(st.booleans(), label="crash"):
            (place / "_steps" / ".0000000099.planned.json.tmp").write_bytes(b"{half")
            ledger = Ledger(place)
        assert (ledger.planned, ledger.number) == (None, number)
        assert members(ledger.sent.get(("a", 0), [])) == expected


def test_a_folder_is_of_one_topic(tmp_path):
    """Of whose messages it knows offsets."""
    Ledger(tmp_path).begin(HEAD)
    with pytest.raises(ConfigError, match="is of %DLQ%g, not of %DLQ%other: give each topic a folder"):
        Ledger(tmp_path).check_topic("%DLQ%other")


@pytest.mark.parametrize("name", ["_redrive.json", "_redriven.json", "_steps/0000000001.sent.json"])
def test_a_damaged_file_stops_the_run(tmp_path, name):
    """Going on without it would send twice."""
    ledger = Ledger(tmp_path)
    ledger.begin(HEAD)
    sent(ledger, [1])
    (tmp_path / name).write_bytes(b'{"v": 1')
    with pytest.raises(StoreCorrupt, match=f"{Path(name).name} cannot be read .* what was sent is not known"):
        Ledger(tmp_path)


def test_files_that_somebody_has_changed_stop_the_run(tmp_path):
    """A strange name, and a plan that comes back."""
    ledger = Ledger(tmp_path)
    ledger.begin(HEAD)
    sent(ledger, [1])
    sent(ledger, [2])
    old = (tmp_path / "_steps" / "0000000001.sent.json").rename(tmp_path / "_steps" / "0000000001.planned.json")
    with pytest.raises(StoreCorrupt, match="is older than other steps"):
        Ledger(tmp_path)
    old.rename(tmp_path / "_steps" / "copy.json")
    with pytest.raises(StoreCorrupt, match="is no file of a redrive"):
        Ledger(tmp_path)


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    """A step whose plan is not on disk is not sent."""
    ledger = Ledger(tmp_path)
    ledger.begin(HEAD)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            StoreFull, match=r"planned.json could not be written, which says what is sent: No space left"
        ):
            ledger.plan("r", {("a", 0): [(0, 2)]}, {})
    assert ledger.planned is None
    assert Ledger(tmp_path).planned is None
