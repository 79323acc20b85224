"""Verification of a pipeline's files: against the hashes in an archive's manifests, or by the checksums of their pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from msgspec import Struct

from metaq.archive.folder import ArchiveFolder
from metaq.archive.parquet import batch_rows, opened, sha256_of
from metaq.archive.records import MANIFESTS, ArchivedFile
from metaq.archive.replacements import place, view
from metaq.errors import StoreCorrupt

_BUFFER_BYTES = 1 << 20
_ROWS, _BYTES = 10_000, 32 << 20
"""Rows, and about the bytes, that are read at once."""


class Checked(Struct, frozen=True):
    """Result for a file. `fault`: what is wrong with it; empty: nothing. `size`: bytes that were read."""

    path: str
    fault: str
    size: int
    by_hash: bool
    """Whether its manifest has its hash; otherwise only its pages were verified, those that have checksums."""


def is_archive(place: Path) -> bool:
    return (place / MANIFESTS).is_dir()


def check(place: Path, staging: str | None = None) -> Iterator[Checked]:
    """Read every Parquet file of a pipeline's folder, and yield the results, one by one. Args: staging: an archive's option."""
    return check_archive(ArchiveFolder(place, staging)) if is_archive(place) else check_files(place)


def check_archive(folder: ArchiveFolder) -> Iterator[Checked]:
    """Read every file of the archive as it is now, and yield the results, one by one."""
    broken: list[tuple[str, str]] = []
    seen = view(folder, broken)
    for path, why in broken:
        yield Checked(path, f"it cannot be read: {why}", 0, by_hash=False)
    for file in seen.files:
        yield _checked(folder, place(folder, seen, file), file)


def check_files(root: Path) -> Iterator[Checked]:
    """Read every Parquet file below a folder, and yield the results, one by one."""
    for path in sorted(root.rglob("*.parquet")):
        yield Checked(str(path), _pages(path), path.stat().st_size, by_hash=False)


def _checked(folder: ArchiveFolder, at: Path, file: ArchivedFile) -> Checked:
    by_hash = bool(file.sha256)
    try:
        size = at.stat().st_size
        if size != file.size:
            fault = f"it has {size} bytes, and its manifest says {file.size}"
        elif by_hash:
            fault = "" if sha256_of(at) == file.sha256 else _differs(at)
        else:
            fault = _pages(at)
    except FileNotFoundError:
        # A replacement or an expiry may have taken it since the view was read.
        if all(one.path != file.path for one in view(folder).files):
            return Checked(str(at), "", 0, by_hash=by_hash)
        return Checked(
            str(at), "it is missing: its batch was published, and somebody took it away since", 0, by_hash=by_hash
        )
    except OSError as fault_:
        return Checked(str(at), f"it cannot be read: {fault_.strerror}", 0, by_hash=by_hash)
    return Checked(str(at), fault, size, by_hash=by_hash)


def _differs(at: Path) -> str:
    """Return the fault of a file whose hash is wrong, with the first page that is damaged."""
    pages = _pages(at)
    return f"its bytes are not those that were written: their SHA-256 differs{f' ({pages})' if pages else ''}"


def _pages(path: Path) -> str:
    try:
        with opened(path, _BUFFER_BYTES) as file:
            for _ in file.iter_batches(batch_rows(file.metadata, _ROWS, _BYTES)):
                pass
    except StoreCorrupt as fault:
        return str(fault)
    except (pa.ArrowException, OSError) as fault:
        return f"a page of it cannot be read: {fault}"
    return ""
