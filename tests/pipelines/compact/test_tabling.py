"""The archive as Iceberg tables, without Spark: cut anywhere, read meanwhile. Readers are pyiceberg and DuckDB as they come."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metaq.archive.folder import ArchiveFolder
from metaq.archive.replacements import ever_replaced
from metaq.clock import FakeClock
from metaq.errors import ConfigError, StoreFailed, StoreFull
from metaq.model.queue import MessageQueue
from metaq.pipelines.compact import exchange, merging
from metaq.pipelines.compact import service as compacting
from metaq.pipelines.compact.options import CompactOptions
from metaq.pipelines.compact.service import Compactor
from metaq.pipelines.compact.tabling import tables_of
from metaq.spark.pipelines import compact
from tests.pipelines.archive.support import DATE, planned, publish, seen_by_plan
from tests.pipelines.archive.test_decoding import JSON, TODAY, bodies
from tests.pipelines.archive.test_service import run
from tests.scripted import ScriptedCluster
from tests.support import eventually

pytest.importorskip("pyiceberg", reason="pip install 'pymetaq[iceberg]'")
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from metaq.archive import iceberg, iceberg_io
from metaq.archive.iceberg import IcebergTables

pytestmark = pytest.mark.slow

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(2)]
OLD_DATE = "2026-02-01"
NOW_MS = 1_772_496_000_000  # 2026-03-03
GRACE = 60.0
CALLS = ("rename", "link", "mkdir", "rmdir", "unlink", "fsync")


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch):
    """Nothing here cuts the power, and the disk is slow."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def tables(folder: ArchiveFolder, clock=None) -> IcebergTables:
    return tables_of(folder, "iceberg", GRACE, clock or FakeClock(NOW_MS))


@contextlib.contextmanager
def opened(folder: ArchiveFolder, topic: str = "orders"):
    """The table, as docs/archive.md opens it."""
    catalog = SqlCatalog("metaq", uri=f"sqlite:///{folder.path}/_iceberg/catalog.db")
    try:
        yield catalog.load_table(("metaq", topic))
    finally:
        catalog.engine.dispose()


def rows_of_table(folder: ArchiveFolder, topic: str = "orders", **scan) -> Counter:
    """What a reader of the table sees; nothing, before there is one."""
    try:
        with opened(folder, topic) as table:
            found = table.scan(selected_fields=("broker", "queue_id", "queue_offset"), **scan).to_arrow()
    except NoSuchTableError:
        return Counter()
    return Counter(zip([topic] * len(found), *(column.to_pylist() for column in found.columns), strict=True))


def batches(folder: ArchiveFolder, numbers, date: str = DATE, queues=QUEUES):
    """Publish them, five messages of each queue."""
    for batch in numbers:
        yield publish(folder, batch, {queue: range(batch * 5, batch * 5 + 5) for queue in queues}, date)


def meant(numbers, queues=QUEUES) -> Counter:
    return Counter((*queue, i) for queue in queues for batch in numbers for i in range(batch * 5, batch * 5 + 5))


def compactor(folder: ArchiveFolder, clock, **options) -> Compactor:
    made = Compactor(folder, CompactOptions(folder=str(folder.path), grace_seconds=GRACE, **options), 1, clock)
    made.prepare()
    return made


def upkeep(folder: ArchiveFolder, clock, following: IcebergTables, rounds: int = 4, **options) -> list[str]:
    """As the archive does it after its batches."""
    made, done = compactor(folder, clock, **options), []
    following.align()
    for _ in range(rounds):
        for step in made.look():
            following.align(changed_only=True)
            done.append(step.what)
        clock.advance(GRACE)
    made.close()
    return done


