"""Compaction and retention of an archive, without Spark: cut anywhere, read meanwhile. The oracle is pyarrow."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.archive.folder import ArchiveFolder
from metaq.archive.records import ArchivedFile
from metaq.archive.replacements import ever_replaced, replacements, view
from metaq.clock import FakeClock
from metaq.errors import ConfigError, StoreCorrupt
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.options import ArchiveOptions
from metaq.pipelines.compact import exchange, merging
from metaq.pipelines.compact import service as compacting
from metaq.pipelines.compact.options import CompactOptions
from metaq.pipelines.compact.service import Compactor, bins, small_files
from metaq.pipelines.run import Run
from metaq.spark.pipelines import compact
from tests.pipelines.archive.support import DATE, planned, publish, seen_by_plan, seen_plainly
from tests.support import PATIENCE, eventually, process

pytestmark = pytest.mark.slow

QUEUES = [MessageQueue("orders", f"broker-{broker}", number) for broker in "ab" for number in range(2)]
NOW_MS = 1_772_496_000_000  # 2026-03-03
GRACE = 60.0


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch):
    """Nothing here cuts the power, and the disk is slow."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def filled(root: Path, batches: int = 4, rows: int = 5, date: str = DATE, queues=QUEUES) -> ArchiveFolder:
    """An archive of so many batches, each of a file per queue."""
    folder = ArchiveFolder(root)
    first = 1 + len(list(folder.manifests()))
    for batch in range(first, first + batches):
        publish(folder, batch, {queue: range(batch * rows, batch * rows + rows) for queue in queues}, date)
    return folder


def everything(folder: ArchiveFolder) -> Counter:
    """Each archived message once, as the manifests tell."""
    ends = folder.last().end
    return Counter((*queue, i) for queue, end in ends.items() for i in range(5, end))


def compactor(folder: ArchiveFolder, clock, files=1, **options) -> Compactor:
    options = {"grace_seconds": GRACE} | options
    made = Compactor(folder, CompactOptions(folder=str(folder.path), **options), files, clock)
    made.prepare()
    return made


def files_below(folder: ArchiveFolder) -> list[str]:
    return sorted(str(path.relative_to(folder.path)) for path in folder.path.rglob("*.parquet"))


# ------------------------------------------------------------------ what is merged with what
sizes = st.lists(st.integers(1, 3000), max_size=40)


def archived_files(found: list[int]) -> list[ArchivedFile]:
    return [
        ArchivedFile(path=f"topic=o/date={DATE}/{i}.parquet", staged="", topic="o", date=DATE, rows=1, size=size)
        for i, size in enumerate(found)
    ]


@given(sizes, st.integers(1, 10), st.integers(2, 2000))
def test_small_files_are_put_together_up_to_the_size(found, limit, size):
    """In their order; every merged file but the last is more than half full, so it is small no more."""
    chosen = small_files(archived_files(found), limit, size)
    wanted = [file for file in archived_files(found) if file.size < size / 2]
    assert chosen == ({f"topic=o/date={DATE}": wanted} if len(wanted) > limit else {})
    for files in chosen.values():
        packed = bins(files, size)
        assert [file for group in packed for file in group] == files
        assert all(sum(file.size for file in group) <= size for group in packed)
        assert all(sum(file.size for file in group) > size / 2 for group in packed[:-1])


def test_nothing_is_merged_where_compact_files_is_0(tmp_path):
    """As an archive is by default."""
    assert small_files(archived_files([1, 1, 1]), 0, 100) == {}
    assert ArchiveOptions().compact_files == 0


# ------------------------------------------------------------------ merging
def test_a_merged_file_has_every_row_in_the_order_of_queues_and_offsets(tmp_path):
    """Also where an earlier merged file is among the sources; and it is the archive's only one."""
    folder, clock = filled(tmp_path / "out"), FakeClock(NOW_MS)
    made = compactor(folder, clock, grace_seconds=0)
    assert [step.what for step in made.look()] == ["merged", "replaced"]
    filled(tmp_path / "out", batches=3)
    assert [step.what for step in made.look()] == ["merged", "replaced"]
    (name,) = files_below(folder)
    assert name == f"topic=orders/date={DATE}/merged-0000000002-0000.parquet"
    rows = pq.read_table(folder.path / name).to_pylist()
    keys = [(row["broker"], row["queue_id"], row["queue_offset"]) for row in rows]
    assert keys == sorted(keys)
    assert len(keys) == len(set(keys)) == 4 * 7 * 5
    assert seen_plainly(folder.path) == seen_by_plan(planned(folder.path)) == everything(folder)
    assert ds.dataset(folder.path, partitioning="hive").count_rows() == len(keys)
    assert rows[0] | {"born_time": None, "store_time": None} == {
        "broker": "broker-a", "queue_id": 0, "queue_offset": 5, "message_id": f"{5:032X}", "tag": "t", "keys": ["k"],
        "body": b"body", "properties": [("a", "b")], "flag": 0, "reconsume_times": 0, "born_time": None, "store_time": None,
    }  # fmt: skip
    made.close()
    assert not folder.kept.exists()
    assert list(made.look()) == []


