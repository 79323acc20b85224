"""The Parquet snapshot, batch by batch, with crashes between any two operations on files. The oracle is pyarrow."""

from __future__ import annotations

import datetime as dt
import decimal
import os
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.clock import FakeClock
from metaq.errors import ChangesBroken, ConfigError, StoreCorrupt
from metaq.pipelines.changes.options import ChangesOptions
from metaq.pipelines.changes.snapshot import KEY_COLUMN, SEQUENCE_COLUMN, SnapshotFolder, snapshot
from metaq.pipelines.changes.to_snapshot import SnapshotTarget
from tests.effort import repeats
from tests.pipelines.changes import bodies
from tests.pipelines.changes.batches import apply, body

QUERY = "12345678-query"


def options(**more) -> ChangesOptions:
    return ChangesOptions(**{"topics": "t", "folder": "x", "buckets": 3, **more})


def rows(folder: Path, table: str | None = None) -> dict:
    """id → row of a table, as plain pyarrow reads the files that the snapshot names."""
    found = {}
    for row in snapshot(folder).dataset(table).to_table().to_pylist():
        assert row["id"] not in found
        row.pop(KEY_COLUMN), row.pop(SEQUENCE_COLUMN)
        found[row["id"]] = {name: value for name, value in row.items() if value is not None}
    return found


def test_batches_become_the_latest_state(tmp_path):
    """Inserts replace, updates merge, deletes remove; new columns come, and numbers become wider."""
    target, chosen = SnapshotTarget(tmp_path, options()), options()
    apply(target, chosen, QUERY, 1, [body("insert", n, 1, {"a": n}) for n in range(8)])
    assert rows(tmp_path) == {n: {"id": n, "a": n} for n in range(8)}
    figures, problems = apply(
        target, chosen, QUERY, 2,
        [body("update", 1, 2, {"b": "x"}), body("delete", 2, 2), body("insert", 3, 2, {"b": "y"}), body("update", 1, 3, {"c": 1})],
    )  # fmt: skip
    assert (figures, problems) == ({"applied": 4, "puts": 2, "deletes": 1, "repeats": 0}, [])
    expected = {n: {"id": n, "a": n} for n in range(8)}
    expected[1] |= {"b": "x", "c": 1}
    expected[3] = {"id": 3, "b": "y"}
    del expected[2]
    assert rows(tmp_path) == expected
    apply(target, chosen, QUERY, 3, [body("update", 1, 4, {"c": 1.5})])
    assert pq.read_schema(snapshot(tmp_path).files()[0]).field("c").type == "double"
    apply(target, chosen, QUERY, 4, [body("update", 7, 4, {"a": "text"})])
    expected = {n: {**row, **({"a": str(row["a"])} if "a" in row else {})} for n, row in expected.items()}
    expected[1]["c"], expected[7]["a"] = 1.5, "text"
    assert rows(tmp_path) == expected
    assert {file.schema_arrow.field("a").type for file in map(pq.ParquetFile, snapshot(tmp_path).files())} == {"string"}


def test_typed_values_are_typed_in_the_files(tmp_path):
    """Canal's texts and Debezium's numbers, as what they mean."""
    chosen = options(sequence_scope="none", key_columns="id")
    target = SnapshotTarget(tmp_path, chosen)
    apply(target, chosen, QUERY, 1, [bodies.as_bytes(bodies.CANAL_INSERT)])
    assert rows(tmp_path)[1] == {
        "id": 1, "state": "new", "amount": decimal.Decimal("12.50"), "made": dt.datetime.fromisoformat("2026-03-01T10:00"),
        "photo": b"\x00\xff",
    }  # fmt: skip


def test_a_batch_that_comes_again_changes_nothing(tmp_path):
    """Also in the next process; a checkpoint that is older is refused."""
    chosen = options()
    apply(SnapshotTarget(tmp_path, chosen), chosen, QUERY, 1, [body("insert", 1, 1, {"a": 1})])
    target = SnapshotTarget(tmp_path, chosen)
    assert apply(target, chosen, QUERY, 1, [body("insert", 1, 1, {"a": 1})]) is None
    apply(target, chosen, QUERY, 2, [body("insert", 1, 2, {"a": 2})])
    with pytest.raises(ConfigError, match="about to do batch 1: it is an older copy"):
        apply(SnapshotTarget(tmp_path, chosen), chosen, QUERY, 1, [])