# ------------------------------------------------------------------ one after the other
def test_the_table_is_the_archive_after_each_batch_merge_and_date_that_goes(tmp_path, caplog):
    """A snapshot per batch that says which; merged files in one commit; no file is written twice."""
    folder, clock = ArchiveFolder(tmp_path / "out"), FakeClock(NOW_MS)
    following = tables(folder, clock)
    following.align()
    for manifest in [*batches(folder, [1], OLD_DATE)]:
        following.publish(manifest)
    for number in (2, 3):
        for manifest in batches(folder, [number]):
            following.publish(manifest)
            following.publish(manifest)  # As after a crash: it is there.
            assert rows_of_table(folder) == meant(range(1, number + 1))
    with opened(folder) as table:
        told = [one.summary.additional_properties["metaq.manifest"] for one in table.metadata.snapshots]
        assert told == [f"6f1c9a2e-000000000{number}" for number in (1, 2, 3)]
        assert [field.name for field in table.spec().fields] == ["date"]
        recent = table.scan(row_filter="store_time >= '2026-03-01T00:00:00+00:00'")
        assert {Path(task.file.file_path).parent.name for task in recent.plan_files()} == {f"date={DATE}"}
        everything = {task.file.file_path for task in table.scan().plan_files()}
    assert everything == {f"file://{path}" for path in folder.path.rglob("*.parquet")}
    assert upkeep(folder, clock, following, keep_days=7) == ["expired", "merged", "removed", "replaced", "pruned"]
    assert rows_of_table(folder) == meant([2, 3])
    with opened(folder) as table:
        files = [task.file.file_path for task in table.scan().plan_files()]
    assert files == [f"file://{folder.path}/topic=orders/date={DATE}/merged-0000000002-0000.parquet"]
    for manifest in batches(folder, [4]):
        following.publish(manifest)
    following.align()  # Neither the manifest nor the record of the old date are there any more.
    assert rows_of_table(folder) == meant([2, 3, 4])
    following.close()
    # A line per file and column: the archive's columns without statistics are meant so.
    assert "PyArrow statistics missing" not in caplog.text


def test_a_plan_made_by_the_table_holds_for_the_grace(tmp_path):
    """Whenever it was made: what it names is there until `graceSeconds` later."""
    folder, clock = ArchiveFolder(tmp_path / "out"), FakeClock(NOW_MS)
    list(batches(folder, range(1, 4)))
    following = tables(folder, clock)
    following.align()
    made, plans = compactor(folder, clock), []

    def plan():
        with opened(folder) as table:
            plans.append(
                (
                    clock.now_ms(),
                    [("orders", Path(t.file.file_path[len("file://") :])) for t in table.scan().plan_files()],
                )
            )

    for _ in range(14):
        plan()
        for _ in made.look():
            following.align()
            plan()
        clock.advance(GRACE / 4)
        plans = [(at, paths) for at, paths in plans if clock.now_ms() < at + GRACE * 1000]
        for _, paths in plans:
            assert sum(pq.read_metadata(path).num_rows for _, path in paths) == 30
    assert len(list(folder.path.rglob("*.parquet"))) == 1


def test_each_topic_is_a_table_whatever_its_name_and_where_the_archive_is(tmp_path):
    """`%` in topics, `/` in brokers, blanks and accents in the folder; a `#` could not be told from an anchor."""
    folder = ArchiveFolder(tmp_path / "a b" / "100% é" / "out")
    queues = [MessageQueue("%RETRY%g", "broker/a", 0), MessageQueue("plain", "b", 1)]
    following = tables(folder)
    following.align()
    for manifest in batches(folder, [1, 2], queues=queues):
        following.publish(manifest)
    for queue in queues:
        assert rows_of_table(folder, queue.topic) == meant([1, 2], [queue])
    with pytest.raises(ConfigError, match=r"has a \? or # in it"):
        tables(ArchiveFolder(tmp_path / "a#b"))


def test_columns_that_an_archive_gets_later_are_columns_of_the_table(tmp_path):
    """Null where a file has none; merged files of each kind stay apart."""
    folder = ArchiveFolder(tmp_path / "out")
    (first,) = batches(folder, [1])
    following = tables(folder)
    following.align()
    for file in first.files:
        assert "more" not in pq.read_schema(folder.path / file.path).names
    (second,) = batches(folder, [2])
    kind = pa.struct([pa.field("id", pa.int64()), pa.field("tags", pa.list_(pa.string()))])
    for file in second.files:
        table = pq.read_table(folder.path / file.path)
        values = pa.array([{"id": 7, "tags": ["x"]}] * len(table), kind)
        pq.write_table(table.append_column("decoded", values), folder.path / file.path)
    following.publish(second)
    with opened(folder) as table:
        found = table.scan().to_arrow().to_pylist()
        assert table.scan(row_filter="decoded.id == 7").to_arrow().num_rows == 10
    assert Counter(row["decoded"] and row["decoded"]["id"] for row in found) == {None: 10, 7: 10}