def test_few_rows_are_in_memory_at_once(tmp_path, monkeypatch):
    """However many there are: groups are written when they are full, batches are cut by their bytes."""
    monkeypatch.setattr(merging, "GROUP_BYTES", 200_000)
    monkeypatch.setattr(merging, "BATCH_BYTES", 20_000)
    monkeypatch.setattr(merging, "_THICK_BYTES", 20_000)
    folder = ArchiveFolder(tmp_path / "out")
    for batch in range(1, 9):
        publish(folder, batch, {QUEUES[0]: range(batch * 100, batch * 100 + 100)}, body=os.urandom(1000))
    sources = sorted(folder.path.rglob("*.parquet"))
    batches = [len(batch) for batch in merging.in_order(sources)]
    assert sum(batches) == 800
    assert max(batches) <= 20
    written = []
    monkeypatch.setattr(merging, "_write", lambda writer, waiting: written.append(sum(map(len, waiting))) or 0)
    merging.merge(sources, tmp_path / "merged.parquet")
    assert sum(written) == 800
    assert max(written) <= 220


def test_small_batches_are_put_together_before_they_wait(tmp_path, monkeypatch):
    """A batch of one row takes as much of its own as one of a thousand, and a group may be of 200 000."""
    folder = filled(tmp_path / "out", batches=50, rows=2)
    written = []
    real_write = merging._write
    monkeypatch.setattr(
        merging, "_write", lambda writer, waiting: written.append(len(waiting)) or real_write(writer, waiting)
    )
    target = tmp_path / "merged.parquet"
    assert merging.merge(sorted(folder.path.rglob("*.parquet")), target) == 4 * 50 * 2
    assert written == [1]
    rows = pq.read_table(target).select(merging.KEY).to_pylist()
    assert rows == sorted(rows, key=lambda row: tuple(row.values()))


def test_a_batch_that_waits_is_weighed_a_few_times_only(monkeypatch):
    """However many wait with it: of 3 000 small files that was most of a merge's time."""
    weighed = [0]

    class Batch:
        def __len__(self):
            return 1

        @property
        def nbytes(self):
            weighed[0] += 1
            return 1

    monkeypatch.setattr(merging, "_joined", lambda _thin: Batch())
    list(merging._groups(merging._thick(Batch() for _ in range(1000))))
    assert weighed[0] <= 2 * 1000


def test_large_rows_are_not_gathered_to_many(monkeypatch):
    monkeypatch.setattr(merging, "_THICK_BYTES", 20_000)
    batches = [merging.pa.record_batch({"body": [b"b" * size]}) for size in (10, 30_000, 5_000, 10_000, 10_000, 10)]
    assert [len(batch) for batch in merging._thick(iter(batches))] == [2, 3, 1]


def test_only_one_source_is_open_where_they_follow_each_other(tmp_path, monkeypatch):
    """A date may have thousands of files, and a process may open a thousand."""
    folder = filled(tmp_path / "out", batches=10)
    opened, most = [0], [0]
    real_open, real_close = merging._opened, merging._Stream.close

    def counting(path):
        opened[0] += 1
        most[0] = max(most[0], opened[0])
        file = real_open(path)
        leave = file.__exit__
        monkeypatch.setattr(
            type(file), "__exit__", lambda self, *a: (opened.__setitem__(0, opened[0] - 1), leave(*a))[1]
        )
        return file

    monkeypatch.setattr(merging, "_opened", counting)
    monkeypatch.setattr(merging._Stream, "close", lambda self: (opened.__setitem__(0, opened[0] - 1), real_close(self)))
    assert sum(map(len, merging.in_order(sorted(folder.path.rglob("*.parquet"))))) == 200
    assert most[0] <= 2


