"""The archive's folder: its layout, and the atomic commit of a batch.

    OUTPUT/topic=orders/date=2026-03-01/QUERY-BATCH-BROKER-QUEUE-START.parquet    what readers see
    OUTPUT/_manifests/QUERY-BATCH.json      one per batch: its files, its offsets. Writing it is the commit
    OUTPUT/_ids/QUERY-BATCH-N.arrow         unique ids of recent batches, for deduplication (metaq.pipelines.archive.dedupe)
    OUTPUT/_lease                           locked by the run that writes (metaq.pipelines.lease)
    OUTPUT/_checkpoint/                     Spark's checkpoint, unless it is elsewhere
    OUTPUT/_replacements/NUMBER.json        replaced files, and the files that replace them (metaq.archive.replacements)
    .OUTPUT.staging/BATCH-RUN/...           beside the folder: unfinished files
    .OUTPUT.kept/NUMBER/...                 beside the folder: replaced files, as long as readers may need them

A batch is published in three steps: tasks write whole files into the staging folder, the driver writes the manifest (a
temporary file, fsync, rename), then renames each file to its final name. After a crash before the manifest the next run removes
the staged files; after a later crash it finishes the renames, each of which can be repeated. Final names are made from (query,
batch, slice), so a replayed batch always produces the same names.

No file of messages is below OUTPUT before its batch is published: not every reader follows Hive's rule that names beginning
with `_` or `.` are not data. The `**/*.parquet` of DuckDB and Polars matches those too.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from metaq.archive.batches import Batches
from metaq.archive.records import MANIFESTS, ArchivedFile, Manifest
from metaq.durable import make_folder, make_or_refuse, sync_folder, write_whole
from metaq.errors import ConfigError, StoreCorrupt

_LOG = logging.getLogger(__name__)

OLD_STAGING = "_staging"
"""Staging folder of releases before 0.1, inside the output."""


class ArchiveFolder(Batches):
    """An archive on a local disk. Only the run that has its lease writes; anybody may read."""

    def __init__(self, path: str | Path, staging: str | Path | None = None) -> None:
        """
        Args:
            path: the archive.
            staging: folder for the archive's own staging folder, on the same file system and not inside `path`; None: the
                parent of `path`.
        """
        self.path = Path(path).absolute()
        self._real = self.path.resolve()
        if staging is None:
            self.staging = self._real.parent / f".{self._real.name}.staging"
        else:
            # A staging folder may serve archives of several parents, so the name alone would not tell them apart.
            mark = hashlib.sha256(os.fsencode(self._real)).hexdigest()[:8]
            self.staging = Path(staging).resolve() / f".{self._real.name}-{mark}.staging"
        self.kept = self.staging.with_name(f"{self.staging.name.removesuffix('.staging')}.kept")
        """Folder of replaced files, on the same file system."""

    def make(self) -> None:
        """Create the output folder, so that its lease can be taken. Raises ConfigError: it cannot be created."""
        if self.staging.is_relative_to(self._real):
            raise ConfigError(
                f"the staging folder {self.staging} is inside the output: readers would see unfinished files"
            )
        make_or_refuse("output", self.path)

    def prepare(self) -> None:
        """Create the archive's folders, and check that files can be renamed between them.

        For the run that has the lease: another run that ends removes the staging folder.
        Raises: ConfigError: one of them cannot be created or written to, or they are not on one file system.
        """
        self.make()
        make_or_refuse(
            "staging folder", self.staging, "; name another folder for it on the file system of the output (--staging)"
        )
        self._try_a_rename()

    def _try_a_rename(self) -> None:
        # Not by device numbers: two mounts of one file system share a number, but renames between them fail.
        probe = f"_probe-{os.getpid()}"
        try:
            (self.staging / probe).touch()
            (self.staging / probe).rename(self.path / probe)
        except OSError as fault:
            (self.staging / probe).unlink(missing_ok=True)
            self.close()
            if fault.errno == errno.EXDEV:
                raise ConfigError(
                    f"{self.path} and its staging folder {self.staging} are not on one file system, so files could not be "
                    "published by renaming. Give a folder inside that mount as the output, or name a staging folder that is "
                    "in it and not in the output (--staging)"
                ) from None
            raise ConfigError(f"{self.path} cannot be written to: {fault.strerror}") from None
        (self.path / probe).unlink()

    def relative(self, staged: str | Path) -> str:
        """Return the path of a staged file for manifests, relative to the archive."""
        return os.path.relpath(staged, self._real)

    def names(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.path / folder).glob("*.json"))

    def read(self, path: str) -> bytes:
        return (self.path / path).read_bytes()

    def at(self, path: str) -> str:
        return str(self.path / path) if path else str(self.path)

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest: this publishes the batch."""
        folder = self.path / MANIFESTS
        make_folder(folder)
        write_whole(folder / manifest.name, msgspec.json.format(msgspec.json.encode(manifest), indent=1))

    def finish(self, manifest: Manifest, replaced: Callable[[], Collection[str]] = frozenset) -> None:
        """Rename the batch's files to their final names. May be repeated, and interrupted anywhere.

        Args: replaced: returns the files that were replaced since; called only if one is missing.
        Raises: StoreCorrupt: a file of a published batch is neither staged nor in place.
        """
        touched: set[Path] = set()
        for file in manifest.files:
            staged, final = self.path / file.staged, self.path / file.path
            # `replaced` is asked last: it reads every record of a replacement, and files are hardly ever missing.
            if not final.exists() and not staged.exists() and file.path in replaced():
                continue
            # Also for files that are in place already: the run that renamed them may have died before the sync.
            touched |= {above for above in final.parents if above.is_relative_to(self.path)}
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                staged.rename(final)
            except FileNotFoundError:
                # An earlier run may have renamed it and died before it had renamed the others.
                if not final.exists():
                    raise StoreCorrupt(
                        f"{final} is missing: the batch {manifest.batch} was published in {self.path}, and somebody took "
                        "it away since"
                    ) from None
        for folder in touched:
            sync_folder(folder)

    def place(self, file: ArchivedFile) -> Path:
        """Return the current path of a file: a published one may not have its final name yet."""
        final, staged = self.path / file.path, self.path / file.staged
        return staged if not final.exists() and staged.exists() else final

    def clean_staging(self) -> None:
        """Remove staged files of earlier runs; every published batch must be finished before."""
        for left in [*self.staging.glob("*"), *self.path.glob(OLD_STAGING)]:
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
            if left.exists():
                _LOG.warning("%s is left from an earlier run and cannot be removed", left)

    def close(self) -> None:
        """Remove the staging folder if it is empty."""
        with contextlib.suppress(OSError):
            # Not `rmtree`: staged files of a published batch that were not renamed yet are the only copy.
            self.staging.rmdir()