# ------------------------------------------------------------------ other people's readers
def test_duckdb_reads_it_back(tmp_path):
    """By pyiceberg's scan; with no extension, which DuckDB would fetch from the network."""
    duckdb = pytest.importorskip("duckdb")
    folder = ArchiveFolder(tmp_path / "out")
    list(batches(folder, [1], OLD_DATE))
    list(batches(folder, [2, 3]))
    tables(folder).align()
    with opened(folder) as table, duckdb.connect() as base:
        scan = table.scan(
            row_filter="store_time >= '2026-03-01T00:00:00+00:00'", selected_fields=("queue_id", "queue_offset")
        )
        scan.to_duckdb("orders", base)
        found = base.sql(
            "select queue_id, count(*), min(queue_offset), max(queue_offset) from orders group by 1 order by 1"
        )
        assert found.fetchall() == [(0, 10, 10, 19), (1, 10, 10, 19)]
        paths = [task.file.file_path for task in table.scan().plan_files()]
        assert base.execute("select count(*) from read_parquet(?)", [paths]).fetchall() == [(30,)]


def test_duckdbs_own_extension_reads_the_folder(tmp_path):
    """`iceberg_scan` of the table's folder, without a catalog, before and after a merge."""
    duckdb = pytest.importorskip("duckdb")
    base = duckdb.connect(config={"autoinstall_known_extensions": False})
    try:
        for name in ("avro", "iceberg"):
            base.load_extension(name)
    except duckdb.Error as fault:
        pytest.skip(f"DuckDB {duckdb.__version__} has no extension iceberg here: {str(fault).splitlines()[0]}")
    folder, clock = ArchiveFolder(tmp_path / "out"), FakeClock(NOW_MS)
    list(batches(folder, [1, 2]))
    following = tables(folder, clock)
    following.align()
    for _ in range(2):
        found = base.sql(
            f"select count(*), sum(queue_offset) from iceberg_scan('{folder.path}/_iceberg/orders')"
        ).fetchall()
        assert found == [(20, 2 * sum(range(5, 15)))]
        upkeep(folder, clock, following)


# ------------------------------------------------------------------ cut anywhere
class Killed(BaseException):
    """The process is no more."""


class Killer:
    """Lets so many calls to the file system and the catalog pass, then none; the catalog's also when they are done."""

    def __init__(self, patch: pytest.MonkeyPatch, after: int) -> None:
        self.left, self.count = after, 0
        for name in CALLS:
            patch.setattr(os, name, self._cut(getattr(os, name)))
        patch.setattr(compacting, "exchange", self._cut(exchange.exchange))
        patch.setattr(merging, "parquet_writer", self._cut(merging.parquet_writer))
        for name in ("commit_table", "create_table", "drop_table"):
            patch.setattr(SqlCatalog, name, self._cut(getattr(SqlCatalog, name), also_after=True))

    def _tick(self) -> None:
        if self.left <= 0:
            raise Killed
        self.left -= 1
        self.count += 1

    def _cut(self, call, *, also_after=False):
        def cut(*args, **more):
            self._tick()
            done = call(*args, **more)
            if also_after:
                self._tick()
            return done

        return cut


def history(folder: ArchiveFolder, clock: FakeClock) -> None:
    """From a start, with what is there, to where nothing is left to do: three batches, merges, a date that goes."""
    following = tables(folder, clock)
    try:
        last = folder.last()
        if last is not None:
            folder.finish(last, lambda: ever_replaced(folder))
        following.align()
        for number in range(1 if last is None else last.batch + 1, 4):
            (manifest,) = batches(folder, [number], OLD_DATE if number == 1 else DATE, QUEUES[:1])
            following.publish(manifest)
        upkeep(folder, clock, following, keep_days=7)
    finally:
        following.close()


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(1, marks=[pytest.mark.slow, pytest.mark.all, pytest.mark.long]),
        pytest.param(19, marks=pytest.mark.slow),
    ],
)
def test_killed_between_any_two_calls_the_table_has_whole_batches_and_the_next_run_finishes(
    tmp_path, monkeypatch, step
):
    """What is seen is the state before or after; nothing comes twice, and no rubbish is left in the end."""
    states = [meant(range(1, 1 + number), QUEUES[:1]) for number in range(4)] + [meant([2, 3], QUEUES[:1])]
    cut, seen = 0, Counter()
    while True:
        clock = FakeClock(NOW_MS)
        folder = ArchiveFolder(tmp_path / str(cut))
        with monkeypatch.context() as patch:
            killer = Killer(patch, cut)
            try:
                history(folder, clock)
                finished = True
            except Killed:
                finished = False
        told = f"killed before call {cut}"
        found = rows_of_table(folder) if (folder.path / "_iceberg" / "catalog.db").exists() else Counter()
        assert found in states, told
        seen[states.index(found)] += 1
        if finished:
            break
        history(folder, clock)
        assert rows_of_table(folder) == seen_by_plan(planned(folder.path)) == states[-1], told
        with opened(folder) as table:
            assert len(list(table.scan().plan_files())) == 1, told
            assert len(table.metadata.snapshots) <= 8, told
            needed = {Path(one.manifest_list).name for one in table.metadata.snapshots}
            needed |= {Path(m.manifest_path).name for one in table.metadata.snapshots for m in one.manifests(table.io)}
            place = Path(table.location().removeprefix("file://")) / "metadata"
            assert {path.name for path in place.glob("*.avro")} == needed, told
            hint = (place / "version-hint.text").read_text()
            assert table.metadata_location.endswith(f"/{hint}.metadata.json"), told
        shutil.rmtree(folder.path)
        cut += step
    assert killer.count > 100
    assert set(seen) == set(range(5)), "every state was seen by somebody"