def test_a_checkpoint_that_did_not_make_the_snapshot_is_refused(tmp_path):
    """Old changes would be applied over new ones."""
    chosen = options()
    apply(SnapshotTarget(tmp_path, chosen), chosen, QUERY, 1, [body("insert", 1, 1)])
    with pytest.raises(ConfigError, match="is new or empty: old changes would be applied over new ones"):
        SnapshotTarget(tmp_path, chosen).guard(tmp_path / "_checkpoint")
    with pytest.raises(ConfigError, match="has 3 buckets, which stay: set buckets = 3"):
        SnapshotTarget(tmp_path, options(buckets=4))


def test_a_deleted_key_is_not_brought_back_by_an_older_change(tmp_path):
    """Its sequence is known for a while; in the file of the bucket's deleted keys, which no reader of rows sees."""
    chosen, clock = options(buckets=1, forget_deleted_seconds=60), FakeClock()
    target = SnapshotTarget(tmp_path, chosen, clock)
    apply(target, chosen, QUERY, 1, [body("insert", 1, 1), body("delete", 1, 5)])
    assert rows(tmp_path) == {}
    figures, problems = apply(target, chosen, QUERY, 2, [body("update", 1, 4, {"a": 1}), body("delete", 1, 5)])
    assert (figures["applied"], figures["repeats"], [one.what for one in problems]) == (0, 1, ["step_back"])
    assert rows(tmp_path) == {}
    clock.advance(60)
    apply(target, chosen, QUERY, 3, [body("update", 1, 4, {"a": 1})])
    assert rows(tmp_path) == {}
    clock.advance(1)
    apply(target, chosen, QUERY, 4, [body("insert", 2, 1)])
    apply(target, chosen, QUERY, 5, [body("insert", 1, 2)])
    assert set(rows(tmp_path)) == {1, 2}


@pytest.mark.parametrize("scope", ["key", "table", "queue"])
def test_gaps_and_steps_back_are_seen_across_batches(tmp_path, scope):
    """By key in the buckets, by table and by queue as the queue is read: reported, or nothing of the batch is applied."""
    chosen = options(sequence_scope=scope, dense=True, on_gap="report")
    target = SnapshotTarget(tmp_path, chosen)
    apply(target, chosen, QUERY, 1, [body("insert", 1, 1, {"a": 1}), body("update", 1, 2, {"a": 2})])
    figures, problems = apply(
        target, chosen, QUERY, 2, [body("update", 1, 2, {"a": 9}), body("update", 1, 4, {"a": 4}), body("update", 1, 3, {"a": 3})]
    )  # fmt: skip
    assert sorted(one.what for one in problems) == ["gap", "step_back"]
    assert (figures["applied"], figures["repeats"], rows(tmp_path)[1]["a"]) == (1, 1, 4)
    strict = options(sequence_scope=scope, dense=True)
    target = SnapshotTarget(tmp_path, strict)
    with pytest.raises(ChangesBroken, match=r"sequence 7 of .* comes after 5: something between them is missing"):
        apply(target, strict, QUERY, 3, [body("update", 1, 5, {"a": 5}), body("update", 1, 7, {"a": 7})])
    assert rows(tmp_path)[1]["a"] == 4
    apply(target, chosen, QUERY, 3, [body("update", 1, 5, {"a": 5}), body("update", 1, 7, {"a": 7})])
    assert rows(tmp_path)[1]["a"] == 7


def test_in_a_queue_without_density_equal_sequences_follow_each_other(tmp_path):
    """Two rows of one transaction have one place in the log."""
    chosen = options(sequence_scope="queue")
    target = SnapshotTarget(tmp_path, chosen)
    figures, problems = apply(
        target, chosen, QUERY, 1, [body("insert", 1, 5), body("insert", 2, 5), body("insert", 3, 4)]
    )
    assert (figures["applied"], [one.what for one in problems]) == (2, ["step_back"])


