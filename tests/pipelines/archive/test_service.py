"""The archive pipeline, against a real broker. The oracle is pyarrow, never Spark."""

from __future__ import annotations

import errno
import functools
import os
import re
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from metaq.archive.folder import ArchiveFolder
from metaq.errors import ConfigError, StoreCorrupt, StoreLocked
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive import outputs, service
from metaq.pipelines.archive.dedupe import Ids, IdWindow, Rooms, ids_of
from metaq.pipelines.archive.outputs import LocalOutput, Staged
from metaq.pipelines.archive.service import archive
from metaq.pipelines.driver import root_text
from metaq.spark import table
from metaq.spark.engine.slow_start import run_through
from tests.scripted import ScriptedCluster
from tests.spark.running import finished
from tests.support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.spark]
DAY_MS = 86_400_000
TODAY = 1_700_006_400_000  # 2023-11-15, 00:00 UTC
CENTURY = 36_525 * DAY_MS


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster") as running:
        for store_ms, numbers in ((TODAY - 1000, range(300)), (TODAY, range(300, 500))):
            for queue_id in range(2):
                running.put("orders", queue_id, [b"%d-%d" % (queue_id, i) for i in numbers], store_ms)
        yield running


def run(spark, cluster, output, **options) -> list:
    reports: list = []
    finished(
        lambda: archive(
            spark,
            name_servers=cluster.namesrv,
            topics="orders",
            output=output,
            once=True,
            on_batch=reports.append,
            **options,
        )
    )
    return reports


def archived(output: Path) -> Counter:
    """(queue, offset) of every row that a plain reader of the folder sees, with how often it sees it."""
    rows = ds.dataset(output, partitioning="hive").to_table(columns=["queue_id", "queue_offset"]).to_pylist()
    return Counter((row["queue_id"], row["queue_offset"]) for row in rows)


def everything(cluster) -> Counter:
    return Counter((queue.queue_id, i) for queue, end in cluster.ends("orders").items() for i in range(end))


def test_every_message_is_archived_once_under_its_store_date(spark, cluster, tmp_path):
    """All rows, in folders by topic and UTC date; a second run adds only what is new."""
    reports = run(
        spark, cluster, tmp_path / "out", messages_per_batch=400, messages_per_file=150, progress_group="archiver"
    )
    assert archived(tmp_path / "out") == everything(cluster)
    assert sum(report.rows for report in reports) == 1000
    dates = sorted(path.name for path in (tmp_path / "out" / "topic=orders").iterdir())
    assert dates == ["date=2023-11-14", "date=2023-11-15"]
    late = ds.dataset(tmp_path / "out" / "topic=orders" / "date=2023-11-15").to_table().to_pylist()
    assert sorted(row["queue_offset"] for row in late) == sorted([*range(300, 500)] * 2)
    assert ("TAGS", "t") in late[0]["properties"]  # behind them the broker names its cluster
    ArchiveFolder(tmp_path / "out").close()
    assert not ArchiveFolder(tmp_path / "out").staging.exists()

    cluster.put("orders", 0, [b"new"] * 7, TODAY + 5000)
    assert [report.rows for report in run(spark, cluster, tmp_path / "out", progress_group="archiver")] == [7]
    assert archived(tmp_path / "out") == everything(cluster)
    assert cluster.progress("archiver", "orders")[MessageQueue("orders", "broker-a", 0)] == 507


