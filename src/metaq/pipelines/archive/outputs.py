"""Output of the archive: the interface, and the implementation for a local folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from metaq.archive.batches import Batches
from metaq.archive.folder import ArchiveFolder
from metaq.archive.parquet import sha256_of, without_offsets
from metaq.archive.records import IDS, Manifest
from metaq.durable import make_folder, sync_file, sync_folder
from metaq.model.offsets import Slice
from metaq.pipelines.archive.decoding import BodyColumns, corrupt_in
from metaq.pipelines.archive.dedupe import KEPT_LEAST, OFF, Ids
from metaq.pipelines.archive.parting import Parting
from metaq.pipelines.archive.slices import WRITTEN, SliceWriter
from metaq.spark import schema
from metaq.spark.source.fetch import FetchSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Parameters for fetching and writing the slices of a batch."""

    name_servers: str
    settings: FetchSettings
    parting: Parting
    dedupe: str
    """Identity for deduplication, one of `dedupe.DEDUPE`."""
    decoding: BodyColumns | None = None
    """Decoder of bodies; None: they stay bytes."""


@dataclass(kw_only=True, slots=True)
class Staged:
    """A staged file: the messages of one slice that were stored on one day, of one part."""

    wanted: Slice
    """The slice."""
    date: str
    """Store date, YYYY-MM-DD, UTC."""
    part: str
    """Folder of the part (`Parting.folder`); empty: none."""
    path: str
    """Location, relative to the archive."""
    rows: int
    """Messages."""
    size: int = 0
    """Bytes; known when the file is sealed."""
    ids: Ids | None = None
    """Ids of its messages; None: no deduplication."""
    ids_path: str = ""
    """File of ids as the task wrote it, synced if they are many (`slices.SliceWriter`)."""
    repeats: int = 0
    """Messages that deduplication dropped."""
    corrupt: int = 0
    """Messages whose bodies did not decode."""
    sha256: str = ""
    """SHA-256 of the file, in hex; empty: not known."""


