"""Manifests and states that were cut short, as by somebody's copy of a full disk: whoever needs one says which it is and what to do,
touches nothing, and goes on when it is whole again. The archive in Spark is in test_archiving.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from metaq.archive.folder import ArchiveFolder
from metaq.archive.replay import ArchivedTopic
from metaq.clock import FakeClock
from metaq.errors import ConfigError, StoreCorrupt
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.dedupe import Ids, ids_of
from metaq.pipelines.changes.options import ChangesOptions
from metaq.pipelines.changes.snapshot import snapshot
from metaq.pipelines.changes.to_snapshot import SnapshotTarget
from metaq.pipelines.compact.options import CompactOptions
from metaq.pipelines.compact.service import Compactor, compact
from metaq.pipelines.metrics.folder import MetricsFolder, check_place
from metaq.pipelines.metrics.following import KNOWN_TYPE, Known
from metaq.pipelines.metrics.reading import read_metrics
from metaq.pipelines.metrics.state import Limits, MetricsState, Saved
from metaq.pipelines.mirror.state import MirrorState
from metaq.pipelines.mirror.state import load_state as load_mirror
from metaq.pipelines.redrive.ledger import Ledger
from metaq.pipelines.run import Run, refuse_others_folder, status_of
from tests.pipelines.archive.support import publish
from tests.pipelines.changes.batches import apply, body
from tests.pipelines.compact.test_service import NOW_MS
from tests.pipelines.redrive.test_ledger import HEAD, sent

A0 = MessageQueue("orders", "broker-a", 0)
CHANGES = ChangesOptions(topics="t", folder="x", buckets=1)


def archive(home: Path) -> None:
    for batch in range(1, 4):
        publish(ArchiveFolder(home / "out"), batch, {A0: range(batch * 10, batch * 10 + 10)})
    list(compactor(home).look())


def compactor(home: Path) -> Compactor:
    folder = ArchiveFolder(home / "out")
    made = Compactor(folder, CompactOptions(folder=str(folder.path)), 1, FakeClock(NOW_MS))
    made.prepare()
    return made


def compacted(home: Path) -> None:
    with Run("compact", home / "out") as run:
        compact(CompactOptions(folder=str(home / "out")), run.begin(), FakeClock(NOW_MS))


def replayed(home: Path) -> None:
    ArchivedTopic(home / "out", "orders").look()


def ids(home: Path) -> None:
    (home / "out").mkdir()
    ids_of(pa.array(["A" * 32]), np.array([1]), np.array([1])).save(home / "out" / "1.arrow")


def metrics(home: Path) -> None:
    known = Known()
    known.add("000000000001", np.zeros(3, KNOWN_TYPE))
    state = MetricsState(Saved(query="", window_ms=1000, began_ms=0), Limits(window_ms=1000), (), known)
    (home / "out").mkdir()
    MetricsFolder(home / "out").save(state, None, {})


def followed(home: Path) -> None:
    folder = MetricsFolder(home / "out")
    folder.known(folder.load())


def changes(home: Path) -> None:
    target = SnapshotTarget(home / "out", CHANGES)
    apply(target, CHANGES, "12345678-query", 1, [body("insert", 1, 1)])


def mirror(home: Path) -> None:
    (home / "out").mkdir()
    MirrorState("a", "b").save(home / "out")


def redrive(home: Path) -> None:
    ledger = Ledger(home / "out")
    ledger.begin(HEAD)
    sent(ledger, [1])


CASES: dict[str, tuple[Callable, str, Callable, str]] = {
    "compact, a manifest": (archive, "_manifests/*2.json", compacted, "restore it from a copy"),
    "compact, the newest": (archive, "_manifests/*3.json", compacted, "restore it from a copy"),
    "compact, a record": (archive, "_replacements/*.json", compacted, "restore it from a copy"),
    "replay, a manifest": (archive, "_manifests/*2.json", replayed, "restore it from a copy"),
    "replay, a record": (archive, "_replacements/*.json", replayed, "restore it from a copy"),
    "archive, ids": (ids, "1.arrow", lambda home: Ids.load(home / "out" / "1.arrow"), "or remove it, and then repeats"),
    "metrics": (metrics, "_state", lambda home: MetricsFolder(home / "out").load(), "or begin in an empty one"),
    "metrics, before Spark": (metrics, "_state", lambda home: check_place(home / "out", 1000), "restore it"),
    "metrics, shown": (metrics, "_state", lambda home: read_metrics(home / "out"), "restore it from a copy"),
    "metrics, followed": (metrics, "_followed/*.npy", followed, "restore it from a copy"),
    "changes": (changes, "_snapshot/*1.json", lambda home: SnapshotTarget(home / "out", CHANGES), "restore it"),
    "changes, a reader": (changes, "_snapshot/*1.json", lambda home: snapshot(home / "out"), "restore it from a copy"),
    "mirror": (mirror, "_mirror.json", lambda home: load_mirror(home / "out", "a", "b"), "restore it from a copy"),
    "redrive, its head": (redrive, "_redrive.json", lambda home: Ledger(home / "out"), "Bring it back"),
    "redrive, a step": (redrive, "_steps/*.json", lambda home: Ledger(home / "out"), "Bring it back"),
}  # fmt: skip
"""What makes the folder, which file is cut, who needs it, and what is to be done."""


def below(home: Path) -> dict[str, bytes]:
    """All files, but for what tells of runs."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.name not in ("_lease", "_run.json")
    }