def test_a_repeated_send_is_archived_once_across_batches_and_runs(spark, cluster, tmp_path):
    """The same unique id in another queue, batch or run is left out, within the window only."""
    twice = "UNIQ_KEY\x01" + "AB" * 16
    cluster.put("orders", 0, [b"first"], TODAY + 1000, twice)
    cluster.put("orders", 1, [b"first"], TODAY + 2000, twice)
    (report,) = run(spark, cluster, tmp_path / "out", dedupe_seconds=60)
    assert (report.rows, report.repeats) == (1001, 1)
    cluster.put("orders", 1, [b"again", b"fresh"], TODAY + 3000, twice)
    assert [(r.rows, r.repeats) for r in run(spark, cluster, tmp_path / "out", dedupe_seconds=60)] == [(0, 2)]
    cluster.put("orders", 1, [b"much later"], TODAY + 70_000, twice)
    assert [(r.rows, r.repeats) for r in run(spark, cluster, tmp_path / "out", dedupe_seconds=60)] == [(1, 0)]
    expected = everything(cluster) - Counter([(1, 500), (1, 501), (1, 502)])
    assert archived(tmp_path / "out") == expected


@pytest.mark.all
@pytest.mark.spark_all
def test_repeats_of_a_key_are_archived_once_and_messages_without_a_key_each(spark, cluster, tmp_path):
    """dedupe="key": the application sent again by itself, with another unique id; dedupe="off" archives both."""
    output = tmp_path / "out"
    for number, keys in enumerate(["\x02KEYS\x01order-7", "\x02KEYS\x01order-7", "", "\x02KEYS\x01order-7 order-8"]):
        cluster.put("orders", 1, [b"one"], TODAY + 1000 + number, f"UNIQ_KEY\x01{number:032X}{keys}")
    assert [(r.rows, r.repeats) for r in run(spark, cluster, output, dedupe="key", dedupe_seconds=60)] == [(1003, 1)]
    assert archived(output) == everything(cluster) - Counter([(1, 501)])
    cluster.put("orders", 0, [b"one"], TODAY + 30_000, f"UNIQ_KEY\x01{9:032X}\x02KEYS\x01order-7")
    assert [(r.rows, r.repeats) for r in run(spark, cluster, output, dedupe="key", dedupe_seconds=60)] == [(0, 1)]
    cluster.put("orders", 0, [b"one"], TODAY + 31_000, f"UNIQ_KEY\x01{9:032X}\x02KEYS\x01order-7")
    assert [(r.rows, r.repeats) for r in run(spark, cluster, output, dedupe="off")] == [(1, 0)]
    with pytest.raises(ConfigError, match=r"dedupe=keys: allowed are off, unique_id, key"):
        run(spark, cluster, output, dedupe="keys")


def messages_visible_below(output: Path) -> set[str]:
    """Every file that holds Parquet, whatever its name and folder: DuckDB's and Polars' globs know no hidden ones."""
    files = [path for path in output.rglob("*") if path.is_file()]
    return {str(path.relative_to(output)) for path in files if path.read_bytes()[:4] == b"PAR1"}


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device", "/a/disk")


def failing_rename(after: int):
    """`Path.rename` that works `after` times for Parquet files."""
    rename, left = Path.rename, [after]

    def run_out(path, target):
        if path.suffix == ".parquet":
            left[0] -= 1
            if left[0] < 0:
                full_disk()
        return rename(path, target)

    return run_out


STEPS = {
    "while ids are saved": (service.Ids, "save", full_disk, False),
    "before the manifest": (ArchiveFolder, "commit", full_disk, False),
    "after the manifest": (ArchiveFolder, "finish", full_disk, True),
    "between two renames": (Path, "rename", failing_rename(3), True),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_disk_that_is_full_while_publishing_is_one_error_and_the_next_run_goes_on(
    spark, cluster, tmp_path, step, monkeypatch
):
    """Wherever publishing is cut, a reader sees published files only and no copy; the next run completes the batch."""
    output = tmp_path / "out"
    owner, name, fault, published = STEPS[step]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fault)
        with pytest.raises(Exception, match=r"No space left on device") as caught:
            run(spark, cluster, output, messages_per_file=100)
    assert re.fullmatch(
        rf"batch \d could not be published, the archive in {output} is as it was before it: No space left on device "
        r"\(/a/disk\)\. Make room and start again: it goes on from there",
        root_text(str(caught.value)),
    )
    folder = ArchiveFolder(output)
    assert any(folder.staging.rglob("*.parquet"))
    known = {file.path for manifest in folder.manifests() for file in manifest.files}
    assert messages_visible_below(output) <= known
    assert bool(known) == published
    if step == "between two renames":
        assert set(archived(output).values()) == {1}
    reports = run(spark, cluster, output, messages_per_file=100)
    assert [report.replayed for report in reports] == [published]
    assert archived(output) == everything(cluster)