def test_files_of_different_columns_are_not_merged_with_each_other(tmp_path):
    """An archive goes on when its columns have grown; each kind is merged for itself."""
    folder = filled(tmp_path / "out", batches=2)
    for path in list(folder.path.rglob("*-0000000002-*.parquet")):
        table = pq.read_table(path)
        pq.write_table(table.append_column("more", table["flag"]), path)
    assert [str(step) for step in compactor(folder, FakeClock(NOW_MS), grace_seconds=0).look()][1].endswith(
        "2 merged files are in the place of 8"
    )
    kinds = {"more" in pq.read_schema(folder.path / name).names for name in files_below(folder)}
    assert (len(files_below(folder)), kinds) == (2, {True, False})
    assert seen_plainly(folder.path) == everything(folder)


def test_a_source_that_is_broken_stays_and_the_other_dates_are_merged(tmp_path):
    """It is named; and so is one whose rows are not as many as its manifest says."""
    folder = filled(tmp_path / "out", batches=2)
    filled(tmp_path / "out", batches=2, date="2026-03-02")
    broken = next(folder.path.glob(f"topic=orders/date={DATE}/*"))
    broken.write_bytes(b"no Parquet at all")
    made = compactor(folder, FakeClock(NOW_MS), grace_seconds=0)
    assert [(step.what, step.folder[-10:]) for step in made.look()] == [
        ("merged", "2026-03-02"), ("replaced", "2026-03-02"),
    ]  # fmt: skip
    assert len(made.faults) == 1
    assert f"{broken} is no Parquet file" in made.faults[0]
    assert not list(folder.kept.iterdir())
    short = next(path for path in folder.path.glob(f"topic=orders/date={DATE}/*") if path != broken)
    broken.write_bytes(short.read_bytes())
    pq.write_table(pq.read_table(short).slice(1), short)
    list(made.look())
    assert "hold 39 messages, and their manifests say 40: they stay as they are" in made.faults[0]
    assert len(list(folder.path.glob(f"topic=orders/date={DATE}/*"))) == 8


# ------------------------------------------------------------------ readers meanwhile
def test_a_plan_holds_for_the_grace_whenever_it_was_made(tmp_path):
    """Before the announcement, between it and the exchange, and after: for `graceSeconds` every planned file can be opened."""
    folder, clock = filled(tmp_path / "out"), FakeClock(NOW_MS)
    made = compactor(folder, clock)
    wanted, plans = everything(folder), []
    for _ in range(16):
        plans.append((clock.now_ms(), planned(folder.path)))
        list(made.look())
        plans.append((clock.now_ms(), planned(folder.path)))
        plans = [(at, plan) for at, plan in plans if clock.now_ms() < at + GRACE * 1000]
        for _, plan in plans:
            assert seen_by_plan(plan) == wanted
        assert seen_plainly(folder.path) == wanted
        clock.advance(GRACE / 4)
    assert len(files_below(folder)) == 1
    assert not list(folder.kept.iterdir())


def test_readers_see_every_message_once_while_files_are_merged_and_merged_again(tmp_path):
    """A plain reader that lists and then opens, and one by the manifests. A file that has gone is an error, never a gap."""
    folder, clock = filled(tmp_path / "out", batches=12), FakeClock(NOW_MS)
    wanted, wrong, ended = everything(folder), [], threading.Event()
    reads = Counter()

    def reading(kind, read):
        while not ended.is_set():
            try:
                found = read()
            except FileNotFoundError:
                continue
            reads[kind] += 1
            if found != wanted:
                wrong.append((kind, wanted - found, found - wanted))
                return

    threads = [
        threading.Thread(target=reading, args=("plain", lambda: seen_plainly(folder.path))),
        threading.Thread(target=reading, args=("manifests", lambda: seen_by_plan(planned(folder.path)))),
    ]
    for thread in threads:
        thread.start()
    try:
        for size in (2_500, 9_000, 30_000, 100_000, 400_000, 2_000_000):
            before = dict(reads)
            made = compactor(folder, clock, compact_bytes=size * 4)
            for _ in range(3):
                for _ in made.look():
                    pass
                clock.advance(GRACE)
            eventually(lambda: wrong or all(reads[kind] > before.get(kind, 0) for kind in ("plain", "manifests")))  # noqa: B023
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert len(replacements(folder)) > 2
    assert len(files_below(folder)) == 1


# ------------------------------------------------------------------ cut anywhere
class Killed(BaseException):
    """The process is no more."""


CALLS = ("rename", "link", "mkdir", "rmdir", "unlink", "fsync")