def test_a_key_that_changes_its_columns_or_kind_is_refused(tmp_path):
    """Its rows could not be found again."""
    chosen = options()
    target = SnapshotTarget(tmp_path, chosen)
    apply(target, chosen, QUERY, 1, [body("insert", 1, 1)])
    with pytest.raises(ConfigError, match=r"id, of the key of shop\.t, was long and is string now"):
        apply(target, chosen, QUERY, 2, [body("insert", "x", 1)])
    with pytest.raises(ConfigError, match=r"the key of shop\.t is id and id, line: it must be one"):
        apply(target, chosen, QUERY, 2, [body("insert", 1, 1).replace(b'{"id": 1}', b'{"id": 1, "line": 2}')])


def test_tables_lie_apart(tmp_path):
    """Each with its columns; who reads names one."""
    chosen = options()
    target = SnapshotTarget(tmp_path, chosen)
    apply(target, chosen, QUERY, 1, [body("insert", 1, 1, {"a": 1}), body("insert", 1, 1, {"b": 1}, table="shop/x y")])
    assert snapshot(tmp_path).tables == ["shop.t", "shop/x y"]
    assert rows(tmp_path, "shop/x y") == {1: {"id": 1, "b": 1}}
    with pytest.raises(ConfigError, match=r"several tables, or none: name one; it has shop\.t, shop/x y"):
        snapshot(tmp_path).dataset()
    with pytest.raises(ConfigError, match="has no table z"):
        snapshot(tmp_path).files("z")
    with pytest.raises(ConfigError, match="holds no snapshot yet"):
        snapshot(tmp_path / "elsewhere")


def test_older_generations_stay_readable_for_a_while(tmp_path):
    """So many of them, or so long; then their files are gone, and no others."""
    chosen = options(keep_generations=2, keep_seconds=0)
    target = SnapshotTarget(tmp_path, chosen)
    seen = []
    for number in range(1, 6):
        apply(target, chosen, QUERY, number, [body("insert", n, number, {"a": number}) for n in range(6)])
        seen.append(snapshot(tmp_path))
    assert not any(path.exists() for path in seen[0].files())
    assert [row["a"] for row in seen[-2].dataset().to_table().to_pylist()] == [4] * 6
    assert len(list((tmp_path / "_snapshot").iterdir())) == 2
    files = {str(path.relative_to(tmp_path)) for path in (tmp_path / "data").rglob("*.*") if path.is_file()}
    assert files == seen[-1]._manifest.paths | seen[-2]._manifest.paths
    patient = options(keep_generations=1, keep_seconds=3600)
    target = SnapshotTarget(tmp_path, patient)
    for number in range(6, 9):
        apply(target, patient, QUERY, number, [body("insert", 1, number, {"a": number})])
    assert len(list((tmp_path / "_snapshot").iterdir())) == 5


def test_a_file_that_somebody_took_away_is_told(tmp_path):
    """And not taken for an empty bucket."""
    chosen = options(buckets=1)
    target = SnapshotTarget(tmp_path, chosen)
    apply(target, chosen, QUERY, 1, [body("insert", 1, 1)])
    snapshot(tmp_path).files()[0].unlink()
    with pytest.raises(StoreCorrupt, match=r"is missing in .*: the snapshot's manifest names it"):
        apply(target, chosen, QUERY, 2, [body("insert", 2, 1)])
    next((tmp_path / "_snapshot").iterdir()).write_text("{")
    with pytest.raises(StoreCorrupt, match=r"the manifest .* cannot be read"):
        SnapshotTarget(tmp_path, chosen)


class Crash(BaseException):
    """A process that is gone: nothing catches it."""


class CrashAt:
    """Lets so many operations on files happen, and ends at the next: before it, as a kill -9 would."""

    def __init__(self, monkeypatch, left: int) -> None:
        self.left, self.done = left, 0
        for owner, name in [
            (os, "fsync"), (Path, "rename"), (Path, "unlink"), (Path, "mkdir"), (Path, "open"), (pq, "write_table"),
        ]:  # fmt: skip
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, act):
        def counted(*args, **named):
            if self.left == self.done:
                raise Crash
            self.done += 1
            return act(*args, **named)

        return counted


