"""An archive on a file system of Hadoop's: what decides between two runs, and what may be taken away. In memory."""

from __future__ import annotations

import pytest
from msgspec import structs

from metaq.archive.records import ArchivedFile, Manifest, final_path
from metaq.archive.replacements import view
from metaq.clock import FakeClock
from metaq.errors import ConfigError, StoreCorrupt, StoreLocked
from metaq.model.offsets import Slice, to_json
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.hadoop import probe
from metaq.pipelines.archive.hadoop.folder import HadoopFolder
from metaq.pipelines.archive.hadoop.retention import HadoopRetention
from metaq.pipelines.archive.options import ArchiveOptions
from tests.hadoop.memory import MemoryFiles

QUERY = "6f1c9a2e-1111-2222-3333-444455556666"
QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
def folder():
    made = HadoopFolder(MemoryFiles())
    made.prepare()
    return made


def staged(folder: HadoopFolder, batch: int, run: str, date: str = "2026-03-01") -> Manifest:
    """A batch of one file, ready to be published."""
    path = f"{folder.begin_batch(batch, run)}/file.parquet"
    folder.files.write(path, f"{batch} of {run}".encode())
    file = ArchivedFile(
        path=final_path(QUERY, batch, Slice(QUEUE, batch, batch + 1), date),
        staged=path,
        topic="orders",
        date=date,
        rows=1,
        size=1,
    )
    return Manifest(query=QUERY, batch=batch, files=[file], rows=1, repeats=0, positions=to_json({QUEUE: batch + 1}))


def publish(folder: HadoopFolder, manifest: Manifest) -> None:
    folder.commit(manifest)
    folder.finish(manifest)
    folder.clean(manifest.batch)


def test_a_batch_is_published_once_however_often_it_is_finished(folder):
    manifest = staged(folder, 0, "a")
    folder.commit(manifest)
    assert folder.places(manifest.files) == {manifest.files[0].path: folder.at(manifest.files[0].staged)}
    for _ in range(2):
        folder.finish(manifest)
    folder.commit(manifest)  # The answer to the first try was lost.
    folder.clean(0)
    folder.close()
    assert folder.read(manifest.files[0].path) == b"0 of a"
    assert folder.places(manifest.files) == {manifest.files[0].path: folder.at(manifest.files[0].path)}
    assert not folder.files.exists(folder.staging)
    assert (folder.last(), folder.find(QUERY, 0), folder.find(QUERY, 1)) == (manifest, manifest, None)
    assert view(folder).files == manifest.files


def test_a_run_that_wakes_after_it_was_taken_for_dead_is_refused(folder):
    """The other one has published the batch; its files are the archive, and the sleeper's are nobody's."""
    sleeper = staged(folder, 0, "asleep")
    publish(folder, staged(folder, 0, "awake"))
    publish(folder, staged(folder, 1, "awake"))
    with pytest.raises(
        StoreLocked,
        match=r"another run publishes in memory://host/home/out, and batch 0 is its: this one was taken for",
    ):
        folder.commit(sleeper)
    folder.finish(next(folder.manifests()))
    assert folder.read(sleeper.files[0].path) == b"0 of awake"
    assert len(list(folder.manifests())) == 2


def test_what_a_sleeper_could_yet_publish_is_not_taken_away(folder):
    """The run that took over cleans before it has published the batch: should the sleeper be first, its files are there."""
    publish(folder, staged(folder, 0, "a"))
    sleeper = staged(folder, 1, "asleep")
    folder.clean(0)
    other = staged(folder, 1, "awake")
    folder.commit(sleeper)
    with pytest.raises(StoreLocked):
        folder.commit(other)
    folder.finish(sleeper)
    assert folder.read(sleeper.files[0].path) == b"1 of asleep"
    folder.clean(1)
    assert not folder.files.entries(folder.staging)


def test_a_manifest_under_way_is_no_manifest_and_is_taken_away(folder):
    folder.files.write("_manifests/.6f1c9a2e-0000000000.json.ab12.tmp", b"{")
    assert folder.last() is None
    folder.clean(-1)
    assert not folder.files.entries("_manifests")


def test_a_published_file_that_somebody_took_away_is_told(folder):
    manifest = staged(folder, 0, "a")
    folder.commit(manifest)
    folder.files.remove(manifest.files[0].staged)
    folder.finish(manifest, lambda: {manifest.files[0].path})
    with pytest.raises(
        StoreCorrupt, match=r"-0000000000-broker-a-0-0+\.parquet is missing: the batch 0 was published in memory"
    ):
        folder.finish(manifest)


def test_where_renaming_is_copying_a_crash_between_leaves_one_file(folder):
    manifest = staged(folder, 0, "a")
    folder.commit(manifest)
    folder.files.write(manifest.files[0].path, folder.read(manifest.files[0].staged))
    folder.finish(manifest)
    assert folder.read(manifest.files[0].path) == b"0 of a"
    assert not folder.files.exists(manifest.files[0].staged)


def test_ids_that_no_manifest_knows_go_when_their_batch_is_published(folder):
    for name in ("6f1c9a2e-0000000000-0-aa.arrow", "6f1c9a2e-0000000000-0-bb.arrow", "6f1c9a2e-0000000001-0-cc.arrow"):
        folder.files.write(f"_ids/{name}", b"")
    folder.clean_ids({"_ids/6f1c9a2e-0000000000-0-aa.arrow"}, 0)
    assert [entry.name[-8:] for entry in folder.files.entries("_ids")] == ["aa.arrow", "cc.arrow"]


