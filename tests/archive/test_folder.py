"""The archive's folder: commit, finish, guard."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import msgspec
import pytest

from metaq import durable
from metaq.archive import folder as folders
from metaq.archive.folder import ArchiveFolder
from metaq.archive.records import ArchivedFile, Manifest, final_path
from metaq.archive.replacements import Replacement
from metaq.errors import ConfigError, StoreCorrupt
from metaq.model import offsets
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from tests.support import ROOT

QUERY = "6f1c9a2e-1111-2222-3333-444455556666"
QUEUE = MessageQueue("orders", "broker/a", 3)


def staged(folder: ArchiveFolder, batch: int, *starts: int) -> Manifest:
    """A batch whose files are written and not yet published."""
    files = []
    for start in starts:
        path = folder.staging / f"{batch}-run" / f"{start}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"data of {start}")
        final = final_path(QUERY, batch, Slice(QUEUE, start, start + 1), "2026-03-01")
        relative = folder.relative(path)
        files.append(ArchivedFile(path=final, staged=relative, topic="orders", date="2026-03-01", rows=1, size=9))
    end = offsets.to_json({QUEUE: max(starts) + 1})
    return Manifest(query=QUERY, batch=batch, files=files, rows=len(files), repeats=0, positions=end)


def test_names_are_made_from_query_batch_and_slice(tmp_path):
    """A broker's name cannot leave the folder."""
    assert final_path(QUERY, 7, Slice(QUEUE, 12, 20), "2026-03-01") == (
        "topic=orders/date=2026-03-01/6f1c9a2e-0000000007-broker%2Fa-3-00000000000000000012.parquet"
    )


def test_a_published_batch_is_read_back(tmp_path):
    """Manifests come in order, and the last one says how far the archive has come."""
    folder = ArchiveFolder(tmp_path)
    for batch in (1, 2, 10):
        folder.commit(staged(folder, batch, batch * 100))
    assert [manifest.batch for manifest in folder.manifests()] == [1, 2, 10]
    assert folder.last().end == {QUEUE: 1001}
    assert folder.find(QUERY, 2).rows == 1
    assert folder.find(QUERY, 3) is None


def test_finishing_may_be_repeated(tmp_path):
    """Each file ends in its place, whatever was done before."""
    folder = ArchiveFolder(tmp_path)
    manifest = staged(folder, 1, 5, 6)
    folder.commit(manifest)
    first, second = manifest.files
    assert folder.place(first) == tmp_path / first.staged
    (tmp_path / first.path).parent.mkdir(parents=True)
    (tmp_path / first.staged).rename(tmp_path / first.path)
    for _ in range(2):
        folder.finish(manifest)
        assert [(tmp_path / file.path).read_text() for file in (first, second)] == ["data of 5", "data of 6"]
    assert folder.place(first) == tmp_path / first.path


def test_a_file_that_somebody_took_away_is_told(tmp_path):
    """Going on would leave a hole that nobody knows of."""
    folder = ArchiveFolder(tmp_path)
    manifest = staged(folder, 1, 5)
    (tmp_path / manifest.files[0].staged).unlink()
    with pytest.raises(StoreCorrupt, match="is missing: the batch 1 was published"):
        folder.finish(manifest)


def test_a_broken_manifest_is_told(tmp_path):
    """By its path."""
    folder = ArchiveFolder(tmp_path)
    folder.commit(staged(folder, 1, 5))
    (path,) = (tmp_path / "_manifests").glob("*.json")
    path.write_text("{")
    with pytest.raises(StoreCorrupt, match=str(path)):
        folder.last()


def parquet_under(folder: Path) -> set[str]:
    """What the most careless reader finds: every file under a folder, hidden or not."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix == ".parquet"}


@pytest.mark.parametrize("chosen", [None, "elsewhere"])
def test_nothing_unpublished_is_below_the_folder_of_readers(tmp_path, chosen):
    """Files under way lie beside it, or where they are told to; after publishing nothing is left of that."""
    output = tmp_path / "out"
    folder = ArchiveFolder(output, tmp_path / chosen if chosen else None)
    folder.prepare()
    assert folder.staging.parent == (tmp_path / chosen if chosen else tmp_path)
    manifest = staged(folder, 1, 5, 6)
    assert parquet_under(output) == set()
    assert len(parquet_under(folder.staging)) == 2
    folder.commit(manifest)
    assert parquet_under(output) == set()
    ArchiveFolder(output).finish(manifest)  # The manifest says where, whatever the next run is told.
    assert parquet_under(output) == {file.path for file in manifest.files}
    folder.clean_staging()
    folder.close()
    assert not folder.staging.exists()


def test_a_link_to_the_output_stages_beside_what_it_leads_to(tmp_path):
    """On that file system; and the manifest's relative paths hold through the link too."""
    (tmp_path / "disk" / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "real")
    folder = ArchiveFolder(tmp_path / "link")
    folder.prepare()
    assert folder.staging == tmp_path / "disk" / ".real.staging"
    manifest = staged(folder, 1, 5)
    folder.commit(manifest)
    folder.finish(manifest)
    assert (tmp_path / "disk" / "real" / manifest.files[0].path).exists()