class Killer:
    """Lets so many calls to the file system pass, then none."""

    def __init__(self, patch: pytest.MonkeyPatch, after: int) -> None:
        self.left, self.count = after, 0
        for name in CALLS:
            patch.setattr(os, name, self._cut(getattr(os, name)))
        patch.setattr(compacting, "exchange", self._cut(exchange.exchange))
        patch.setattr(merging, "parquet_writer", self._cut(merging.parquet_writer))

    def _cut(self, call):
        def cut(*args, **more):
            if self.left <= 0:
                raise Killed
            self.left -= 1
            self.count += 1
            return call(*args, **more)

        return cut


def upkeep(folder: ArchiveFolder, clock: FakeClock, keep_days: int | None) -> None:
    """From a start to where nothing is left to do."""
    made = compactor(folder, clock, keep_days=keep_days)
    for _ in range(4):
        list(made.look())
        clock.advance(GRACE)
    made.close()


def test_killed_between_any_two_calls_readers_see_all_once_and_the_next_run_finishes(tmp_path, monkeypatch):
    """Merges, and a date that goes: what is seen is the state before or after, and nothing is left over in the end."""
    cut = 0
    while True:
        clock = FakeClock(NOW_MS)
        folder = filled(tmp_path / str(cut), batches=1, date="2026-02-01", queues=QUEUES[:1])
        old = everything(folder)
        filled(folder.path, batches=2, queues=QUEUES[:1])
        whole = everything(folder)
        before = planned(folder.path)
        with monkeypatch.context() as patch:
            killer = Killer(patch, cut)
            try:
                upkeep(folder, clock, 7)
                finished = True
            except Killed:
                finished = False
        told = f"killed before call {cut}"
        assert seen_plainly(folder.path) in (whole, whole - old), told
        assert seen_by_plan(planned(folder.path)) in (whole, whole - old), told
        if clock.now_ms() < NOW_MS + GRACE * 1000:
            assert seen_by_plan(before) == whole, told
        if finished:
            break
        folder.finish(folder.last(), lambda: ever_replaced(folder))  # noqa: B023
        upkeep(folder, clock, 7)
        assert seen_plainly(folder.path) == seen_by_plan(planned(folder.path)) == whole - old, told
        assert len(files_below(folder)) == 1, told
        assert not folder.kept.exists(), told
        assert not (folder.path / "topic=orders" / "date=2026-02-01").exists(), told
        cut += 1
    assert killer.count == cut > 60