def test_a_worker_that_cannot_write_is_one_error_and_the_next_run_goes_on(spark, cluster, tmp_path):
    """The task says so itself, in the line that the command prints."""
    folder = ArchiveFolder(tmp_path / "out")

    def spoil(report) -> None:  # Files where the next batches' folders would be.
        for batch in range(report.batch + 1, report.batch + 4):
            (folder.staging / f"{batch}-{spark.sparkContext.applicationId}").touch()

    with pytest.raises(Exception, match="could not be written to") as caught:
        finished(
            lambda: archive(
                spark,
                name_servers=cluster.namesrv,
                topics="orders",
                output=folder.path,
                once=True,
                messages_per_batch=400,
                on_batch=spoil,
            )
        )
    text = (
        rf"the messages orders@broker-a:\d \[\d+, \d+\) could not be written to {folder.staging}/\d-\S+: File exists .*"
    )
    assert re.fullmatch(text, root_text(str(caught.value)))
    assert 0 < sum(archived(folder.path).values()) < 1000
    run(spark, cluster, folder.path)
    assert archived(folder.path) == everything(cluster)


def test_a_second_run_into_the_same_folder_is_refused_and_the_first_goes_on(spark, cluster, tmp_path):
    """By name; whatever checkpoint and staging folder it would use."""
    output, reports = tmp_path / "out", []

    def start():
        return archive(
            spark, name_servers=cluster.namesrv, topics="orders", output=output, trigger_seconds=0.1,
            on_batch=reports.append,
        )  # fmt: skip

    def going(query):
        eventually(lambda: reports or query.exception())
        if not reports:
            raise query.exception()
        return query

    query = run_through(start, going)
    try:
        with pytest.raises(StoreLocked, match=f"another run writes into {output}: process {os.getpid()} on "):
            run(spark, cluster, output, checkpoint=tmp_path / "other", staging=tmp_path / "elsewhere")
        eventually(lambda: sum(report.rows for report in reports) == 1000)
        cluster.put("orders", 0, [b"after the refusal"], TODAY + 5000)
        eventually(lambda: sum(report.rows for report in reports) == 1001)
        assert query.isActive
    finally:
        query.stop()
    assert archived(output) == everything(cluster)
    assert all(report.replayed for report in run(spark, cluster, output))


def test_a_fresh_checkpoint_over_an_old_archive_is_refused(spark, cluster, tmp_path):
    """It would archive everything a second time."""
    run(spark, cluster, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"was written by the query .* is new or empty: .* archive messages twice"):
        run(spark, cluster, tmp_path / "out", checkpoint=tmp_path / "new")


