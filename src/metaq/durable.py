"""Files and folders that survive a power cut, and errors of the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
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


def write_secret(path: Path, data: bytes) -> None:
    """Replace a file with secrets: it is for those who could read it before, a new one for its owner only.

    Raises OSError: the text before is there, unless it could not be put back either. No copy of it stays otherwise.
    """
    path = path.resolve()  # a link stays one
    making, before = (path.with_name(f".{path.name}.{ending}") for ending in ("tmp", "old"))
    for left in (making, before):  # of a crash: its permissions may be wider
        left.unlink(missing_ok=True)
    with os.fdopen(os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        if path.exists():
            found = path.stat()
            with contextlib.suppress(PermissionError):  # only root may give files away
                os.fchown(file.fileno(), found.st_uid, found.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode))
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        before.hardlink_to(path)
    making.rename(path)
    try:
        sync_folder(path.parent)
    except OSError:
        # Whoever asked for the change hears that it was refused: a process that is killed next must not leave it.
        if before.exists():
            before.rename(path)
        else:
            path.unlink()
        raise
    before.unlink(missing_ok=True)


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
