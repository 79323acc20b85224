"""Disks that fail when told to: for tests of what a broker does on a full or broken one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from metaq.store.disk import Disk, Mapped


class FaultyDisk(Disk):
    """A real disk with switches. Hand it to `MessageStore(..., disk=FaultyDisk())`.

    Its methods are those of `metaq.store.disk.Disk`, with the faults that the switches ask for; a fault is an OSError.

    `room`: bytes that may still be reserved, None for no limit; what does not fit raises ENOSPC.
    `sync_error`: errno that every sync raises, `open_error`: that every opening of a file raises, `make_error`: that
    every opening raises which may make the file; 0 for none.
    `used`: what `used_percent` answers, 0 to 100; None for the truth.
    `cached`: False if nothing of what is old is in memory, so that it has to be waited for.
    """

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.sync_error = 0
        self.open_error = self.make_error = 0
        self.used: float | None = None
        self.cached = True
        self.synced: list[tuple[int, int, int]] = []
        """(inode, where it begins in the file, bytes) of each range synced, in order."""

    def open(self, path: Path, flags: int) -> int:
        """Return a descriptor of a file. Raises OSError: also that of `open_error`, or of `make_error` with O_CREAT."""
        if error := self.open_error or (self.make_error if flags & os.O_CREAT else 0):
            raise OSError(error, os.strerror(error), str(path))
        return super().open(path, flags)

    def read_cached(self, descriptor: int, into: memoryview, place: int) -> bool:
        """Fill `into` from byte `place` of a file on if all of it is in memory. Returns False: not, or not `cached`."""
        return self.cached and super().read_cached(descriptor, into, place)

    def is_cached(self, mapped: Mapped, start: int, size: int) -> bool:
        """Return whether bytes [start, start + size) of a mapped file are in memory. False: not, or not `cached`."""
        return self.cached and super().is_cached(mapped, start, size)

    def reserve(self, descriptor: int, start: int, size: int) -> None:
        """Give bytes [start, start + size) of a file their blocks; takes `size` off `room`. Raises OSError: also ENOSPC for `room`."""
        if self.room is not None:
            if size > self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= size
        super().reserve(descriptor, start, size)

    def sync_range(self, mapped: Mapped, start: int, size: int) -> None:
        """Make bytes [start, start + size) of a mapped file durable, and note it in `synced`. Raises OSError: also `sync_error`."""
        self._may_sync()
        super().sync_range(mapped, start, size)
        self.synced.append((mapped.inode, start, size))

    def sync_file(self, descriptor: int) -> None:
        """Make a file's data and size durable. Raises OSError: also that of `sync_error`."""
        self._may_sync()
        super().sync_file(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Make a folder's entries durable. Raises OSError: also that of `sync_error`."""
        self._may_sync()
        super().sync_folder(path)

    def sync_all(self, descriptor: int) -> None:
        """Make everything on the file system of a descriptor durable. Raises OSError: also that of `sync_error`."""
        self._may_sync()
        super().sync_all(descriptor)

    def used_percent(self, path: Path) -> float:
        """How full the file system of `path` is, in percent: `used` where it is set."""
        return super().used_percent(path) if self.used is None else self.used

    def _may_sync(self) -> None:
        if self.sync_error:
            raise OSError(self.sync_error, os.strerror(self.sync_error))
