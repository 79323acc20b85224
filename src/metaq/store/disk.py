"""The file system and the kernel, behind an object that tests replace: `metaq.testing.FaultyDisk`, `PowerLossDisk`.

Everything that decides whether bytes are durable goes through `Disk`: files opened for writing, reservations, syncs. So a
test's disk knows what a power cut may take.

Everything here releases the GIL while it waits. `mmap.flush` and `mmap.madvise` do not (measured: stalls of 68 and
630 ms for every thread), so msync and madvise are called through ctypes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from metaq.errors import StoreError, StoreFull

PAGE_BYTES: Final = mmap.PAGESIZE
_MS_SYNC: Final = 4 if sys.platform == "linux" else 0x10
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14
_MADV_NORMAL, _MADV_RANDOM = 0, 1
# glibc's numbers, from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""glibc refuses more (HEAP_MAX_SIZE / 2)."""
NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What a full disk, a quota or a file system without room for such a file answer."""
_NO_WAIT: Final = getattr(os, "RWF_NOWAIT", 0)  # Linux 4.14
_NOT_IN_MEMORY: Final = {errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}

# A call through ctypes releases the GIL and keeps its errno apart from other calls' in the thread.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Mapped(NamedTuple):
    """A writable mapping of a file: its address, valid as long as the tuple is held, and the file's inode."""

    buffer: mmap.mmap
    address: int
    inode: int


def pages(mapped: Mapped, start: int, stop: int) -> tuple[int, int]:
    """Address and size of the mapped pages that hold [start, stop) of the file, as msync wants them."""
    first = start - start % PAGE_BYTES
    return mapped.address + first, stop - first


class SyncNotBegun(OSError):
    """A sync that never reached the kernel.

    It may be tried again. After one that failed the kernel counts the dirty pages as written, so a second try would succeed
    without having written them.
    """


