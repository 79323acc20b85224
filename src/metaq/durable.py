"""Files and folders that survive a power cut, and errors of the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from metaq.errors import ConfigError, StoreError, StoreFailed, StoreFull


def make_or_refuse(what: str, folder: Path, ways: str = "") -> None:
    """Make a folder as `make_folder` does. Raises ConfigError: it cannot be made.

    Args:
        what: name of the folder in the error.
        folder: its path.
        ways: remedies, for the end of the error.
    """
    try:
        make_folder(folder)
    except FileExistsError as fault:
        raise ConfigError(f"the {what} {fault.filename} is a file; a folder is needed") from None
    except OSError as fault:
        raise ConfigError(f"the {what} {folder} cannot be made: {fault.strerror}{ways}") from None


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, durably. Raises OSError, with `filename`."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    # A new folder is an entry of its parent: without an fsync of that, a power cut may take it with all its files.
    for place in missing:
        sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """Make renames, new files and deletions in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file, durably: after a power cut it has the old or the new content. Raises OSError."""
    making = path.with_name(f".{path.name}.tmp")
    with making.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    making.rename(path)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Make the content of a file survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_fault(fault: OSError, what: str) -> StoreError:
    """Return the error for a fault of the file system: one sentence, and what to do."""
    why = fault.strerror or str(fault)
    where = f" ({fault.filename})" if fault.filename else ""
    if fault.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFull(f"{what}: {why}{where}. Make room and start again: it goes on from there")
    return StoreFailed(f"{what}: {why}{where}. Mend that and start again: it goes on from there")