def test_readers_see_whole_batches_while_they_come_and_are_merged(tmp_path):
    """A reader meanwhile sees so many batches, never a part of one, and never fewer than before."""
    folder, clock = ArchiveFolder(tmp_path / "out"), FakeClock(NOW_MS)
    following = tables(folder, clock)
    following.align()
    wrong, ended, reads = [], threading.Event(), []

    def reading():
        while not ended.is_set():
            try:
                found = rows_of_table(folder)
            except FileNotFoundError as fault:
                wrong.append(fault)
                return
            whole = sum(found.values()) // 10
            if found != meant(range(1, 1 + whole)) or (reads and whole < reads[-1]):
                wrong.append(found)
                return
            reads.append(whole)

    threads = [threading.Thread(target=reading)]
    for thread in threads:
        thread.start()
    try:
        made = compactor(folder, clock)
        for number in range(1, 13):
            for manifest in batches(folder, [number]):
                following.publish(manifest)
            for _ in made.look():
                following.align()
            before = len(reads)
            eventually(lambda: wrong or len(reads) > before + 1, what="a read of the table")  # noqa: B023
            clock.advance(GRACE / 2)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert reads[-1] == 12


# ------------------------------------------------------------------ what goes wrong
def test_tables_that_are_lost_moved_or_broken_are_made_anew_or_named(tmp_path):
    """The archive is the manifests; a table can always be made of them."""
    folder = ArchiveFolder(tmp_path / "out")
    list(batches(folder, [1, 2]))
    tables(folder).align()
    shutil.rmtree(folder.path / "_iceberg" / "orders")
    tables(folder).align()
    assert rows_of_table(folder) == meant([1, 2])
    shutil.rmtree(folder.path / "_iceberg")
    tables(folder).align()
    assert rows_of_table(folder) == meant([1, 2])
    moved = ArchiveFolder(folder.path.rename(tmp_path / "moved"))
    tables_of(moved, None, GRACE).align()  # Not asked for: they are there, so they follow.
    assert rows_of_table(moved) == meant([1, 2])
    with opened(moved) as table:
        assert all("/moved/" in task.file.file_path for task in table.scan().plan_files())
    (moved.path / "_iceberg" / "catalog.db").write_bytes(b"no database at all, and longer than a header of one" * 9)
    with pytest.raises(
        StoreFailed, match=rf"the archive itself is whole: .*remove {moved.path}/_iceberg, and they are made anew"
    ):
        tables(moved).align()


def test_what_others_do_to_the_table_is_undone(tmp_path):
    """It is the archive's: rows that somebody deleted are there again after the next look."""
    folder = ArchiveFolder(tmp_path / "out")
    list(batches(folder, [1, 2]))
    following = tables(folder)
    following.align()
    with opened(folder) as table:
        table.delete("queue_id == 0")
    assert rows_of_table(folder) == meant([1, 2], QUEUES[1:])
    following.align()
    assert rows_of_table(folder) == meant([1, 2])