@pytest.mark.parametrize("case", CASES)
def test_what_was_cut_short_is_named_with_the_way_and_nothing_is_touched(tmp_path, case):
    make, pattern, use, way = CASES[case]
    make(tmp_path)
    (path, *_) = sorted((tmp_path / "out").glob(pattern))
    whole = path.read_bytes()
    for length in sorted({0, 1, len(whole) // 2, len(whole) - 1}):
        path.write_bytes(whole[:length])
        before = below(tmp_path)
        with pytest.raises(StoreCorrupt, match=rf"{re.escape(str(path))}.*cannot be read") as told:
            use(tmp_path)
        assert way in str(told.value)
        assert below(tmp_path) == before
    path.write_bytes(whole)
    use(tmp_path)


def test_an_older_generation_that_cannot_be_read_stops_no_run(tmp_path, caplog):
    """Only tidying waits until it is gone."""
    target, chosen = SnapshotTarget(tmp_path, CHANGES), CHANGES.replace(keep_generations=1, keep_seconds=0)
    for number in range(1, 4):
        apply(target, chosen, "12345678-query", number, [body("insert", 1, number, {"a": number})])
    oldest = min((tmp_path / "_snapshot").iterdir())
    oldest.write_bytes(oldest.read_bytes()[:40])
    target = SnapshotTarget(tmp_path, chosen)
    apply(target, chosen, "12345678-query", 4, [body("insert", 1, 4, {"a": 4})])
    assert f"older generations stay for now: the manifest {oldest} cannot be read" in caplog.text
    assert [row["a"] for row in snapshot(tmp_path).dataset().to_table().to_pylist()] == [4]
    oldest.unlink()
    apply(target, chosen, "12345678-query", 5, [body("insert", 1, 5, {"a": 5})])
    assert len(list((tmp_path / "_snapshot").iterdir())) == 1


def test_a_run_s_status_that_was_cut_short_keeps_no_run_away(tmp_path):
    """It is for people: `status` says that it cannot be read, and the next run writes it anew."""
    with Run("mirror", tmp_path / "out") as run:
        run.begin()
    path = tmp_path / "out" / "_run.json"
    for length in (0, 50):
        path.write_bytes(path.read_bytes()[:length])
        refuse_others_folder("mirror", tmp_path / "out")
        with pytest.raises(ConfigError, match=f"the status {path} cannot be read"):
            status_of(tmp_path / "out")
        with Run("mirror", tmp_path / "out") as run:
            run.begin()
        assert status_of(tmp_path / "out").pipeline == "mirror"
