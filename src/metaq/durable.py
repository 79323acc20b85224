"""Files and folders that outlive a power cut, and what is said when the disk does not take them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from metaq.errors import ConfigError, StoreError, StoreFailed, StoreFull


def make_or_refuse(what: str, folder: Path, ways: str = "") -> None:
    """`make_folder`. Raises ConfigError: it cannot be made; the text calls it `what` and ends with `ways` out."""
    try:
        make_folder(folder)
    except FileExistsError as fault:
        raise ConfigError(f"the {what} {fault.filename} is a file; a folder is needed") from None
    except OSError as fault:
        raise ConfigError(f"the {what} {folder} cannot be made: {fault.strerror}{ways}") from None


def make_folder(folder: Path) -> None:
    """Make a folder and what is missing above it, so that they survive a power cut. Raises OSError, with `filename`."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file, whole and safe from a power cut. Raises OSError."""
    making = path.with_name(f".{path.name}.tmp")
    with making.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    making.rename(path)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_fault(fault: OSError, what: str) -> StoreError:
    """Our error for a fault of the file system: one sentence, and what to do."""
    why = fault.strerror or str(fault)
    where = f" ({fault.filename})" if fault.filename else ""
    if fault.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFull(f"{what}: {why}{where}. Make room and start again: it goes on from there")
    return StoreFailed(f"{what}: {why}{where}. Mend that and start again: it goes on from there")
