"""Flipped bits in archived files: told by whoever reads them, and by `metaq pipeline check`."""

from __future__ import annotations

import hashlib
import json
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from metaq import MessageQueue, Reader
from metaq.archive.folder import ArchiveFolder
from metaq.archive.parquet import checked_format, opened, without_offsets
from metaq.cli import commands as cli
from metaq.errors import MetaqError, StoreCorrupt
from metaq.pipelines.changes import bucket
from metaq.pipelines.checking import check_archive
from metaq.pipelines.compact.merging import merge
from metaq.spark.files.read import read_parts
from metaq.store.offline.damage import Damage
from tests.archive.from_broker import archive_until
from tests.pipelines.archive.support import publish, rows_of
from tests.scripted import ScriptedCluster
from tests.spark.files.support import planned

Q0 = MessageQueue("orders", "broker-a", 0)
BODIES = [random.Random(number).randbytes(400) for number in range(60)]


@pytest.fixture
def archived(tmp_path):
    """An archive of bodies that do not compress, and its one file."""
    with ScriptedCluster(tmp_path / "cluster") as cluster:
        cluster.put("orders", 0, BODIES)
        folder = ArchiveFolder(tmp_path / "archive")
        manifest = archive_until(folder, cluster.namesrv, cluster.ends("orders"))
        (file,) = manifest.files
        yield cluster, folder, folder.path / file.path


def flip(path: Path, body: bytes) -> None:
    """Flip a bit of a body in a file."""
    data = bytearray(path.read_bytes())
    data[data.index(body[100:300]) + 50] ^= 1
    path.write_bytes(data)


def test_the_manifest_has_the_hash_of_each_file(archived):
    """Also after repeats were taken out of a staged one; without it nothing says that it is not known."""
    _, folder, path = archived
    (file,) = folder.last().files
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [one.fault for one in check_archive(folder)] == [""]


def test_no_reader_hands_out_another_body(archived, tmp_path):
    """A replay, the store reader, a merge, what takes repeats out: each says which file it is."""
    cluster, folder, path = archived
    flip(path, BODIES[7])
    with (
        Reader(cluster.namesrv, "orders", start="earliest", stop_at_end=True, archive=folder.path) as reader,
        pytest.raises(StoreCorrupt, match=rf"{path.name} cannot be read: .*CRC"),
    ):
        list(reader)
    options, (parts,) = planned(folder.path)
    found = list(read_parts(parts, options, ("queue_offset", "body")))
    assert [one.path for one in found if isinstance(one, Damage)] == [str(path)]
    told = {row["queue_offset"]: row["body"] for one in found if not isinstance(one, Damage) for row in one.to_pylist()}
    assert all(body == BODIES[offset] for offset, body in told.items())
    with pytest.raises(StoreCorrupt, match=path.name):
        merge([path], tmp_path / "merged.parquet")
    with pytest.raises(OSError, match="CRC"):
        without_offsets(path, [1])


def test_bits_of_a_snapshot_and_of_metrics_are_verified_too(tmp_path):
    """The files of `changes` and of `metrics` have the checksums, and whoever reads them verifies those."""
    rows = pa.table({"body": BODIES})
    (tmp_path / "t").mkdir()
    bucket._write(str(tmp_path), "t/1.parquet", rows)
    assert bucket._read(str(tmp_path), "t/1.parquet") == rows
    flip(tmp_path / "t" / "1.parquet", BODIES[3])
    with pytest.raises(StoreCorrupt, match=r"t/1\.parquet in .* cannot be read: .*CRC"):
        bucket._read(str(tmp_path), "t/1.parquet")
    with pytest.raises(OSError, match="CRC"):
        ds.dataset(str(tmp_path / "t"), format=checked_format()).to_table()


def test_check_finds_what_is_damaged_missing_or_short(archived, capsys):
    """By its hash, or where there is none by its pages; also where no page is."""
    _, folder, path = archived
    publish(folder, 1, {Q0: range(60, 70)}, body=BODIES[0])
    words = ["pipeline", "check", "--folder", str(folder.path)]
    assert cli.run(words) == 0
    said = capsys.readouterr().out
    assert re.match(r"2 files, \d+\.\d KiB read \(1 have no hash: their pages were verified\), 0 damaged", said), said
    other = next(one for one in folder.path.rglob("*.parquet") if one != path)
    whole, second = path.read_bytes(), other.read_bytes()
    flip(path, BODIES[7])
    flip(other, BODIES[0])
    assert cli.run([*words, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["files"], found["without_hash"]) == (2, 1)
    assert {one["path"] for one in found["damaged"]} == {str(path), str(other)}
    other.write_bytes(second)
    # Behind the pages: the footer says nothing of itself.
    path.write_bytes(whole[:-200] + bytes([whole[-200] ^ 1]) + whole[-199:])
    assert cli.run(words) == 1
    assert f"{path}: its bytes are not those that were written: their SHA-256 differs" in capsys.readouterr().out
    path.write_bytes(whole[:-1])
    assert cli.run(words) == 1
    assert f"and its manifest says {len(whole)}" in capsys.readouterr().out
    path.unlink()
    assert cli.run(words) == 1
    assert f"{path}: it is missing" in capsys.readouterr().out


def test_check_of_a_folder_without_manifests_reads_its_files(tmp_path, capsys):
    """Of `changes` and `metrics`; no folder, or a remote one, is an error that says so."""
    pq.write_table(pa.table({"body": BODIES}), tmp_path / "1.parquet", write_page_checksum=True)
    assert cli.run(["pipeline", "check", "--folder", str(tmp_path)]) == 0
    flip(tmp_path / "1.parquet", BODIES[3])
    assert cli.run(["pipeline", "check", "--folder", str(tmp_path)]) == 1
    assert "1 damaged" in capsys.readouterr().out
    for folder, why in ((str(tmp_path / "none"), "there is no folder"), ("hdfs://h/a", "hdfs fsck")):
        assert cli.run(["pipeline", "check", "--folder", folder]) != 0
        assert why in capsys.readouterr().err


def test_no_flipped_bit_of_the_pages_gives_other_rows(tmp_path):
    """Any bit before the footer: an error, or the same rows (a bit that nobody reads)."""
    publish(folder := ArchiveFolder(tmp_path / "a"), 0, {Q0: range(20)}, new=True, body=BODIES[1])
    (path,) = folder.path.rglob("*.parquet")
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    want = rows_of(Q0, range(20), new=True, body=BODIES[1])
    silent = []
    for at in range(4, footer, 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        try:
            with opened(path, 1 << 16) as file:
                found = file.read()
        except (pa.ArrowException, OSError, MetaqError):
            continue
        if found != pa.Table.from_batches([want]):
            silent.append(at)
    assert silent == []
