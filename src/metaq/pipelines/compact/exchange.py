"""Atomic exchange of two folders: a reader that lists one sees all old files or all new ones.

`rename` replaces one file by one other. To replace several files at once takes Linux's `renameat2` with RENAME_EXCHANGE (ext4,
XFS, Btrfs, tmpfs, F2FS and others; not NFS), which Python's os module does not have.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from metaq.errors import ConfigError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two folders. Raises OSError: EINVAL or ENOSYS where the file system or the kernel cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    # An older C library does not have it.
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(one)) from None
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))


def try_an_exchange(folder: Path) -> None:
    """Probe whether folders in `folder` can be exchanged, and files linked. Raises ConfigError: they cannot."""
    one, other = (folder / f"_probe-{os.getpid()}-{number}" for number in (1, 2))
    try:
        one.mkdir(exist_ok=True)
        other.mkdir(exist_ok=True)
        exchange(one, other)
        (one / "file").touch()
        os.link(one / "file", other / "file")
    except OSError as fault:
        raise ConfigError(
            f"the file system of {folder} cannot exchange two folders in one step, or has no hard links ({fault.strerror}), "
            "so files could not be merged without readers seeing messages twice or not at all. Keep the archive on a local "
            "Linux file system (ext4, XFS, Btrfs), or leave it as it is: compactFiles=0, no keepDays"
        ) from None
    finally:
        for place in (one, other):
            (place / "file").unlink(missing_ok=True)
            if place.is_dir():
                place.rmdir()