def test_staging_lies_beside_the_output_or_where_it_is_told(folder):
    files = MemoryFiles()
    assert HadoopFolder(files).staging == "../.out.staging"
    assert HadoopFolder(files, "memory://host/tmp").staging == "../../tmp/.out.staging"
    assert HadoopFolder(files, "memory://host/").staging == "../../.out.staging"
    for other, why in (
        ("memory://other/tmp", "is not on the file"),
        ("memory://host/home/out/tmp", "is inside the output"),
    ):
        with pytest.raises(ConfigError, match=why):
            HadoopFolder(files, other)
    files.root = "memory://host"
    with pytest.raises(ConfigError, match="is all of a file system"):
        HadoopFolder(files)


# ---- what a file system must be able to do
WORSE = {
    "two make one file": ({"overwrites": True}, r"of 4 who made one file at once, 4 were told that they did"),
    "a rename replaces": ({"rename_overwrites": True}, r"a file is renamed over one that is there"),
    "listings lag": ({"forgets_names": True}, r"a file that was made is not in the next listing"),
    "it says so itself": ({"lists_late": True}, r"its listings lag behind what was written"),
    "nothing is safe": ({"can_sync": False}, r"it cannot tell when a file is safe \(hsync\)"),
    "renames are copies": ({"root": "s3a://bucket/out"}, r"renames there are copies, and it does not declare"),
}


@pytest.mark.parametrize("name", WORSE)
def test_a_file_system_that_lacks_what_publishing_needs_is_refused_by_name_of_it(name):
    files = MemoryFiles()
    faults, text = WORSE[name]
    for attribute, value in faults.items():
        setattr(files, attribute, value)
    with pytest.raises(ConfigError, match=rf"is on a file system that cannot hold an archive: {text}"):
        HadoopFolder(files).prepare()
    assert not [path for path in files.tree if "_probe" in path]


def test_a_store_of_objects_that_makes_one_only_where_there_is_none_will_do():
    files = MemoryFiles("s3a://bucket/out")
    files.is_conditional, files.can_sync = True, False
    HadoopFolder(files).prepare()


def test_a_rename_that_is_refused_names_the_staging_folder(monkeypatch):
    """As between two encryption zones of HDFS."""

    def refuse(*_):
        raise OSError(5, "can't be moved from an encryption zone")

    files = MemoryFiles()
    monkeypatch.setattr(files, "rename", refuse)
    with pytest.raises(
        ConfigError,
        match=r"out of the staging folder memory://host/home/.out.staging\S*: can't be moved from .* \(--stag",
    ):
        HadoopFolder(files).prepare()


def test_a_folder_that_may_not_be_written_to_is_refused():
    files = MemoryFiles()
    files.fault = PermissionError(13, "Permission denied: user=me")
    with pytest.raises(
        ConfigError, match="the output memory://host/home/out cannot be written to: Permission denied: user=me"
    ):
        probe.probe(files, "../.out.staging")


# ---- old dates
def test_old_dates_go_for_readers_by_the_manifests_at_once_and_their_files_after_the_grace(folder):
    clock = FakeClock(1_772_668_800_000)  # 2026-03-05
    for batch, date in enumerate(("2026-03-01", "2026-03-01", "2026-03-04")):
        publish(folder, staged(folder, batch, "a", date))
    options = ArchiveOptions(output="memory://host/home/out", topics="orders", keep_days=2, grace_seconds=60.0)
    kept = HadoopRetention(folder, options, clock)
    kept.prepare()
    assert [(step.what, step.files) for step in kept.look()] == [("expired", 2)]
    assert [file.date for file in view(folder).files] == ["2026-03-04"]
    assert list(kept.look()) == []
    assert len(folder.files.entries("topic=orders/date=2026-03-01")) == 2
    clock.advance(61)
    again = HadoopRetention(folder, options.replace(keep_days=None), clock)  # What was begun is finished.
    again.prepare()
    assert [(step.what, step.files) for step in again.look()] == [("removed", 2)]
    assert list(again.look()) == list(kept.look()) == []
    assert [entry.name for entry in folder.files.entries("topic=orders")] == ["date=2026-03-04"]


def test_two_runs_that_let_dates_go_at_once_write_two_records(folder):
    """Of a run that was thought dead: its record is in the way, and the other one's gets the next number."""
    clock = FakeClock(1_772_668_800_000)
    publish(folder, staged(folder, 0, "a", "2026-03-01"))
    options = ArchiveOptions(output="memory://host/home/out", topics="orders", keep_days=2, trust_clock=True)
    one, other = HadoopRetention(folder, options, clock), HadoopRetention(folder, options, clock)
    one.prepare()
    other.prepare()
    assert [step.what for step in one.look()] == ["expired"]
    publish(folder, structs.replace(staged(folder, 1, "a", "2026-03-02"), positions=to_json({QUEUE: 2})))
    assert [step.what for step in other.look()] == ["expired", "expired"]
    assert folder.names("_replacements") == ["0000000001.json", "0000000002.json", "0000000003.json"]
    assert view(folder).files == []


def test_a_fault_while_old_dates_go_costs_no_batch(folder, caplog):
    options = ArchiveOptions(output="memory://host/home/out", topics="orders", keep_days=2, trust_clock=True)
    kept = HadoopRetention(folder, options, FakeClock(1_772_668_800_000))
    publish(folder, staged(folder, 0, "a", "2026-03-01"))
    kept.prepare()
    folder.files.fault = OSError(122, "The DiskSpace quota is exceeded")
    assert list(kept.look()) == []
    assert "old dates stay for now: The DiskSpace quota is exceeded. Make room" in caplog.text
    folder.files.fault = None
    assert [step.what for step in kept.look()] == ["expired"]
