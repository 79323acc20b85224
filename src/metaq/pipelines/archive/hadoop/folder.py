"""An archive on a file system of Hadoop's: the folder of `metaq.archive.folder`, with what such a file system can do.

A batch is published in the same three steps: tasks write whole files beside the archive, the driver makes the manifest,
then each file gets its final name. There is no lock that goes with a process, so what decides between two runs is the
manifest itself: it is made only where there is none, and a run that finds another's in its place is refused.

So nothing may be taken away that a manifest could yet tell of: a run that was thought dead may go on and publish the one
batch that it had under way. Files under way lie in folders named after their batch, and go when that batch is published.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
from collections.abc import Callable, Collection
from typing import Final
from urllib.parse import urlsplit

import msgspec

from metaq.archive.batches import Batches
from metaq.archive.records import IDS, MANIFESTS, ArchivedFile, Manifest
from metaq.errors import ConfigError, StoreCorrupt, StoreLocked
from metaq.pipelines.archive.hadoop.probe import probe
from metaq.spark.engine.hadoop import HadoopFiles

_LOG = logging.getLogger(__name__)

_NO_RECORD: Final = (".", "_")
"""Beginnings of names that are not messages' files."""


class HadoopFolder(Batches):
    """One archive. Only the run that has its lease writes to it; anybody may read."""

    def __init__(self, files: HadoopFiles, staging: str | None = None) -> None:
        """Args: files: those of the output. staging: a URI of a folder on the same file system and not inside the output, in
        which this archive gets its own for files under way; by default the one that holds the output.

        Raises ConfigError: such a folder cannot be.
        """
        self.files = files
        parts = urlsplit(files.root)
        home, _, name = parts.path.rpartition("/")
        if not name:
            raise ConfigError(f"{files.root} is all of a file system: give the archive a folder of its own in it")
        above = home or "/"
        if staging is not None:
            other = urlsplit(staging.rstrip("/"))
            if other[:2] != parts[:2]:
                raise ConfigError(f"the staging folder {staging} is not on the file system of the output {files.root}")
            above = other.path or "/"
            if f"{above}/".startswith(f"{parts.path}/"):
                raise ConfigError(
                    f"the staging folder {staging} is inside the output: readers would see unfinished files"
                )
        self.staging = posixpath.relpath(posixpath.join(above, f".{name}.staging"), parts.path)
        """Relative to the archive."""

    # ---- what readers need
    def names(self, folder: str) -> list[str]:
        found = (entry.name for entry in self.files.entries(folder))
        return [name for name in found if name.endswith(".json") and not name.startswith(_NO_RECORD)]

    def read(self, path: str) -> bytes:
        return self.files.read(path)

    def at(self, path: str) -> str:
        return self.files.at(path) if path else self.files.root

    def places(self, files: Collection[ArchivedFile]) -> dict[str, str]:
        """Path → URI of where each file is now: of a batch that is just being published, some have no final names yet."""
        begun: set[str] = set()
        with contextlib.suppress(FileNotFoundError):  # What is tidied away while it is listed has its final name.
            for batch in self.files.entries(self.staging):
                begun |= {
                    f"{self.staging}/{batch.name}/{path}"
                    for path, _ in self.files.files_below(f"{self.staging}/{batch.name}")
                }
        return {
            file.path: self.at(file.staged if file.staged in begun and not self.files.exists(file.path) else file.path)
            for file in files
        }

    # ---- what the run that has the lease does
    def prepare(self) -> None:
        """Make the archive's folders, and see that the file system can do what publishing needs.

        Raises: ConfigError: it cannot; the text says what is missing.
        """
        probe(self.files, self.staging)

    def commit(self, manifest: Manifest) -> None:
        """Make the manifest: from now on the batch is part of the archive.

        Raises: StoreLocked: another run has published the batch. OSError: it could not be made, or nobody can say whether it
            was; the next run finds out.
        """
        path, data = f"{MANIFESTS}/{manifest.name}", msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        self.files.make_folder(MANIFESTS)
        try:
            self.files.create(path, data)
        except (FileExistsError, FileNotFoundError):  # The second: another run has tidied up what was to become it.
            if self.files.exists(path) and self.files.read(path) == data:  # Ours: the answer to the first try was lost.
                return
            raise StoreLocked(
                f"another run publishes in {self.files.root}, and batch {manifest.batch} is its: this one was taken for dead. "
                "Nothing is in the archive twice; start it again when the other one has ended"
            ) from None

    def finish(self, manifest: Manifest, replaced: Callable[[], Collection[str]] = frozenset) -> None:
        """Give the batch's files their final names. May be repeated, cut anywhere, and done by two at a time.

        Args: replaced: says which files have been replaced since; asked only if one is missing.
        Raises: StoreCorrupt: a file of a published batch is neither staged nor in its place.
        """
        for folder in sorted({file.path.rpartition("/")[0] for file in manifest.files}):
            self.files.make_folder(folder)
        for file in manifest.files:
            try:
                self.files.rename(file.staged, file.path)
            except (
                FileExistsError
            ):  # Where renaming is copying, a crash came between the copy and the end of the old one.
                self.files.remove(file.staged)
            except FileNotFoundError:
                if not self.files.exists(file.path) and file.path not in replaced():
                    raise StoreCorrupt(
                        f"{self.at(file.path)} is missing: the batch {manifest.batch} was published in {self.files.root}, "
                        "and somebody took it away since"
                    ) from None

    def begin_batch(self, batch: int, run: str) -> str:
        """A name, relative to the archive, for the folder of a batch's files; there is no such folder yet."""
        return f"{self.staging}/{batch}-{run}"

    def clean(self, last: int) -> None:
        """Remove what runs left under way of batches up to `last`, all of which have been published and finished."""
        for left in self.files.entries(self.staging):
            batch = left.name.partition("-")[0]
            if not batch.isdigit() or int(batch) <= last:
                try:
                    self.files.remove(f"{self.staging}/{left.name}")
                except OSError as fault:
                    _LOG.warning("%s/%s cannot be removed: %s", self.at(self.staging), left.name, fault.strerror)
        for left in self.files.entries(MANIFESTS):
            if left.name.startswith("."):  # Under way when its run was killed. A run that yet lives is refused then.
                self.files.remove(f"{MANIFESTS}/{left.name}")

    def clean_ids(self, known: Collection[str], last: int) -> None:
        """Remove the files of ids that no manifest knows, of batches up to `last`."""
        for left in self.files.entries(IDS):
            batch = left.name.split("-")[1] if left.name.count("-") > 1 else ""
            if f"{IDS}/{left.name}" not in known and batch.isdigit() and int(batch) <= last:
                self.files.remove(f"{IDS}/{left.name}")

    def remove_empty(self, folder: str) -> None:
        """Remove an empty folder, and parents that are empty then."""
        while folder and not self.files.entries(folder):
            self.files.remove_empty(folder)
            folder = folder.rpartition("/")[0]

    def close(self) -> None:
        """Remove the staging folder if nothing is in it."""
        with contextlib.suppress(OSError):
            if not self.files.entries(self.staging):
                self.files.remove(self.staging)
