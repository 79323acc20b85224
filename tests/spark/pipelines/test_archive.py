"""The archive pipeline, against a scripted cluster. The oracle is pyarrow, never Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from metaq.errors import ConfigError
from metaq.model.queue import MessageQueue
from metaq.spark import table
from metaq.spark.pipelines import folder as folders
from metaq.spark.pipelines.archive import archive
from metaq.spark.pipelines.folder import ArchiveFolder
from tests.spark.fake_cluster import FakeCluster

pytestmark = pytest.mark.spark
DAY_MS = 86_400_000
TODAY = 1_700_006_400_000  # 2023-11-15, 00:00 UTC


@pytest.fixture
def cluster():
    with FakeCluster(messages_max=1000) as fake:
        for queue_id in range(2):
            fake.put("orders", queue_id, [b"%d-%d" % (queue_id, i) for i in range(300)], TODAY - 1000)
            fake.put("orders", queue_id, [b"%d-%d" % (queue_id, i) for i in range(300, 500)], TODAY)
        yield fake


def run(spark, fake, output, **options) -> list:
    reports: list = []
    query = archive(
        spark, name_servers=fake.address, topics="orders", output=output, once=True, on_batch=reports.append, **options
    )
    assert query.awaitTermination(60)
    return reports


def archived(output: Path) -> Counter:
    """(queue, offset) of every row that a plain reader of the folder sees, with how often it sees it."""
    rows = ds.dataset(output, partitioning="hive").to_table(columns=["queue_id", "queue_offset"]).to_pylist()
    return Counter((row["queue_id"], row["queue_offset"]) for row in rows)


def everything(fake) -> Counter:
    return Counter((queue.queue_id, i) for queue, kept in fake.queues.items() for i in range(kept.end))


def test_every_message_is_archived_once_under_its_store_date(spark, cluster, tmp_path):
    """All rows, in folders by topic and UTC date; a second run adds only what is new."""
    reports = run(spark, cluster, tmp_path, messages_per_batch=400, messages_per_file=150, progress_group="archiver")
    assert archived(tmp_path) == everything(cluster)
    assert sum(report.rows for report in reports) == 1000
    dates = sorted(path.name for path in (tmp_path / "topic=orders").iterdir())
    assert dates == ["date=2023-11-14", "date=2023-11-15"]
    late = ds.dataset(tmp_path / "topic=orders" / "date=2023-11-15").to_table().to_pylist()
    assert sorted(row["queue_offset"] for row in late) == sorted([*range(300, 500)] * 2)
    assert late[0]["properties"][-1] == ("TAGS", "t")
    assert not (tmp_path / "_staging").exists()

    cluster.put("orders", 0, [b"new"] * 7, TODAY + 5000)
    assert [report.rows for report in run(spark, cluster, tmp_path, progress_group="archiver")] == [7]
    assert archived(tmp_path) == everything(cluster)
    assert cluster.progress["archiver", MessageQueue("orders", "broker-a", 0)] == 507


def test_a_repeated_send_is_archived_once_across_batches_and_runs(spark, cluster, tmp_path):
    """The same unique id in another queue, batch or run is left out, within the window only."""
    twice = "UNIQ_KEY\x01" + "AB" * 16
    cluster.put("orders", 0, [b"first"], TODAY + 1000, twice)
    cluster.put("orders", 1, [b"first"], TODAY + 2000, twice)
    (report,) = run(spark, cluster, tmp_path, dedupe_seconds=60)
    assert (report.rows, report.repeats) == (1001, 1)
    cluster.put("orders", 1, [b"again", b"fresh"], TODAY + 3000, twice)
    assert [(r.rows, r.repeats) for r in run(spark, cluster, tmp_path, dedupe_seconds=60)] == [(0, 2)]
    cluster.put("orders", 1, [b"much later"], TODAY + 70_000, twice)
    assert [(r.rows, r.repeats) for r in run(spark, cluster, tmp_path, dedupe_seconds=60)] == [(1, 0)]
    expected = everything(cluster) - Counter([(1, 500), (1, 501), (1, 502)])
    assert archived(tmp_path) == expected


@pytest.mark.parametrize("step", ["before the manifest", "after the manifest", "between two renames"])
def test_a_crash_while_publishing_is_made_good_by_the_next_run(spark, cluster, tmp_path, step, monkeypatch):
    """Wherever publishing is cut, a plain reader sees no copy, and the next run completes the batch."""

    def crash(*_):
        raise RuntimeError("crashed here")

    finish = ArchiveFolder.finish

    def crash_after_one(self, manifest):
        finish(self, folders.msgspec.structs.replace(manifest, files=manifest.files[:1]))
        crash()

    with monkeypatch.context() as patch:
        if step == "before the manifest":
            patch.setattr(ArchiveFolder, "commit", crash)
        else:
            patch.setattr(ArchiveFolder, "finish", crash if step == "after the manifest" else crash_after_one)
        with pytest.raises(Exception, match="crashed here"):
            run(spark, cluster, tmp_path, messages_per_file=100)
    assert (tmp_path / "_staging").exists()
    if step == "between two renames":
        assert max(archived(tmp_path).values()) == 1
    reports = run(spark, cluster, tmp_path, messages_per_file=100)
    assert [report.replayed for report in reports] == [step != "before the manifest"]
    assert archived(tmp_path) == everything(cluster)


def test_a_fresh_checkpoint_over_an_old_archive_is_refused(spark, cluster, tmp_path):
    """It would archive everything a second time."""
    run(spark, cluster, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"was written by the query .* is new or empty: .* archive messages twice"):
        run(spark, cluster, tmp_path / "out", checkpoint=tmp_path / "new")


def test_a_table_is_the_archive_and_the_live_tail(spark, cluster, tmp_path):
    """Every message once: the archived ones from files, later ones from the brokers."""
    run(spark, cluster, tmp_path)
    cluster.put("orders", 1, [b"live"] * 5, TODAY + 5000)
    whole = table("orders", archive=tmp_path, name_servers=cluster.address, spark=spark)
    got = Counter((row.queue_id, row.queue_offset) for row in whole.select("queue_id", "queue_offset").collect())
    assert got == everything(cluster)
    assert table("orders", archive=tmp_path, spark=spark).count() == 1000
    with pytest.raises(ConfigError, match="holds nothing of topic other"):
        table("other", archive=tmp_path, spark=spark)