def test_snapshots_that_nobody_can_be_reading_go_and_their_files_too(tmp_path, monkeypatch):
    """The last ones stay, however old; without it a table would grow by a file or three with each batch for ever."""
    monkeypatch.setattr(iceberg, "SNAPSHOTS_MIN", 3)
    folder = ArchiveFolder(tmp_path / "out")
    far = FakeClock(4_000_000_000_000)
    following = tables(folder, far)
    following.align()
    most = 0
    for manifest in batches(folder, range(1, 12), queues=QUEUES[:1]):
        following.publish(manifest)
        with opened(folder) as table:
            most = max(most, len(table.metadata.snapshots))
            lists = {Path(one.manifest_list).name for one in table.metadata.snapshots}
            place = Path(table.location().removeprefix("file://")) / "metadata"
            assert {path.name for path in place.glob("snap-*")} == lists
    assert 3 <= most <= 7
    assert rows_of_table(folder) == meant(range(1, 12), QUEUES[:1])


def test_without_pyiceberg_an_archive_with_tables_is_not_touched(tmp_path, monkeypatch):
    """They would name files that are no more. Without tables nothing is asked of anybody."""
    folder = ArchiveFolder(tmp_path / "out")
    list(batches(folder, [1, 2]))
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    assert tables_of(folder, None, GRACE) is None
    with pytest.raises(
        ConfigError, match=r"need pyiceberg: pip install 'pymetaq\[spark,iceberg\]'; or do without them"
    ):
        tables(folder)
    (folder.path / "_iceberg").mkdir()
    with pytest.raises(ConfigError, match="need pyiceberg"):
        compact({"folder": str(folder.path), "graceSeconds": 0})
    assert len(list(folder.path.rglob("*.parquet"))) == 4


def test_the_job_compact_takes_the_tables_along(tmp_path):
    """It is not told of them."""
    folder = ArchiveFolder(tmp_path / "out")
    list(batches(folder, [1, 2]))
    tables(folder).align()
    done = compact({"folder": str(folder.path), "graceSeconds": 0})
    assert done.figures["replaced"] == 4
    assert rows_of_table(folder) == meant([1, 2])
    with opened(folder) as table:
        assert len(list(table.scan().plan_files())) == 1


def test_a_full_disk_is_one_error_and_the_next_look_goes_on(tmp_path, monkeypatch):
    """The batch is published whatever becomes of the table."""
    folder = ArchiveFolder(tmp_path / "out")
    following = tables(folder)
    following.align()
    (first,) = batches(folder, [1])
    following.publish(first)
    with monkeypatch.context() as patch:

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device", "/a/disk")

        patch.setattr(iceberg_io, "_SyncedFile", full)
        (second,) = batches(folder, [2])
        with pytest.raises(
            StoreFull, match=r"could not be brought up to date; the archive itself is whole: No space left"
        ):
            following.publish(second)
    assert rows_of_table(folder) == meant([1])
    (third,) = batches(folder, [3])
    following.publish(third)
    assert rows_of_table(folder) == meant([1, 2, 3])


# ------------------------------------------------------------------ the pipeline
@pytest.mark.slow
@pytest.mark.all
@pytest.mark.spark_all
@pytest.mark.spark
def test_the_pipelines_tables_have_its_decoded_columns(spark, tmp_path):
    """Archived by Spark, merged after the batch, read by DuckDB; a second run goes on, also where it does not ask for tables."""
    duckdb = pytest.importorskip("duckdb")
    output = tmp_path / "out"
    chosen = {"messages_per_file": 20, "compact_files": 2, "grace_seconds": 0, "decode": JSON}
    with ScriptedCluster(tmp_path / "cluster") as cluster:
        cluster.put("orders", 0, bodies(range(100)), TODAY)
        (report,) = run(spark, cluster, output, table_format="iceberg", **chosen)
        assert (report.rows, report.corrupt, report.compacted) == (100, 10, 5)
        cluster.put("orders", 0, bodies(range(100, 130)), TODAY + 1000)
        run(spark, cluster, output, **chosen)
    with opened(ArchiveFolder(output)) as table, duckdb.connect() as base:
        table.scan().to_duckdb("orders", base)
        found = base.sql("select decoded.who, count(*), count(_corrupt) from orders group by 1 order by 1 nulls last")
        want = Counter(f"u{i % 3}" for i in range(130) if i % 10)
        assert found.fetchall() == [*((who, count, 0) for who, count in sorted(want.items())), (None, 13, 13)]