def test_a_batch_of_an_earlier_release_is_finished_and_its_staging_goes(tmp_path):
    """There unfinished files lay in `_staging`, inside the output."""
    folder = ArchiveFolder(tmp_path / "out")
    folder.prepare()
    old, left = tmp_path / "out" / "_staging" / "1-run" / "5.parquet", tmp_path / "out" / "_staging" / "0-run" / "x"
    for path in (old, left):
        path.parent.mkdir(parents=True)
        path.write_text("data of 5")
    manifest = staged(folder, 1, 5)
    manifest = msgspec.structs.replace(
        manifest, files=[msgspec.structs.replace(manifest.files[0], staged="_staging/1-run/5.parquet")]
    )
    folder.commit(manifest)
    folder.finish(manifest)
    folder.clean_staging()
    assert (tmp_path / "out" / manifest.files[0].path).read_text() == "data of 5"
    assert not (tmp_path / "out" / "_staging").exists()


def test_an_output_that_cannot_be_one_is_refused_by_name(tmp_path, monkeypatch):
    """A file, a folder below a file, and a staging folder that readers would see."""
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=f"the output {file} is a file; a folder is needed"):
        ArchiveFolder(file).prepare()
    with pytest.raises(ConfigError, match=f"the output {file / 'deeper'} cannot be made: Not a directory"):
        ArchiveFolder(file / "deeper").prepare()
    with pytest.raises(ConfigError, match="is inside the output: readers would see unfinished files"):
        ArchiveFolder(tmp_path / "out", tmp_path / "out" / "_under_way").prepare()

    def other_disk(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Path, "rename", other_disk)
    with pytest.raises(ConfigError, match=r"are not on one file system, .*\(--staging\)"):
        ArchiveFolder(tmp_path / "out").prepare()
    assert not (tmp_path / ".out.staging").exists()


def test_what_is_published_is_on_the_disk_with_every_folder_above_it(tmp_path, monkeypatch):
    """A new date is a new folder: its name must be synced as well, before the next batch is begun."""
    synced = []
    real = durable.sync_folder
    for module in (folders, durable):
        monkeypatch.setattr(module, "sync_folder", lambda path: (synced.append(path), real(path)))
    folder = ArchiveFolder(tmp_path / "out")
    folder.prepare()
    assert tmp_path in synced
    manifest = staged(folder, 1, 5)
    folder.commit(manifest)
    assert {folder.path, folder.path / "_manifests"} <= set(synced)
    for _ in range(2):  # Again after a crash between the rename and the sync.
        synced.clear()
        folder.finish(manifest)
        final = folder.path / manifest.files[0].path
        assert set(synced) == {final.parent, final.parent.parent, folder.path}


def test_the_guard_knows_its_own_checkpoint(tmp_path):
    """A new folder takes any, an old one only the checkpoint that made it."""
    folder, checkpoint = ArchiveFolder(tmp_path / "out"), tmp_path / "checkpoint"
    folder.guard(checkpoint, None)
    folder.commit(staged(folder, 1, 5))
    with pytest.raises(ConfigError, match="is new or empty"):
        folder.guard(checkpoint, None)
    with pytest.raises(ConfigError, match=r"belongs to another query \(another\)"):
        folder.guard(checkpoint, "another")
    folder.guard(checkpoint, QUERY)


def test_the_documented_manifest_is_one(tmp_path):
    """docs/formats/archive.md shows what is written and read."""
    page = (ROOT / "docs" / "formats" / "archive.md").read_text()
    text, _decoding, replaced = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    record = msgspec.json.decode(replaced.encode(), type=Replacement, strict=True)
    assert msgspec.json.decode(msgspec.json.encode(record)) == json.loads(replaced)
    manifest = msgspec.json.decode(text.encode(), type=Manifest, strict=True)
    assert msgspec.json.decode(msgspec.json.encode(manifest)) == json.loads(text)
    folder = ArchiveFolder(tmp_path)
    folder.commit(manifest)
    assert folder.last().end == {MessageQueue("orders", "broker-a", 3): 125_000}