class Output(Protocol):
    """Output of one archive. Methods raise OSError, unless they say otherwise."""

    @property
    def records(self) -> Batches:
        """The archive's manifests."""
        ...

    def write(self, frame: Any, batch: int, wanted: Wanted) -> list[Staged]:
        """Fetch the slices in `frame`, in Spark's tasks, and stage their files. Raises what a task raises."""
        ...

    def drop(self, found: Sequence[tuple[Staged, Any]]) -> None:
        """Drop the messages at these queue offsets (arrays) from files, and update `rows` and `corrupt`."""
        ...

    def seal(self, files: Sequence[Staged]) -> None:
        """Sync the files, and set `size`."""
        ...

    def ids_name(self, query: str, batch: int, number: int) -> str:
        """Return a path, relative to the archive, for a file of ids of a batch."""
        ...

    def keep_ids(self, path: str, file: Staged) -> bool:
        """Move the id file that a task wrote to `path`. Durable once files are sealed.

        Returns False if the file has none, or too few ids: the caller saves them with others.
        """
        ...

    def save_ids(self, path: str, ids: Ids) -> Ids:
        """Save a batch's ids. Returns a copy that nothing overwrites."""
        ...

    def list_ids(self) -> frozenset[str]:
        """Return the existing files of ids, relative to the archive."""
        ...

    def load_ids(self, path: str) -> Ids: ...

    def remove_ids(self, path: str) -> None: ...

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest: this publishes the batch. Raises StoreLocked: another run has published it."""
        ...

    def finish(self, manifest: Manifest, replaced: Callable[[], Collection[str]] = frozenset) -> None:
        """Rename the batch's files to their final names. May be repeated.

        Args: replaced: returns the files that merges have replaced since. Raises StoreCorrupt: a file is missing.
        """
        ...

    def recover(self, last: int, known: Collection[str]) -> None:
        """Remove unfinished files of earlier runs.

        Args:
            last: number of the newest batch, which is finished; -1: none.
            known: files of ids that manifests name.
        """
        ...

    def clean(self, last: int) -> None:
        """Remove staged files of batches up to `last`, which is finished."""
        ...

    def close(self) -> None:
        """Remove what only a run needs: an empty staging folder."""
        ...


class LocalOutput:
    """A folder of this machine, or of a network file system that executors see under the same path. Tasks write into it."""

    def __init__(self, folder: ArchiveFolder) -> None:
        self.records = self._folder = folder
        self.commit, self.finish, self.close = folder.commit, folder.finish, folder.close

    def write(self, frame: Any, batch: int, wanted: Wanted) -> list[Staged]:
        # By application: what a killed run left for a batch is never taken for this run's.
        run = frame.sparkSession.sparkContext.applicationId
        writer = SliceWriter(
            name_servers=wanted.name_servers,
            settings=wanted.settings,
            staging=str(self._folder.staging / f"{batch}-{run}"),
            dedupe=wanted.dedupe,
            parting=wanted.parting,
            decoding=wanted.decoding,
        )
        return [
            Staged(
                wanted=schema.slice_of_row(row),
                date=row["date"],
                part=row["part"],
                path=self._folder.relative(row["staged"]),
                rows=row["rows"],
                corrupt=row["corrupt"],
                sha256=row["sha256"],
                ids=None if wanted.dedupe == OFF else Ids.load(Path(row["ids"])),
                ids_path=row["ids"],
            )
            for row in frame.mapInArrow(writer, schema.ddl(WRITTEN)).toArrow().to_pylist()
        ]

    def drop(self, found: Sequence[tuple[Staged, Any]]) -> None:
        for file, offsets in found:
            # Staged files may be rewritten: no manifest names them yet.
            file.rows = without_offsets(self._folder.path / file.path, offsets)
            file.sha256 = sha256_of(self._folder.path / file.path)
            # Counted anew: a message that was dropped may be one of them.
            file.corrupt = corrupt_in(self._folder.path / file.path) if file.corrupt else 0

    def seal(self, files: Sequence[Staged]) -> None:
        for file in files:
            file.size = (self._folder.path / file.path).stat().st_size
        # Before the manifest is written: without its folder's entry a synced file is gone after a power cut.
        for staged in {self._folder.staging, *((self._folder.path / file.path).parent for file in files)}:
            sync_folder(staged)
        if any(file.ids is not None and len(file.ids) for file in files):
            sync_folder(self._folder.path / IDS)

    def ids_name(self, query: str, batch: int, number: int) -> str:
        return f"{IDS}/{query[:8]}-{batch:010d}-{number}.arrow"

    def keep_ids(self, path: str, file: Staged) -> bool:
        if file.ids is None or len(file.ids) < KEPT_LEAST:
            return False
        make_folder(self._folder.path / IDS)
        Path(file.ids_path).rename(self._folder.path / path)
        return True

    def save_ids(self, path: str, ids: Ids) -> Ids:
        make_folder(self._folder.path / IDS)
        ids.save(self._folder.path / path)
        # Durable before the manifest that names it; its folder is synced by `seal`.
        sync_file(self._folder.path / path)
        return self.load_ids(path)

    def list_ids(self) -> frozenset[str]:
        return frozenset(f"{IDS}/{path.name}" for path in (self._folder.path / IDS).glob("*"))

    def load_ids(self, path: str) -> Ids:
        return Ids.load(self._folder.path / path)

    def remove_ids(self, path: str) -> None:
        (self._folder.path / path).unlink(missing_ok=True)

    def recover(self, last: int, known: Collection[str]) -> None:  # noqa: ARG002  the lock excludes a run that still lives
        self._folder.clean_staging()
        for path in self.list_ids() - set(known):
            self.remove_ids(path)  # Of a batch whose manifest was never written.

    def clean(self, last: int) -> None:  # noqa: ARG002  the lock excludes other runs: all files are this run's
        self._folder.clean_staging()
