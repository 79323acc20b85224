"""The archive pipeline on a real HDFS. The oracle reads it over HTTP, and knows neither Spark nor ours."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgspec
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from metaq.errors import ConfigError, StoreLocked
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.hadoop import output as hadoop_output
from metaq.pipelines.archive.hadoop.folder import HadoopFolder
from metaq.pipelines.archive.service import archive
from metaq.pipelines.driver import root_text
from metaq.pipelines.run import status_of
from metaq.spark import table
from metaq.spark.engine.hadoop import HadoopFiles
from tests.pipelines.stumbling import Stumbling
from tests.scripted import ScriptedCluster
from tests.spark.running import finished
from tests.support import eventually

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]
TODAY = 1_700_006_400_000  # 2023-11-15, 00:00 UTC


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster") as running:
        for store_ms, numbers in ((TODAY - 1000, range(300)), (TODAY, range(300, 500))):
            for queue_id in range(2):
                running.put("orders", queue_id, [b"%d-%d" % (queue_id, i) for i in numbers], store_ms)
        yield running


@pytest.fixture
def home(hdfs, request):
    """A folder of the test's own. Its name is no glob and no escape, and looks like both."""
    return hdfs.folder(re.sub(r"\W+", "-", request.node.name))


def run(spark, cluster, output, folder, **options) -> list:
    reports: list = []
    chosen = {"once": True, "run_folder": folder / "run", "lease_seconds": 2, **options}
    finished(
        lambda: archive(
            spark, name_servers=cluster.namesrv, topics="orders", output=output, on_batch=reports.append, **chosen
        )
    )
    return reports


def archived(hdfs, output: str, folder: Path) -> Counter:
    """(queue, offset) of every row that a plain reader of the folder sees, with how often it sees it."""
    copy = hdfs.copy(output, folder / f"copy-{len(list(folder.glob('copy-*')))}")
    rows = ds.dataset(copy, partitioning="hive").to_table(columns=["queue_id", "queue_offset"]).to_pylist()
    return Counter((row["queue_id"], row["queue_offset"]) for row in rows)


def everything(cluster) -> Counter:
    return Counter((queue.queue_id, i) for queue, end in cluster.ends("orders").items() for i in range(end))


def test_every_message_is_archived_once_and_read_as_one_table(spark, hdfs, cluster, home, tmp_path):
    """The files are those of a local archive: same folders, same names, same columns and types, same values."""
    output = f"{home}/out"
    reports = run(spark, cluster, output, tmp_path, messages_per_batch=400, messages_per_file=150, progress_group="far")
    assert sum(report.rows for report in reports) == 1000
    assert archived(hdfs, output, tmp_path) == everything(cluster)
    near: list = []
    finished(
        lambda: archive(
            spark, name_servers=cluster.namesrv, topics="orders", output=tmp_path / "near", once=True, on_batch=near.append,
            messages_per_batch=400, messages_per_file=150,
        )
    )  # fmt: skip
    far, local = (ds.dataset(place, partitioning="hive") for place in (tmp_path / "copy-0", tmp_path / "near"))
    key = [("queue_id", "ascending"), ("queue_offset", "ascending")]
    assert far.to_table().sort_by(key).equals(local.to_table().sort_by(key))
    without_query = [
        sorted(re.sub(r"/\w{8}-\d{10}-", "/", str(path.relative_to(place))) for path in place.rglob("*.parquet"))
        for place in (tmp_path / "copy-0", tmp_path / "near")
    ]
    assert without_query[0] == without_query[1]
    one, other = (pq.ParquetFile(next(place.rglob("*.parquet"))) for place in (tmp_path / "copy-0", tmp_path / "near"))
    assert one.schema_arrow.equals(other.schema_arrow)
    assert one.metadata.row_group(0).column(0).compression == "ZSTD"

    cluster.put("orders", 1, [b"new"] * 7, TODAY + 5000)
    assert table("orders", archive=output, spark=spark).count() == 1000
    whole = table("orders", archive=output, name_servers=cluster.namesrv, spark=spark).select(
        "queue_id", "queue_offset"
    )
    assert Counter(map(tuple, whole.collect())) == everything(cluster)
    assert [report.rows for report in run(spark, cluster, output, tmp_path, progress_group="far")] == [7]
    assert archived(hdfs, output, tmp_path) == everything(cluster)
    assert cluster.progress("far", "orders")[MessageQueue("orders", "broker-a", 1)] == 507
    assert sorted(hdfs.names(output)) == ["_checkpoint", "_ids", "_lease", "_manifests", "topic=orders"]
    # The run ends soon after its query.
    eventually(lambda: (found := status_of(tmp_path / "run")) is not None and found.state == "ended")
    assert hdfs.names(home) == ["out"]


