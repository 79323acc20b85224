"""An archive on a Hadoop file system: the counterpart of `metaq.archive.folder`, by what such a file system can do.

A batch is published in the same three steps: tasks write whole files beside the archive, the driver creates the manifest,
then each file gets its final name. There is no lock that ends with a process, so the manifest itself decides between two
runs: it is created only if there is none, and a run that finds another's in its place is refused.

A run that was taken for dead may go on and publish the one batch that it was working on. So nothing that its manifest may
still name is removed: unfinished files lie in folders named by batch, and are removed once that batch is published.
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
"""Prefixes of names that are not records."""


class HadoopFolder(Batches):
    """One archive. Only the run that has its lease writes; anybody may read."""

    def __init__(self, files: HadoopFiles, staging: str | None = None) -> None:
        """
        Args:
            files: the output's file system.
            staging: URI of the folder for the archive's own staging folder, on the same file system and not inside the
                output; None: the output's parent.

        Raises ConfigError: the output is a file system's root, or the staging folder is elsewhere or inside the output.
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
        """Staging folder, relative to the archive."""

    # ---- for readers
    def names(self, folder: str) -> list[str]:
        found = (entry.name for entry in self.files.entries(folder))
        return [name for name in found if name.endswith(".json") and not name.startswith(_NO_RECORD)]

    def read(self, path: str) -> bytes:
        return self.files.read(path)

    def at(self, path: str) -> str:
        return self.files.at(path) if path else self.files.root

    def places(self, files: Collection[ArchivedFile]) -> dict[str, str]:
        """Return path → current URI of each file: some files of a batch that is being published have no final name yet."""
        begun: set[str] = set()
        # A batch's folder that vanishes meanwhile: its files are renamed.
        with contextlib.suppress(FileNotFoundError):
            for batch in self.files.entries(self.staging):
                begun |= {
                    f"{self.staging}/{batch.name}/{path}"
                    for path, _ in self.files.files_below(f"{self.staging}/{batch.name}")
                }
        return {
            file.path: self.at(file.staged if file.staged in begun and not self.files.exists(file.path) else file.path)
            for file in files
        }

    # ---- for the run that has the lease
    def prepare(self) -> None:
        """Create the archive's folders, and try what publishing needs of the file system.

        Raises: ConfigError: it lacks something; the text names it.
        """
        probe(self.files, self.staging)

    def commit(self, manifest: Manifest) -> None:
        """Create the manifest: this publishes the batch.

        Raises: StoreLocked: another run has published the batch. OSError: it was not created, or whether it was is not known
            until the next run looks.
        """
        path, data = f"{MANIFESTS}/{manifest.name}", msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        self.files.make_folder(MANIFESTS)
        try:
            self.files.create(path, data)
        except (FileExistsError, FileNotFoundError):  # FileNotFoundError: another run has removed the temporary file.
            # Ours: the file system's client repeated the request, because the answer to the first was lost.
            if self.files.exists(path) and self.files.read(path) == data:
                return
            raise StoreLocked(
                f"another run publishes in {self.files.root}, and batch {manifest.batch} is its: this one was taken for dead. "
                "Nothing is in the archive twice; start it again when the other one has ended"
            ) from None

    def finish(self, manifest: Manifest, replaced: Callable[[], Collection[str]] = frozenset) -> None:
        """Rename the batch's files to their final names. May be repeated, interrupted anywhere, and done by two runs at a time.

        Args: replaced: returns the files that were replaced since; called only if one is missing.
        Raises: StoreCorrupt: a file of a published batch is neither staged nor in place.
        """
        for folder in sorted({file.path.rpartition("/")[0] for file in manifest.files}):
            self.files.make_folder(folder)
        for file in manifest.files:
            try:
                self.files.rename(file.staged, file.path)
            # An object store renames by copying: a crash came between the copy and the removal of the old object.
            except FileExistsError:
                self.files.remove(file.staged)
            except FileNotFoundError:
                if not self.files.exists(file.path) and file.path not in replaced():
                    raise StoreCorrupt(
                        f"{self.at(file.path)} is missing: the batch {manifest.batch} was published in {self.files.root}, "
                        "and somebody took it away since"
                    ) from None

    def begin_batch(self, batch: int, run: str) -> str:
        """Return a new folder for a batch's files, relative to the archive. It is not created."""
        return f"{self.staging}/{batch}-{run}"

    def clean(self, last: int) -> None:
        """Remove unfinished files of batches up to `last`, all of which are published and finished."""
        for left in self.files.entries(self.staging):
            batch = left.name.partition("-")[0]
            if not batch.isdigit() or int(batch) <= last:
                try:
                    self.files.remove(f"{self.staging}/{left.name}")
                except OSError as fault:
                    _LOG.warning("%s/%s cannot be removed: %s", self.at(self.staging), left.name, fault.strerror)
        for left in self.files.entries(MANIFESTS):
            # A temporary manifest, of a run that was killed. One that still lives fails to rename it, and is refused.
            if left.name.startswith("."):
                self.files.remove(f"{MANIFESTS}/{left.name}")

    def clean_ids(self, known: Collection[str], last: int) -> None:
        """Remove files of ids that no manifest names, of batches up to `last`: later ones may be of a run that still lives."""
        for left in self.files.entries(IDS):
            batch = left.name.split("-")[1] if left.name.count("-") > 1 else ""
            if f"{IDS}/{left.name}" not in known and batch.isdigit() and int(batch) <= last:
                self.files.remove(f"{IDS}/{left.name}")

    def remove_empty(self, folder: str) -> None:
        """Remove an empty folder, and its parents as far as they are empty then."""
        while folder and not self.files.entries(folder):
            self.files.remove_empty(folder)
            folder = folder.rpartition("/")[0]

    def close(self) -> None:
        """Remove the staging folder if it is empty."""
        with contextlib.suppress(OSError):
            if not self.files.entries(self.staging):
                self.files.remove(self.staging)