class Disk:
    """What the store asks of the file system."""

    def open(self, path: Path, flags: int) -> int:
        """A descriptor of a file, not inherited by children. Raises OSError."""
        # Descriptors are not inherited: a child that outlives the broker would keep deleted log files on the disk.
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def map(self, path: Path, size: int) -> Mapped:
        """Map the first `size` bytes of a file for reading and writing. Raises OSError."""
        descriptor = self.open(path, os.O_RDWR)
        try:
            buffer = mmap.mmap(descriptor, size)
            # The inode tells a test's disk which file it is, also after a rename.
            return Mapped(buffer, ctypes.addressof(ctypes.c_char.from_buffer(buffer)), os.fstat(descriptor).st_ino)
        finally:
            # `mmap` has made a duplicate of it for itself.
            os.close(descriptor)

    def read_cached(self, descriptor: int, into: memoryview, place: int) -> bool:
        """Fill `into` from `place` of a file on if all of it is in memory; False: the disk would have to be waited for.

        Raises OSError. Where the kernel or the file system cannot say it is False.
        """
        if not _NO_WAIT:
            return False
        try:  # preadv2 with RWF_NOWAIT: EAGAIN instead of waiting, and a short count where only a part is in the page cache
            return os.preadv(descriptor, [into], place, _NO_WAIT) == len(into)
        except OSError as error:
            if error.errno in _NOT_IN_MEMORY:
                return False
            raise

    def is_cached(self, mapped: Mapped, start: int, size: int) -> bool:
        """Whether [start, start + size) of a mapped file is in memory: who reads it through the mapping need not wait.

        Good for the next moment only. False where the kernel does not say.
        """
        first = start - start % PAGE_BYTES
        pages = ctypes.create_string_buffer(-(-(start + size - first) // PAGE_BYTES))
        # mincore only asks the page cache: no fault, no wait.
        if _libc.mincore(mapped.address + first, start + size - first, pages) != 0:
            return False
        return b"\0" not in pages.raw  # the lowest bit says it; Linux sets no other

    def make_folder(self, path: Path) -> None:
        """Make a folder and those above it, as far as they are missing, with durable entries. Raises OSError."""
        # Each entry is its parent's to sync: a folder whose name a power cut takes, takes the files in it along.
        # Folders are made one by one: `makedirs` would sync none of those in between.
        missing = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            self.sync_folder(folder.parent)

    def reserve(self, descriptor: int, start: int, size: int) -> None:
        """Give [start, start + size) of a file its blocks, so that writing through a mapping cannot meet a full disk.

        Raises OSError. A page that is written without blocks behind it is SIGBUS on a full disk, not an error.
        """
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, start, size)
        elif os.fstat(descriptor).st_size < start + size:  # macOS: the size is all that can be had
            os.ftruncate(descriptor, start + size)

    def sync_range(self, mapped: Mapped, start: int, size: int) -> None:
        """Make mapped pages durable, those that touch [start, start + size) of the file. Raises OSError.

        A range and not the file: pages populated ahead are dirty, and fdatasync would write them all.
        """
        if _libc.msync(*pages(mapped, start, start + size), _MS_SYNC) != 0:
            raise _last_error()

    def rewrite(self, mapped: Mapped, start: int, size: int) -> None:
        """Have the next sync write what the mapped pages of [start, start + size) hold, also if they count as written.

        After a failed sync the kernel takes pages for clean that never reached the disk.
        """
        buffer = mapped.buffer
        for place in range(start - start % PAGE_BYTES, start + size, PAGE_BYTES):
            buffer[place] = buffer[place]  # a store of the same byte makes the page dirty again

    def sync_file(self, descriptor: int) -> None:
        """Make a file's data and size durable; its name is its folder's. Raises OSError."""
        # fsync and not fdatasync: a new file's size has to be durable, too.
        os.fsync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Make a folder's entries durable: the names of files that were made, renamed or deleted.

        Raises FileNotFoundError: there is no such folder. SyncNotBegun: it could not be opened, for want of descriptors
        perhaps. OSError: the sync failed.
        """
        try:
            descriptor = self.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SyncNotBegun(error.errno, error.strerror, str(path)) from error
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def resync_folder(self, path: Path) -> None:
        """Make a folder's entries durable, also if an earlier sync of it has failed. Raises OSError."""
        # The failed sync left the folder clean in the kernel's eyes. A file made and removed again makes it dirty.
        scratch = path / f"{'0' * 20}.tmp"
        os.close(self.open(scratch, os.O_RDWR | os.O_CREAT))
        scratch.unlink()
        self.sync_folder(path)

    def sync_all(self, descriptor: int) -> None:
        """Make everything on the file system of `descriptor` durable. Raises OSError.

        One pass and one commit of the journal: for very many small files it is much cheaper than a sync of each.
        """
        if not hasattr(_libc, "syncfs"):  # macOS
            os.sync()
        elif _libc.syncfs(descriptor) != 0:
            raise _last_error()

    def boot(self) -> str:
        """Return the id of the machine's present run; "" where the system does not tell.

        As long as it is the same, no power cut has taken anything from the page cache.
        """
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except (OSError, ValueError):  # macOS
            return ""

    def size_and_free(self, path: Path) -> tuple[int, int]:
        """Return the bytes of the file system of `path`, and the free ones, those reserved for root among them."""
        facts = os.statvfs(path)
        return facts.f_blocks * facts.f_frsize, facts.f_bfree * facts.f_frsize

    def used_percent(self, path: Path) -> float:
        """How full the file system of `path` is, in percent, as `df` tells it: what is reserved for root counts as used."""
        facts = os.statvfs(path)
        # `f_bavail` and not `f_bfree` below: a broker that does not run as root cannot write into the reserve.
        used = facts.f_blocks - facts.f_bfree
        return 100.0 * used / max(1, used + facts.f_bavail)


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def read_ahead(address: int, size: int, *, on: bool) -> None:
    """Switch read-ahead of a mapping; a new one has it on.

    With it the first touch of a new file makes as many pages as the device reads ahead: with 8 MiB (a common setting
    of virtual disks) 1 ms and the whole file's memory for each of 10 000 queues, against 8 µs and one page.
    """
    _libc.madvise(address, size, _MADV_NORMAL if on else _MADV_RANDOM)


def populate(address: int, size: int) -> bool:
    """Fault in mapped pages for writing without changing them. False: this kernel cannot (Linux before 5.14, macOS)."""
    first = address - address % PAGE_BYTES
    return bool(_libc.madvise(first, address + size - first, _MADV_POPULATE_WRITE) == 0)


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed blocks up to 32 MiB instead of returning each to the kernel. Call once at start;
    False: it refuses.

    A pull's answer of 1 MiB is a fresh allocation; by default glibc maps and unmaps it each time, 256 page faults a go
    (measured: 1.0 GB/s of pulls before, 3.0 after).
    """
    try:
        kept = _libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES_MAX) and _libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES_MAX)
        return bool(kept and _libc.mallopt(_M_ARENA_MAX, 2))  # one arena per thread would hold as much again each
    except AttributeError:  # not glibc: musl and macOS have no mallopt
        return False


def return_freed_memory() -> None:
    """Have glibc give freed pages back to the kernel. Call once after start: imports and recovery leave some 0.8 MB of them."""
    with contextlib.suppress(AttributeError):  # not glibc
        _libc.malloc_trim(0)


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one: each mapped file holds a descriptor. Returns the limit."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft


def file_limit() -> int:
    """Return how many files this process may have open; 0: no limit."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 if soft == resource.RLIM_INFINITY else soft


@contextlib.contextmanager
def reserving(path: Path) -> Iterator[None]:
    """Translate the errors of making or growing a file. Raises StoreFull (no room) or StoreError (anything else)."""
    try:
        yield
    except OSError as error:
        raise store_error(error, path) from error


def store_error(error: OSError, path: Path) -> StoreError:
    """What to say of a file that could not be made or grown; `path` is named where the error names none."""
    # The error may be about a folder above, or about the temporary file.
    path = error.filename or path
    if error.errno in NO_ROOM:
        return StoreFull(
            f"no room on the disk for {path} ({os.strerror(error.errno or 0)}): nothing was written; "
            "free some space, or keep messages for a shorter time (fileReservedTime)"
        )
    if error.errno == errno.EMFILE:
        return StoreError(f"{path}: too many open files; raise the limit (ulimit -n), every queue holds one")
    return StoreError(f"{path}: {error.strerror}")
