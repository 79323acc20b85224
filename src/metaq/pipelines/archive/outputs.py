"""Where an archive comes to lie: what publishing a batch needs of a place, and how a local folder does it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from metaq.archive.batches import Batches
from metaq.archive.folder import ArchiveFolder
from metaq.archive.parquet import without_offsets
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
    """How the slices of a batch are fetched and written."""

    name_servers: str
    settings: FetchSettings
    parting: Parting
    dedupe: str
    """What repeats are known by, one of `dedupe.DEDUPE`."""
    decoding: BodyColumns | None = None


@dataclass(kw_only=True, slots=True)
class Staged:
    """A whole file beside the archive: the messages of one slice that were stored on one day, of one part."""

    wanted: Slice
    date: str
    part: str
    path: str
    """Relative to the archive."""
    rows: int
    size: int = 0
    """Bytes; known when the file is sealed."""
    ids: Ids | None = None
    ids_path: str = ""
    """Where its task wrote them, and synced them if they are many (`slices.SliceWriter`)."""
    repeats: int = 0
    """Messages that were taken out of it."""
    corrupt: int = 0
    """Messages whose bodies did not decode."""


class Output(Protocol):
    """A place for one archive. What cannot be done is an OSError, unless it says otherwise."""

    @property
    def records(self) -> Batches:
        """What has been published there."""
        ...

    def write(self, frame: Any, batch: int, wanted: Wanted) -> list[Staged]:
        """Fetch the slices in `frame`, in Spark's tasks, and have their files beside the archive. Raises: what a task does."""
        ...

    def drop(self, found: Sequence[tuple[Staged, Any]]) -> None:
        """Take the messages at some queue offsets (arrays) out of files; what is known of the files is changed."""
        ...

    def seal(self, files: Sequence[Staged]) -> None:
        """See that the files outlive a power cut."""
        ...

    def ids_name(self, query: str, batch: int, number: int) -> str:
        """Where the ids of a batch's messages of a topic are kept, relative to the archive."""
        ...

    def keep_ids(self, path: str, file: Staged) -> bool:
        """Let the ids of a staged file be kept as its task wrote them. Safe from a power cut when files are sealed.

        Returns: whether it is so; else they are to be saved with others.
        """
        ...

    def save_ids(self, path: str, ids: Ids) -> Ids:
        """Keep a batch's ids. Returns them where nobody overwrites them."""
        ...

    def list_ids(self) -> frozenset[str]:
        """The files of ids that there are, relative to the archive."""
        ...

    def load_ids(self, path: str) -> Ids: ...

    def remove_ids(self, path: str) -> None: ...

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest: from now on the batch is part of the archive. Raises StoreLocked: another run has done it."""
        ...

    def finish(self, manifest: Manifest, replaced: Callable[[], Collection[str]] = frozenset) -> None:
        """Give the batch's files their final names. May be repeated. Raises StoreCorrupt: one is missing."""
        ...

    def recover(self, last: int, known: Collection[str]) -> None:
        """Remove what runs before left.

        Args: last: number of the newest batch, which is finished; -1: there is none. known: files of ids that manifests name.
        """
        ...

    def clean(self, last: int) -> None:
        """Remove what is left of the files of the batch `last`, which is finished, and of those before it."""
        ...

    def close(self) -> None:
        """Remove what is for runs alone."""
        ...


class LocalOutput:
    """A folder of this machine, or of a network file system that executors see under the same name. Tasks write into it."""

    def __init__(self, folder: ArchiveFolder) -> None:
        self.records = self._folder = folder
        self.commit, self.finish, self.close = folder.commit, folder.finish, folder.close

    def write(self, frame: Any, batch: int, wanted: Wanted) -> list[Staged]:
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
                ids=None if wanted.dedupe == OFF else Ids.load(Path(row["ids"])),
                ids_path=row["ids"],
            )
            for row in frame.mapInArrow(writer, schema.ddl(WRITTEN)).toArrow().to_pylist()
        ]

    def drop(self, found: Sequence[tuple[Staged, Any]]) -> None:
        for file, offsets in found:
            file.rows = without_offsets(self._folder.path / file.path, offsets)
            file.corrupt = corrupt_in(self._folder.path / file.path) if file.corrupt else 0

    def seal(self, files: Sequence[Staged]) -> None:
        for file in files:
            file.size = (self._folder.path / file.path).stat().st_size
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
        sync_file(self._folder.path / path)
        return self.load_ids(path)

    def list_ids(self) -> frozenset[str]:
        return frozenset(f"{IDS}/{path.name}" for path in (self._folder.path / IDS).glob("*"))

    def load_ids(self, path: str) -> Ids:
        return Ids.load(self._folder.path / path)

    def remove_ids(self, path: str) -> None:
        (self._folder.path / path).unlink(missing_ok=True)

    def recover(self, last: int, known: Collection[str]) -> None:  # noqa: ARG002  one run at a time: no other yet lives
        self._folder.clean_staging()
        for path in self.list_ids() - set(known):
            self.remove_ids(path)  # Of a batch that never was.

    def clean(self, last: int) -> None:  # noqa: ARG002  one run at a time: what is there is this run's
        self._folder.clean_staging()
