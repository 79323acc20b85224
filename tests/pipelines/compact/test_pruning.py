"""Manifests and records of what is no more: they go, and no reader can tell. Cut anywhere."""

from __future__ import annotations

import datetime as dt
import os
import shutil

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.archive.folder import ArchiveFolder
from metaq.archive.records import ArchivedFile, Manifest
from metaq.archive.replacements import Replacement, apply, ever_replaced, replacements, view
from metaq.archive.replay import ArchivedTopic
from metaq.clock import FakeClock
from metaq.model.queue import MessageQueue
from metaq.pipelines.compact.pruning import PublishedBatch, batches_over, files_over, records_over
from tests.effort import repeats
from tests.pipelines.archive.support import planned, publish, seen_by_plan, seen_plainly
from tests.pipelines.compact.test_service import GRACE, NOW_MS, Killed, Killer, compactor

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000
QUEUE = MessageQueue("orders", "broker-a", 0)
OTHER = MessageQueue("others", "broker-a", 0)


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def date(day: int) -> str:
    return str(dt.datetime.fromtimestamp(NOW_MS / 1000 + day * 86_400, dt.UTC).date())


def manifests(folder: ArchiveFolder) -> list[int]:
    return [manifest.batch for manifest in folder.manifests()]


def rounds(folder: ArchiveFolder, clock: FakeClock, count: int = 4, **options) -> list[str]:
    """So many looks, a grace apart, by one run. What it did."""
    made = compactor(folder, clock, **options)
    done = []
    for _ in range(count):
        done += [step.what for step in made.look()]
        clock.advance(GRACE)
    made.close()
    return done


def whole(folder: ArchiveFolder) -> tuple:
    """All that a reader can know."""
    seen = view(folder)
    offsets = []
    cursor = ArchivedTopic(folder.path, "orders").cursor(QUEUE, ArchivedTopic(folder.path, "orders").begin(QUEUE) or 0)
    while (batch := cursor.next()) is not None:
        offsets += batch.column("queue_offset").to_pylist()
    return sorted(file.path for file in seen.files), seen.end, seen.expired, offsets, cursor.offset


def test_an_archive_with_keep_days_does_not_grow_for_ever(tmp_path):
    """A batch a day, merged and let go: after a hundred days there are as many manifests and records as after twenty."""
    folder, clock, counts = ArchiveFolder(tmp_path / "out"), FakeClock(NOW_MS), []
    for day in range(100):
        publish(folder, day, {QUEUE: range(day * 10, day * 10 + 10)}, date(day))
        if day % 2:
            publish(folder, 1000 + day, {OTHER: range(day, day + 1)}, date(day))
        rounds(folder, clock, keep_days=5)
        clock.set_wall(NOW_MS + (day + 1) * DAY_MS)
        counts.append(
            (len(manifests(folder)), len(replacements(folder)), len(list((folder.path / "_manifests").iterdir())))
        )
    assert max(counts[20:]) <= max(counts[:20])
    assert max(counts)[0] < 15
    assert whole(folder)[3] == list(range(940, 1000))
    assert not folder.kept.exists()


def test_what_is_needed_stays(tmp_path):
    """The newest two; those with files that live on, be it in a merged one; those whose ids are remembered."""
    folder, clock = ArchiveFolder(tmp_path / "out"), FakeClock(NOW_MS)
    for batch, day in ((1, -30), (2, -30), (3, 0), (4, -30)):
        publish(folder, batch, {QUEUE: range(batch * 10, batch * 10 + 10)}, date(day))
    old = folder.find(folder.last().query, 2)
    (folder.path / "_ids").mkdir()
    (folder.path / "_ids" / "x.arrow").write_text("ids")
    folder.commit(msgspec.structs.replace(old, ids={"orders": "_ids/x.arrow"}))
    end = folder.last().end
    assert "pruned" in rounds(folder, clock, keep_days=7, trust_clock=True)
    assert manifests(folder) == [2, 3, 4]  # 4 is over, too
    assert view(folder).end == end
    (folder.path / "_ids" / "x.arrow").unlink()
    rounds(folder, clock, keep_days=7, trust_clock=True)
    assert manifests(folder) == [3, 4]
    publish(folder, 5, {QUEUE: range(50, 60)}, date(0))
    publish(folder, 6, {QUEUE: range(60, 70)}, date(0))
    assert "replaced" in rounds(folder, clock, keep_days=7)
    assert manifests(folder) == [3, 5, 6]


def test_nothing_goes_before_nobody_can_need_it(tmp_path):
    """Not with the date itself, nor while its links are there."""
    folder, clock = ArchiveFolder(tmp_path / "out"), FakeClock(NOW_MS)
    for batch in range(4):
        publish(folder, batch, {QUEUE: range(batch * 10, batch * 10 + 10)}, date(-30 if batch < 2 else 0))
    made = compactor(folder, clock, files=0, keep_days=7)
    told = []
    for _ in range(4):
        told.append([step.what for step in made.look()])
        clock.advance(GRACE)
    assert told == [["expired"], ["removed"], ["pruned"], []]