BATCHES = [
    [body("insert", n, 1, {"a": n}) for n in range(4)],
    [body("update", 1, 2, {"b": "x"}), body("delete", 2, 2), body("update", 0, 2, {"a": 0.5})],
    [body("insert", 2, 3, {"a": 7}), body("update", 2, 1, {"a": 9}), body("update", 3, 2, {"a": "text"})],
]
STATES = [
    {},
    {n: {"id": n, "a": n} for n in range(4)},
    {0: {"id": 0, "a": 0.5}, 1: {"id": 1, "a": 1.0, "b": "x"}, 3: {"id": 3, "a": 3.0}},
    {0: {"id": 0, "a": "0.5"}, 1: {"id": 1, "a": "1", "b": "x"}, 2: {"id": 2, "a": "7"}, 3: {"id": 3, "a": "text"}},
]


def run(folder: Path, chosen: ChangesOptions) -> None:
    """What a start of the pipeline does: all batches, from the one that Spark had not committed."""
    target = SnapshotTarget(folder, chosen)
    newest = SnapshotFolder(folder).last()
    for number in range(max(1, newest.batch if newest else 1), len(BATCHES) + 1):
        apply(target, chosen, QUERY, number, BATCHES[number - 1])


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=[pytest.mark.all, pytest.mark.long])])
def test_a_crash_between_any_two_file_operations_costs_nothing(tmp_path, monkeypatch, step):
    """At each point readers see a state between two batches, and the next start brings what a whole run brings."""
    chosen = options(keep_generations=1, keep_seconds=0)
    for point in range(0, 1000, step):
        folder = tmp_path / str(point)
        with monkeypatch.context() as patch:
            crash = CrashAt(patch, point)
            try:
                run(folder, chosen)
            except Crash:
                ended = False
            else:
                ended = True
        newest = SnapshotFolder(folder).last() if folder.exists() else None
        if newest is not None:
            assert rows(folder) == STATES[newest.batch], point
            again = SnapshotTarget(folder, chosen)
            assert apply(again, chosen, QUERY, newest.batch, BATCHES[newest.batch - 1]) is None
        run(folder, chosen)
        assert rows(folder) == STATES[-1], point
        files = {str(path.relative_to(folder)) for path in (folder / "data").rglob("*.*") if path.is_file()}
        assert files == snapshot(folder)._manifest.paths, point
        if ended:
            break
    assert ended
    assert point >= crash.done > 50


OPS = st.sampled_from(["insert", "update", "delete"])


@settings(max_examples=repeats(25))
@given(
    st.lists(st.lists(st.tuples(OPS, st.integers(0, 6), st.integers(0, 20), st.sampled_from("ab"), st.integers()), max_size=8),
             max_size=4)
)  # fmt: skip
def test_the_files_are_what_a_dict_would_be(tmp_path_factory, all_batches):
    """Random changes with repeats and steps back, in any batches, each of which comes twice."""
    folder, chosen = tmp_path_factory.mktemp("snapshot"), options()
    state, applied = {}, {}
    target = SnapshotTarget(folder, chosen)
    for number, changes in enumerate(all_batches, 1):
        messages = [body(op, key, seq, {column: value % 1000}) for op, key, seq, column, value in changes]
        apply(target, chosen, QUERY, number, messages)
        assert apply(SnapshotTarget(folder, chosen), chosen, QUERY, number, messages) is None
        for op, key, seq, column, value in changes:
            if seq <= applied.get(key, -1):
                continue
            applied[key] = seq
            if op == "delete":
                state.pop(key, None)
            else:
                base = state.get(key, {"id": key}) if op == "update" else {"id": key}
                state[key] = base | {column: value % 1000}
    if any(all_batches):
        assert rows(folder) == state


def test_a_glob_is_no_reader(tmp_path):
    """It would see rows of several generations: the page says so."""
    chosen = options(buckets=1)
    target = SnapshotTarget(tmp_path, chosen)
    for number in (1, 2):
        apply(target, chosen, QUERY, number, [body("insert", 1, number)])
    assert len(ds.dataset(tmp_path / "data" / "shop.t").to_table()) == 2
    assert len(snapshot(tmp_path).dataset().to_table()) == 1