def test_a_checkpoint_that_has_gone_back_is_refused(spark, cluster, tmp_path):
    """As one that was restored, or that two runs have written: going on would archive messages twice."""
    run(spark, cluster, tmp_path / "out")
    log = max((tmp_path / "out" / "_checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    *head, ends = log.read_text().splitlines()
    log.write_text("\n".join([*head, ends.replace("500", "400")]))
    (log.parent / f".{log.name}.crc").unlink(missing_ok=True)
    with pytest.raises(
        Exception, match=r"begins at offset 400 of orders@broker-a:[01], and \S+/out has its messages up to 500"
    ):
        run(spark, cluster, tmp_path / "out")
    assert archived(tmp_path / "out") == everything(cluster)


def test_a_broker_s_clock_that_jumps_costs_no_message(spark, cluster, tmp_path):
    """A century forwards, and back, in batches of their own: each message once, under the date that the broker gave it.

    Our brokers' store times wait until their clock has come that far again; repeats are known all the same.
    """
    output = tmp_path / "out"
    run(spark, cluster, output)
    for number, store_ms in enumerate((TODAY + CENTURY, TODAY + 1000, 1000)):
        cluster.put("orders", number % 2, [b"one"], store_ms, f"UNIQ_KEY\x01{number:032X}")
        assert [(r.rows, r.repeats) for r in run(spark, cluster, output)] == [(1, 0)]
    assert archived(output) == everything(cluster)
    cluster.put("orders", 1, [b"one"], TODAY + 3000, f"UNIQ_KEY\x01{2:032X}")
    assert [(r.rows, r.repeats) for r in run(spark, cluster, output)] == [(0, 1)]
    days = {path.name for path in (output / "topic=orders").iterdir()}
    assert days == {"date=2023-11-14", "date=2023-11-15", "date=2123-11-16"}


def bare_archiver(path: Path, monkeypatch) -> service._Archiver:
    """What looks for repeats, without a query; no file is changed."""
    archiver = object.__new__(service._Archiver)
    archiver._output, archiver._dedupe = LocalOutput(ArchiveFolder(path)), service._Dedupe("unique_id", 600.0)
    archiver._windows, archiver._newest_ms, archiver._rooms = {}, 0, Rooms()
    monkeypatch.setattr(archiver._output, "drop", lambda _: None)
    return archiver


def test_ids_of_large_files_stay_where_their_tasks_wrote_them(tmp_path, monkeypatch):
    """Of a batch of two large files, a small one and a large one with a repeat: two are kept, what is left of the others is saved."""
    monkeypatch.setattr(outputs, "KEPT_LEAST", 10)
    archiver = bare_archiver(tmp_path / "out", monkeypatch)
    (staged := tmp_path / "staged").mkdir()

    def file(number: int, first: int, count: int) -> Staged:
        """A file of a queue of its own whose messages have the ids from `first` on."""
        text = pa.array([f"{one:032X}" for one in range(first, first + count)])
        found = ids_of(text, np.full(count, TODAY), np.arange(count)).in_order()
        path = staged / f"{number}.ids"
        found.save(path)
        wanted = Slice(MessageQueue("orders", "broker-a", number), 0, count)
        return Staged(
            wanted=wanted, date="2023-11-14", part="", path="", rows=count, ids=Ids.load(path), ids_path=str(path)
        )

    batch = [file(0, 0, 20), file(1, 100, 5), file(2, 19, 15), file(3, 200, 10)]
    names = archiver._drop_repeats("q" * 36, 1, batch)["orders"]
    assert [len(Ids.load(tmp_path / "out" / name)) for name in names] == [20, 10, 5 + 14]
    assert [one.repeats for one in batch] == [0, 0, 1, 0]
    assert len(list(staged.iterdir())) == 2
    for window in (archiver._windows["orders"], again(tmp_path / "out", names)):
        asked = ids_of(pa.array([f"{one:032X}" for one in range(300)]), np.full(300, TODAY), np.arange(300))
        assert window.repeats(asked).tolist() == [*range(34), *range(100, 105), *range(200, 210)]
    archiver._newest_ms = TODAY + 700_000
    archiver._expire()
    assert not list((tmp_path / "out" / "_ids").iterdir())


def again(output: Path, names: list[str]) -> IdWindow:
    """The window as a run that comes later takes it up."""
    window = IdWindow(600.0)
    for name in names:
        window.restore(name, Ids.load(output / name))
    return window


def test_a_run_takes_up_ids_in_several_files_of_a_batch(spark, cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "KEPT_LEAST", 1)
    twice = "UNIQ_KEY\x01" + "AB" * 16
    cluster.put("orders", 0, [b"first"], TODAY + 1000, twice)
    run(spark, cluster, tmp_path / "out", dedupe_seconds=60)
    (manifest,) = ArchiveFolder(tmp_path / "out").manifests()
    assert len(manifest.ids["orders"]) == len(manifest.files) == 4
    assert all((tmp_path / "out" / path).exists() for path in manifest.id_files)
    cluster.put("orders", 1, [b"again"], TODAY + 3000, twice)
    assert [(r.rows, r.repeats) for r in run(spark, cluster, tmp_path / "out", dedupe_seconds=60)] == [(0, 1)]
    assert archived(tmp_path / "out") == everything(cluster) - Counter([(1, 500)])


def test_one_broker_s_wrong_clock_does_not_end_the_search_for_repeats(tmp_path, monkeypatch):
    """A message from the next century, and then from brokers whose clock is right: their repeats are found as before it."""
    archiver = bare_archiver(tmp_path / "out", monkeypatch)
    wanted = Slice(MessageQueue("orders", "broker-a", 0), 0, 1)

    def repeats(batch: int, number: int, store_ms: int) -> int:
        ids = ids_of(pa.array([f"{number:032X}"]), np.array([store_ms]), np.array([batch]))
        file = Staged(wanted=wanted, date="2023-11-14", part="", path="", rows=1, ids=ids)
        archiver._drop_repeats("q" * 36, batch, [file])
        archiver._expire()
        return file.repeats

    assert [repeats(1, 1, TODAY), repeats(2, 2, TODAY + CENTURY), repeats(3, 3, TODAY + 1000)] == [0, 0, 0]
    assert repeats(4, 3, TODAY + 2000) == 1
    assert repeats(5, 2, TODAY + CENTURY) == 1
    assert repeats(6, 4, TODAY + 700_000) == 0
    assert repeats(7, 3, TODAY + 700_001) == 0  # Not within ten minutes.


def test_a_manifest_that_was_cut_short_stops_every_run_until_it_is_mended(spark, cluster, tmp_path):
    """As the page says: from a copy, or, of the newest batch, by taking it out so that it is done again."""
    output = tmp_path / "out"
    run(spark, cluster, output)
    cluster.put("orders", 0, [b"two"], TODAY + 1000)
    run(spark, cluster, output)
    newest = max((output / "_manifests").iterdir())
    whole = newest.read_bytes()
    newest.write_bytes(whole[:100])
    before = archived(output)
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=f"the manifest {newest} cannot be read"):
            run(spark, cluster, output)
    assert archived(output) == before == everything(cluster)
    newest.write_bytes(whole)
    cluster.put("orders", 1, [b"three"], TODAY + 2000)
    run(spark, cluster, output)
    assert archived(output) == everything(cluster)
    newest = max((output / "_manifests").iterdir())
    newest.write_bytes(newest.read_bytes()[:100])
    for path in output.rglob(f"{newest.stem}-*.parquet"):
        path.unlink()
    newest.unlink()
    (output / "_checkpoint" / "commits" / str(int(newest.stem.rpartition("-")[2]))).unlink()
    run(spark, cluster, output)
    assert archived(output) == everything(cluster)


@pytest.mark.slow
@pytest.mark.all
@pytest.mark.spark_all
def test_an_archive_merges_its_files_and_lets_old_dates_go_after_its_batches(spark, cluster, tmp_path):
    """What plain readers and tables see is the same with fewer files; later all of it is gone, and the tail is read on."""
    output = tmp_path / "out"
    (first,) = run(spark, cluster, output, messages_per_file=50, compact_files=3, grace_seconds=0)
    assert (first.rows, first.files, first.compacted, first.expired) == (1000, 20, 20, 0)
    assert sorted(path.name for path in output.rglob("*.parquet")) == [
        "merged-0000000001-0000.parquet", "merged-0000000002-0000.parquet",
    ]  # fmt: skip
    assert archived(output) == everything(cluster)
    whole = table("orders", archive=output, spark=spark).select("queue_id", "queue_offset")
    assert Counter(map(tuple, whole.collect())) == everything(cluster)
    cluster.put("orders", 0, [b"last"], TODAY + 7000)
    (last,) = run(spark, cluster, output, keep_days=1, trust_clock=True, grace_seconds=0)
    assert (last.rows, last.expired) == (1, 3)
    assert not list(output.rglob("*.parquet"))
    cluster.put("orders", 0, [b"live"] * 3, TODAY + 8000)
    assert table("orders", archive=output, name_servers=cluster.namesrv, spark=spark).count() == 3


def test_a_table_is_the_archive_and_the_live_tail(spark, cluster, tmp_path):
    """Every message once: the archived ones from files, later ones from the brokers."""
    run(spark, cluster, tmp_path / "out")
    cluster.put("orders", 1, [b"live"] * 5, TODAY + 5000)
    whole = table("orders", archive=tmp_path / "out", name_servers=cluster.namesrv, spark=spark)
    got = Counter((row.queue_id, row.queue_offset) for row in whole.select("queue_id", "queue_offset").collect())
    assert got == everything(cluster)
    assert table("orders", archive=tmp_path / "out", spark=spark).count() == 1000
    with pytest.raises(ConfigError, match="holds nothing of topic other"):
        table("other", archive=tmp_path / "out", spark=spark)


@pytest.mark.slow
@pytest.mark.all
@pytest.mark.spark_all
def test_a_table_whose_tail_begins_behind_messages_that_are_gone_fails_and_counts_them(spark, cluster, tmp_path):
    """They left the broker before they were archived: an error, unless going on without them is said to be right."""
    run(spark, cluster, tmp_path / "out")
    cluster.put("orders", 1, [b"live"] * 5, TODAY + 5000)
    cluster.put("orders", 0, [b"live"] * 10, TODAY + 6000)
    cluster.new_log_file()
    cluster.put("orders", 0, [b"kept"] * 3, TODAY + 7000)
    cluster.expire("orders", 0, 510)
    later = functools.partial(table, "orders", archive=tmp_path / "out", name_servers=cluster.namesrv, spark=spark)
    with pytest.raises(Exception, match=r"(10|5) messages of orders@broker-a:[01] are gone: offsets \[500, 5"):
        later().count()
    assert later(fail_on_data_loss=False).count() == 1003


@pytest.mark.slow
@pytest.mark.all
@pytest.mark.spark_all
@pytest.mark.parametrize("by", ["date,tag", "date,key:4"])
def test_messages_lie_in_folders_by_their_tag_or_key(spark, cluster, tmp_path, by):
    """Each once, merged within its folder; and an archive keeps its folders."""
    output = tmp_path / "out"
    for number, more in enumerate(["TAGS\x01a/b", "KEYS\x01order-7 x", "TAGS\x01t\x02KEYS\x01order-7", ""]):
        cluster.put("orders", 1, [b"x"], TODAY + number, f"UNIQ_KEY\x01{1_000_000 + number:032X}\x02{more}")
    chosen = {"partition_by": by, "messages_per_file": 100, "compact_files": 1, "grace_seconds": 0}
    run(spark, cluster, output, **chosen)
    assert archived(output) == everything(cluster)
    rows = ds.dataset(output, partitioning="hive").to_table().to_pylist()
    if by == "date,tag":
        assert {(row["by_tag"], row["tag"]) for row in rows} == {("t", "t"), ("a/b", "a/b"), (None, None)}
    else:
        bucket = zlib.crc32(b"order-7") % 4
        found = {(row["by_key"], row["keys"][0] if row["keys"] else None) for row in rows}
        assert found == {(bucket, "order-7"), (0, None)}
    assert len(list(output.rglob("merged-*"))) >= 2
    with pytest.raises(ConfigError, match=f"is partitioned by {by}, and partitionBy=date was given"):
        run(spark, cluster, output)