def test_without_keep_days_everything_stays(tmp_path):
    """Merged or not."""
    folder, clock = ArchiveFolder(tmp_path / "out"), FakeClock(NOW_MS)
    for batch in range(6):
        publish(folder, batch, {QUEUE: range(batch * 10, batch * 10 + 10)}, date(-30))
    rounds(folder, clock)
    assert manifests(folder) == list(range(6))


def test_killed_between_any_two_calls_readers_see_no_change_and_the_next_run_finishes(tmp_path, monkeypatch):
    """From the moment that the old date is over."""
    made = ArchiveFolder(tmp_path / "made")
    clock = FakeClock(NOW_MS)
    for batch, day in enumerate((-31, -30, -30, 0, 0, -30, 0, 0)):
        publish(made, batch, {QUEUE: range(batch * 10, batch * 10 + 10)}, date(day))
    early = FakeClock(NOW_MS - 29 * DAY_MS)
    rounds(made, early, count=6)  # so that merged files expire, too
    rounds(made, clock, count=2, keep_days=7)
    wanted, finished, cut = whole(made), None, 0
    assert len(manifests(made)) == 8
    while True:
        folder = ArchiveFolder(tmp_path / str(cut) / "made")
        shutil.copytree(made.path, folder.path)
        if made.kept.exists():
            shutil.copytree(made.kept, folder.kept)
        now = FakeClock(clock.now_ms())
        with monkeypatch.context() as patch:
            Killer(patch, cut)
            try:
                rounds(folder, now, keep_days=7)
                ended = True
            except Killed:
                ended = False
        told = f"killed before call {cut}"
        assert whole(folder) == wanted, told
        assert seen_by_plan(planned(folder.path)) == seen_plainly(folder.path), told
        if ended:
            break
        folder.finish(folder.last(), lambda: ever_replaced(folder))  # noqa: B023
        rounds(folder, now, keep_days=7)
        assert whole(folder) == wanted, told
        left = manifests(folder), [record.number for record in replacements(folder)]
        assert finished in (None, left), told
        finished = left
        cut += 1
        shutil.rmtree(folder.path.parent)
    assert finished[0] == [3, 4, 6, 7]
    assert cut > 5


# ------------------------------------------------------------------ the decision alone
def record(number: int, replaced: list[str], into: list[str], folder: str = "topic=o/date=2026-01-01") -> Replacement:
    files = [ArchivedFile(path=path, staged="", topic="o", date="", rows=1, size=1) for path in into]
    return Replacement(
        number=number, folder=folder, replaced=replaced, files=files, kept="", announced_ms=1, done_ms=1, swapped_ms=1
    )


@settings(max_examples=repeats(200))
@given(st.data())
def test_whatever_goes_the_files_are_the_same(data):
    """Over any history of merges and ends: also after a crash that lets only some of what may go be gone."""
    live: list[str] = []
    told, records = {}, []
    names = iter(f"topic=o/date=2026-01-01/{number}" for number in range(1000))
    for step in range(data.draw(st.integers(1, 12))):
        what = data.draw(st.sampled_from(["batch", "merge", "end"]))
        if what == "batch" or not live:
            mine = [next(names) for _ in range(data.draw(st.integers(0, 3)))]
            told[f"{step:04d}"] = mine
            live += mine
        else:
            chosen = data.draw(st.lists(st.sampled_from(live), min_size=1, unique=True))
            into = [next(names)] if what == "merge" else []
            records.append(record(len(records) + 1, chosen, into))
            live = [path for path in live if path not in chosen] + into

    def files(batches, known) -> set[str]:
        made = [
            Manifest(
                query="q",
                batch=0,
                rows=0,
                repeats=0,
                positions={"v": 1, "q": {}},
                files=record(0, [], batches[name]).files,
            )
            for name in sorted(batches)
        ]
        return {file.path for file in apply(made, known).files}

    assert files(told, records) == set(live)
    batches = {name: PublishedBatch(tuple(mine), ()) for name, mine in told.items()}
    for _ in range(4):
        gone = [name for name in batches_over(batches, records, lambda _: False) if data.draw(st.booleans())]
        batches = {name: batch for name, batch in batches.items() if name not in gone}
        assert files({name: batch.files for name, batch in batches.items()}, records) == set(live)
        over = [one for one in records_over(records, records, batches.values()) if data.draw(st.booleans())]
        records = [one for one in records if one not in over]
        assert files({name: batch.files for name, batch in batches.items()}, records) == set(live)


def test_files_are_over_when_what_stands_for_them_is():
    """However often they were merged; one that lives on keeps all of its sources."""
    history = [
        record(1, ["a", "b"], ["m"]),
        record(2, ["c"], ["n"]),
        record(3, ["m"], ["o"]),
        record(4, ["o", "d"], []),
    ]
    assert files_over(history) == {"a", "b", "m", "o", "d"}
    assert files_over(history[:3]) == set()
