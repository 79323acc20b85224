"""The archive's folder: commit, finish, guard."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from metaq.errors import ConfigError, StoreCorrupt
from metaq.model.queue import MessageQueue
from metaq.spark import offsets
from metaq.spark.offsets import Slice
from metaq.spark.pipelines.folder import ArchivedFile, ArchiveFolder, Manifest, final_path
from tests.support import ROOT

QUERY = "6f1c9a2e-1111-2222-3333-444455556666"
QUEUE = MessageQueue("orders", "broker/a", 3)


def staged(folder: ArchiveFolder, batch: int, *starts: int) -> Manifest:
    """A batch whose files are written and not yet published."""
    files = []
    for start in starts:
        path = folder.path / "_staging" / f"{batch}-run" / f"{start}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"data of {start}")
        final = final_path(QUERY, batch, Slice(QUEUE, start, start + 1), "2026-03-01")
        relative = str(path.relative_to(folder.path))
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


def test_the_guard_knows_its_own_checkpoint(tmp_path):
    """A new folder takes any, an old one only the checkpoint that made it."""
    folder, checkpoint = ArchiveFolder(tmp_path / "out"), tmp_path / "checkpoint"
    folder.guard(checkpoint)
    folder.commit(staged(folder, 1, 5))
    with pytest.raises(ConfigError, match="is new or empty"):
        folder.guard(checkpoint)
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "another"}))
    with pytest.raises(ConfigError, match=r"belongs to another query \(another\)"):
        folder.guard(checkpoint)
    (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    folder.guard(checkpoint)


def test_the_documented_manifest_is_one(tmp_path):
    """docs/formats/archive.md shows what is written and read."""
    (text,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "formats" / "archive.md").read_text(), re.DOTALL)
    manifest = msgspec.json.decode(text.encode(), type=Manifest, strict=True)
    assert msgspec.json.decode(msgspec.json.encode(manifest)) == json.loads(text)
    folder = ArchiveFolder(tmp_path)
    folder.commit(manifest)
    assert folder.last().end == {MessageQueue("orders", "broker-a", 3): 125_000}
