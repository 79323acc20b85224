"""The archive's folder: what is in it, and how a batch gets there all or not at all.

    OUTPUT/topic=orders/date=2026-03-01/QUERY-BATCH-BROKER-QUEUE-START.parquet    what readers see
    OUTPUT/_manifests/QUERY-BATCH.json      one per batch: its files, its offsets. Writing it is the commit
    OUTPUT/_staging/BATCH-RUN/...           files under way
    OUTPUT/_ids/QUERY-BATCH-N.arrow         unique ids of recent batches, to know a repeated send (metaq.spark.pipelines.dedupe)
    OUTPUT/_checkpoint/                     Spark's own, unless it is kept elsewhere

A batch is published in three steps: tasks write whole files into `_staging`, the driver writes the manifest (a temporary
file, fsync, rename), then renames each file to its final name. A crash before the manifest leaves rubbish that the next
run removes; a crash after it is finished by the next run, because every rename can be repeated. Final names are made from
(query, batch, slice), so a replayed batch can only ever produce the same names. Names that begin with `_` are invisible to
Spark, pyarrow and whoever follows Hive's rules: a plain reader of the folder sees each archived message once.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from metaq.errors import ConfigError, StoreCorrupt
from metaq.spark import offsets
from metaq.spark.offsets import Positions, Slice

MANIFESTS, STAGING, IDS, CHECKPOINT = "_manifests", "_staging", "_ids", "_checkpoint"


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file: the messages of one slice that were stored on one day."""

    path: str
    """Final place, relative to the archive."""
    staged: str
    """Where the task wrote it, relative to the archive."""
    topic: str
    date: str
    """Store date, UTC, YYYY-MM-DD."""
    rows: int
    size: int
    """Bytes."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One published batch."""

    v: int = 1
    query: str
    """Id of the streaming query, from its checkpoint."""
    batch: int
    files: list[ArchivedFile]
    rows: int
    repeats: int
    """Messages left out because their unique id had been archived within the window."""
    positions: dict[str, Any]
    """Offsets JSON: how far the archive has come in every queue, this batch included."""
    ids: dict[str, str] = {}
    """Per topic, the file of this batch's unique ids, relative to the archive."""
    newest_ms: int = 0
    """Newest store time archived so far."""

    @property
    def name(self) -> str:
        return manifest_name(self.query, self.batch)

    @property
    def end(self) -> Positions:
        return offsets.from_json(self.positions, "an archive's manifest")


def manifest_name(query: str, batch: int) -> str:
    return f"{query[:8]}-{batch:010d}.json"


def final_path(query: str, batch: int, wanted: Slice, date: str) -> str:
    """Where the messages of a slice stored on `date` end up, relative to the archive."""
    topic, broker, queue_id = wanted.queue
    name = f"{query[:8]}-{batch:010d}-{quote(broker, safe='')}-{queue_id}-{wanted.start:020d}.parquet"
    return f"topic={quote(topic, safe='')}/date={date}/{name}"


class ArchiveFolder:
    """One archive. Only its query's driver writes to it; anybody may read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()

    def guard(self, checkpoint: Path) -> None:
        """Refuse a checkpoint that did not make this archive.

        A fresh checkpoint would read and archive everything again, under a new query id and thus under new names.
        Raises: ConfigError: says what to do.
        """
        newest = self.last()
        if newest is None:
            return
        query = query_id(checkpoint)
        if query != newest.query:
            which = f"belongs to another query ({query})" if query else "is new or empty"
            raise ConfigError(
                f"{self.path} was written by the query {newest.query}, and the checkpoint {checkpoint} {which}: going on "
                "would archive messages twice. Give the old checkpoint, or an empty output folder."
            )

    def manifests(self) -> Iterator[Manifest]:
        """All published batches, oldest first."""
        for path in sorted((self.path / MANIFESTS).glob("*.json")):
            yield self._read(path)

    def last(self) -> Manifest | None:
        """The newest published batch."""
        paths = sorted((self.path / MANIFESTS).glob("*.json"))
        return self._read(paths[-1]) if paths else None

    def find(self, query: str, batch: int) -> Manifest | None:
        path = self.path / MANIFESTS / manifest_name(query, batch)
        return self._read(path) if path.exists() else None

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest: from now on the batch is part of the archive."""
        folder = self.path / MANIFESTS
        folder.mkdir(parents=True, exist_ok=True)
        making = folder / f".{manifest.name}.tmp"
        with making.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
            file.flush()
            os.fsync(file.fileno())
        making.rename(folder / manifest.name)
        sync_folder(folder)

    def finish(self, manifest: Manifest) -> None:
        """Give the batch's files their final names. May be repeated, and cut anywhere.

        Raises: StoreCorrupt: a file of a published batch is neither staged nor in its place.
        """
        touched: set[Path] = set()
        for file in manifest.files:
            staged, final = self.path / file.staged, self.path / file.path
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                staged.rename(final)
                touched.add(final.parent)
            except FileNotFoundError:
                if not final.exists():
                    raise StoreCorrupt(
                        f"{final} is missing: the batch {manifest.batch} was published in {self.path}, and somebody took "
                        "it away since"
                    ) from None
        for folder in touched:
            sync_folder(folder)

    def place(self, file: ArchivedFile) -> Path:
        """Where the file is now: a published one may not have its final name yet."""
        final, staged = self.path / file.path, self.path / file.staged
        return staged if not final.exists() and staged.exists() else final

    def clean_staging(self) -> None:
        """Remove what crashed or finished runs left; every published batch must have been finished."""
        shutil.rmtree(self.path / STAGING, ignore_errors=True)

    def _read(self, path: Path) -> Manifest:
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except (msgspec.DecodeError, OSError) as fault:
            raise StoreCorrupt(f"the manifest {path} cannot be read: {fault}") from fault


def query_id(checkpoint: Path) -> str | None:
    """The id that Spark gave the query of this checkpoint; None before its first start."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def spark_path(path: Path) -> str:
    """A local path as Spark reads it: a scheme, and nothing percent-encoded."""
    return f"file:{path}"


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