def test_what_a_failed_attempt_of_a_task_wrote_is_not_archived(spark, hdfs, cluster, home, tmp_path, monkeypatch):
    """Every task fails once when it has written all of its files: what is counted is what is there in the end."""
    monkeypatch.setattr(hadoop_output, "SliceRows", Stumbling)
    reports = run(spark, cluster, f"{home}/out", tmp_path, messages_per_file=150)
    assert sum(report.rows for report in reports) == 1000
    assert archived(hdfs, f"{home}/out", tmp_path) == everything(cluster)


@pytest.mark.parametrize("dedupe", ["unique_id", "key"])
def test_a_repeated_send_is_archived_once_across_batches_and_runs(spark, hdfs, cluster, home, tmp_path, dedupe):
    """Files are written anew without the repeats, and a later run knows the ids of one before."""
    output, chosen = f"{home}/out", {"dedupe": dedupe, "dedupe_seconds": 60}
    twice = "UNIQ_KEY\x01" + "AB" * 16 + "\x02KEYS\x01order-7"
    cluster.put("orders", 0, [b"first"], TODAY + 1000, twice)
    cluster.put("orders", 1, [b"first"], TODAY + 2000, twice)
    assert [(r.rows, r.repeats) for r in run(spark, cluster, output, tmp_path, **chosen)] == [(1001, 1)]
    cluster.put("orders", 1, [b"again", b"fresh"], TODAY + 3000, twice)
    assert [(r.rows, r.repeats) for r in run(spark, cluster, output, tmp_path, **chosen)] == [(0, 2)]
    cluster.put("orders", 1, [b"much later"], TODAY + 70_000, twice)
    assert [(r.rows, r.repeats) for r in run(spark, cluster, output, tmp_path, **chosen)] == [(1, 0)]
    assert archived(hdfs, output, tmp_path) == everything(cluster) - Counter([(1, 500), (1, 501), (1, 502)])
    eventually(lambda: hdfs.names(home) == ["out"])


@pytest.mark.parametrize("by", ["date,tag", "date,key:4"])
def test_messages_lie_in_folders_by_their_tag_or_key(spark, hdfs, cluster, home, tmp_path, by):
    """Also where a tag is no name of a folder; and old dates go, with their folders, after the grace."""
    output = f"{home}/out"
    for number, more in enumerate(["TAGS\x01a/b%2F é=", "KEYS\x01order-7 x", "TAGS\x01t\x02KEYS\x01order-7", ""]):
        cluster.put("orders", 1, [b"x"], TODAY + number, f"UNIQ_KEY\x01{1_000_000 + number:032X}\x02{more}")
    run(spark, cluster, output, tmp_path, partition_by=by, dedupe="off")
    assert archived(hdfs, output, tmp_path) == everything(cluster)
    rows = ds.dataset(tmp_path / "copy-0", partitioning="hive").to_table().to_pylist()
    if by == "date,tag":
        assert {(row["by_tag"], row["tag"]) for row in rows} == {("t", "t"), ("a/b%2F é=", "a/b%2F é="), (None, None)}
    else:
        assert len({row["by_key"] for row in rows}) == 2
    with pytest.raises(ConfigError, match=f"is partitioned by {by}, and partitionBy=date was given"):
        run(spark, cluster, output, tmp_path)
    cluster.put("orders", 0, [b"last"], TODAY + 7000)
    chosen = {"partition_by": by, "dedupe": "off", "keep_days": 1, "trust_clock": True}
    reports = run(spark, cluster, output, tmp_path, **chosen)
    assert sum(report.expired for report in reports) > 0
    assert len(archived(hdfs, output, tmp_path)) == 1005  # The grace.
    cluster.put("orders", 0, [b"live"] * 3, TODAY + 8000)
    assert table("orders", archive=output, name_servers=cluster.namesrv, spark=spark).count() == 3
    run(spark, cluster, output, tmp_path, **chosen, grace_seconds=0)
    assert [path for path in hdfs.files(output) if path.endswith(".parquet")] == []
    assert "topic=orders" not in hdfs.names(output)