def test_what_lay_beside_the_archive_may_be_lost_before_it_was_needed(tmp_path, caplog):
    """A merge that was prepared is prepared anew; readers go on with the files as they are."""
    folder, clock = filled(tmp_path / "out"), FakeClock(NOW_MS)
    made = compactor(folder, clock)
    assert [step.what for step in made.look()] == ["merged"]
    for path in sorted(folder.kept.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert seen_by_plan(planned(folder.path)) == everything(folder)
    clock.advance(GRACE)
    assert [step.what for step in made.look()] == ["merged"]
    assert "is missing: the files in topic=orders" in caplog.text
    clock.advance(GRACE)
    assert [step.what for step in made.look()] == ["replaced"]
    assert seen_plainly(folder.path) == everything(folder)


def test_what_others_put_into_a_folder_stays_there(tmp_path):
    """Files are linked, also those that came while they were; a folder in it is refused by name."""
    folder = filled(tmp_path / "out")
    home = folder.path / "topic=orders" / f"date={DATE}"
    (home / "notes.txt").write_text("mine")
    real = exchange.exchange

    def late(one, other):
        (one / "late.txt").write_text("late")
        real(one, other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compacting, "exchange", late)
        list(compactor(folder, FakeClock(NOW_MS), grace_seconds=0).look())
    assert sorted(path.name for path in home.iterdir()) == ["late.txt", "merged-0000000001-0000.parquet", "notes.txt"]
    filled(folder.path)
    (home / "deeper").mkdir()
    made = compactor(folder, FakeClock(NOW_MS), grace_seconds=0)
    assert [step.what for step in made.look()] == ["merged"]
    assert set(made.faults) == {f"{home} has deeper in it, which is no file: it is left as it is"}
    assert seen_plainly(folder.path) == everything(folder)


# ------------------------------------------------------------------ retention
def test_dates_whose_time_is_over_go_from_the_manifests_first(tmp_path):
    """A table does not see them any more; their files are there for the grace, for those that planned before."""
    folder, clock = filled(tmp_path / "out", batches=1, date="2026-02-20"), FakeClock(NOW_MS)
    filled(folder.path, batches=1, date="2026-02-21")
    before = planned(folder.path)
    made = compactor(folder, clock, files=0, keep_days=10, trust_clock=True)
    (step,) = made.look()
    assert str(step) == "topic=orders/date=2026-02-20: 4 files, 20 messages are no longer part of the archive"
    assert {file.date for file in view(folder).files} == {"2026-02-21"}
    assert view(folder).end == folder.last().end
    assert sum(seen_by_plan(before).values()) == 40
    clock.advance(GRACE)
    assert [step.what for step in made.look()] == ["removed"]
    assert [path.name for path in (folder.path / "topic=orders").iterdir()] == ["date=2026-02-21"]
    # A message of then that comes late is a file like any other, until the next look.
    publish(folder, 3, {QUEUES[0]: range(15, 16)}, date="2026-02-20")
    assert [step.what for step in made.look()] == ["expired"]


# ------------------------------------------------------------------ the command
def test_the_job_needs_two_runs_or_waits(tmp_path):
    """It says what it did, and from when on a run finishes it; what it is told is heeded or refused."""
    folder = filled(tmp_path / "out")
    first = compact({"folder": str(folder.path)})
    assert first.figures["merged"] == 16
    assert first.exit_status == 0
    assert "merged files wait for readers of before: a run after " in first.text
    assert len(files_below(folder)) == 16
    lines = []
    done = compact({"folder": str(folder.path), "wait": True, "graceSeconds": 0.3}, lambda line, _: lines.append(line))
    assert done.figures["replaced"] == 16
    assert lines == [f"topic=orders/date={DATE}: 1 merged files are in the place of 16"]
    assert compact({"folder": str(folder.path), "graceSeconds": 0}).text == "nothing to do"
    assert not folder.kept.exists()
    assert seen_plainly(folder.path) == everything(folder)
    with pytest.raises(ConfigError, match=r"there is no option nameServers"):
        compact({"folder": str(folder.path), "nameServers": "x:1"})
    with pytest.raises(ConfigError, match=r"there is no archive \(no _manifests in it\)"):
        compact({"folder": str(tmp_path)})


def test_a_file_system_that_cannot_exchange_folders_is_refused(tmp_path, monkeypatch):
    """Nothing was done; the text says what can be."""
    folder = filled(tmp_path / "out")

    def cannot(one, _other):
        raise OSError(22, "Invalid argument", str(one))

    monkeypatch.setattr(exchange, "exchange", cannot)
    with pytest.raises(ConfigError, match=r"cannot exchange two folders in one step.*compactFiles=0"):
        compactor(folder, FakeClock(NOW_MS))
    assert len(files_below(folder)) == 16


def test_a_record_that_cannot_be_read_stops_readers_and_upkeep(tmp_path):
    """Without it nobody knows which of the files count."""
    folder = filled(tmp_path / "out")
    list(compactor(folder, FakeClock(NOW_MS), grace_seconds=0).look())
    (record,) = (folder.path / "_replacements").glob("*.json")
    record.write_text("{")
    with pytest.raises(StoreCorrupt, match=f"{record} cannot be read"):
        view(folder)
    with pytest.raises(StoreCorrupt, match=f"{record} cannot be read"):
        compactor(folder, FakeClock(NOW_MS))


def test_a_job_that_is_asked_to_end_ends_between_two_steps(tmp_path):
    """What was done stays, the rest is for the next run."""
    folder = filled(tmp_path / "out", batches=2)
    filled(folder.path, batches=2, date="2026-03-02")
    with Run("compact", folder.path).begin() as run:
        run.stop()
        found = compacting.compact(CompactOptions(folder=str(folder.path)), run, FakeClock(NOW_MS))
    assert found.figures["merged"] == 8
    assert seen_by_plan(planned(folder.path)) == everything(folder)


_MERGES = """
import os, sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from metaq.pipelines.compact import merging

def anonymous_mb():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1000

folder, files = Path(sys.argv[1]), []
for i in range(40):
    rows = pa.table({"broker": ["a"] * 1000, "queue_id": [i % 4] * 1000, "queue_offset": range(i * 1000, i * 1000 + 1000),
                     "body": [os.urandom(1000).hex() for _ in range(1000)]})
    files.append(folder / f"{i}.parquet")
    pq.write_table(rows, files[-1])
for _ in range(2):
    merging.merge(files, folder / "whole.parquet")
    print(anonymous_mb())
pa.default_memory_pool().release_unused()
print(anonymous_mb())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told by Linux's /proc")
def test_what_a_merge_has_used_is_given_back(tmp_path):
    """Arrow's allocator would keep more than 100 MB of it, in a driver that runs for months."""
    with process(sys.executable, "-c", _MERGES, str(tmp_path)) as child:
        said, _ = child.communicate(timeout=PATIENCE)
    *after, least = map(float, said.split())
    assert max(after) < least + 30, said