def test_a_run_that_was_taken_for_dead_and_wakes_is_refused(spark, hdfs, cluster, home, tmp_path):
    """Should it not look at the lease first, the other one's manifest is in its way (as processes: test_archive_run_hdfs)."""
    output = f"{home}/out"
    run(spark, cluster, output, tmp_path)
    published = hdfs.files(f"{output}/_manifests")
    folder = HadoopFolder(HadoopFiles(spark, output))
    last = folder.last()
    assert last is not None
    sleeper = msgspec.structs.replace(last, rows=1, files=[])
    with pytest.raises(
        StoreLocked, match=f"another run publishes in {output}, and batch {last.batch} is its: this one was taken"
    ):
        folder.commit(sleeper)
    folder.commit(last)  # Its own, whose answer was lost.
    assert hdfs.files(f"{output}/_manifests") == published
    assert folder.last() == last


def test_a_quota_that_is_used_up_is_one_error_and_the_next_run_goes_on(spark, hdfs, cluster, home, tmp_path):
    """Of the folder that holds both: the tasks cannot write. Of the output: the manifest cannot be made."""
    output = f"{home}/out"
    plain = hdfs.folder(output.removeprefix(f"{hdfs.uri}/"))
    assert plain == output
    hdfs.folder(f"{home.removeprefix(f'{hdfs.uri}/')}/checkpoint")
    chosen = {"checkpoint": f"file:{tmp_path}/checkpoint"}
    for place in (home, output):
        cluster.put("orders", 0, [b"more"] * 10, TODAY + 5000)

        def full(report, place=place) -> None:
            hdfs.order("space", place.removeprefix(hdfs.uri), 1_000_000)

        with pytest.raises(Exception, match="quota") as caught:
            finished(
                lambda: archive(
                    spark, name_servers=cluster.namesrv, topics="orders", output=output, once=True, on_batch=full,
                    run_folder=tmp_path / "run", lease_seconds=2, messages_per_batch=400, **chosen,
                )
            )  # fmt: skip
        hdfs.order("free", place.removeprefix(hdfs.uri))
        assert re.search(
            r"The DiskSpace quota of \S+ is exceeded: .* Make room and start again", root_text(str(caught.value))
        )
        known = {
            file.path for manifest in HadoopFolder(HadoopFiles(spark, output)).manifests() for file in manifest.files
        }
        assert {path for path in hdfs.files(output) if path.endswith(".parquet")} <= known
    run(spark, cluster, output, tmp_path, **chosen)
    assert archived(hdfs, output, tmp_path) == everything(cluster)


def test_what_may_not_be_written_and_what_is_no_file_system_is_refused_at_the_start(
    spark, hdfs, cluster, home, tmp_path
):
    """One line each, before anything is read."""
    with pytest.raises(
        ConfigError, match=r"the output hdfs://\S+/nobody cannot be written to: Permission denied: user="
    ):
        run(spark, cluster, f"{hdfs.uri}/nobody", tmp_path)
    with pytest.raises(ConfigError, match=r"is all of a file system: give the archive a folder of its own"):
        run(spark, cluster, f"{hdfs.uri}/", tmp_path)
    with pytest.raises(ConfigError, match=r"nope://x/y cannot be used: No FileSystem for scheme .* spark\.jars"):
        run(spark, cluster, "nope://x/y", tmp_path)
    with pytest.raises(ConfigError, match=r"compactFiles=3: .* which hdfs: cannot do"):
        run(spark, cluster, f"{home}/out", tmp_path, compact_files=3)
    with pytest.raises(ConfigError, match=r"is not on the file system of the output"):
        run(spark, cluster, f"{home}/out", tmp_path, staging="file:/tmp")
    with pytest.raises(ConfigError, match=r"is inside the output"):
        run(spark, cluster, f"{home}/out", tmp_path, staging=f"{home}/out/below")
    assert hdfs.names(home) == []
