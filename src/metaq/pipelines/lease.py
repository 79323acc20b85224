"""Lease of a pipeline's folder: one run writes at a time, and a crash frees it.

On a local folder the lease is a lock of the kernel (`flock`), which ends with the process, however that ends. The file's
text only names its holder. A file system without such locks needs another class with the same two methods, and a line in
`lease_on`.
"""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import json
import os
import platform
import threading
from pathlib import Path
from typing import Protocol

from metaq.clock import SYSTEM
from metaq.errors import ConfigError, StoreLocked

LEASE = "_lease"
WAIT_SECONDS = 5.0
"""Time to wait for a run that is just ending."""
_LOOK_SECONDS = 0.05


class Lease(Protocol):
    """The right to write into one folder."""

    def take(self, seconds: float = WAIT_SECONDS) -> None:
        """Take the lease, waiting up to `seconds` for a run that is just ending.

        Raises: StoreLocked: another run has it; the text names it. ConfigError: the folder cannot be written to.
        """
        ...

    def release(self) -> None:
        """Release it. May be repeated."""
        ...


def lease_on(folder: Path) -> Lease:
    """Return the lease of a folder, not taken yet."""
    return FileLease(folder)


def is_free(folder: Path) -> bool:
    """Return whether nobody has the lease now."""
    try:
        handle = os.open(folder / LEASE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


class FileLease:
    """A `flock` on `FOLDER/_lease`. Two of them exclude each other within a process as well."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / LEASE
        self._handle = -1

    def take(self, seconds: float = WAIT_SECONDS) -> None:
        try:
            # O_CLOEXEC: Spark's JVM outlives a killed driver for a moment, and would keep the lock so long.
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as fault:
            raise ConfigError(f"{self._folder} cannot be written to: {fault.strerror}") from None
        try:
            self._wait_for(handle, seconds)
            since = dt.datetime.fromtimestamp(SYSTEM.now_ms() / 1000, dt.UTC).isoformat(timespec="seconds")
            text = json.dumps({"host": platform.node(), "pid": os.getpid(), "since": since})
            # The lock is the lease. The text is for people, so a crash in between, or a full disk, does no harm.
            os.ftruncate(handle, 0)
            os.pwrite(handle, text.encode(), 0)
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle

    def release(self) -> None:
        # The file stays: after a removal two runs could lock two different files of that name.
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _wait_for(self, handle: int, seconds: float) -> None:
        give_up = SYSTEM.monotonic() + seconds
        while not self._locked(handle):
            if SYSTEM.monotonic() >= give_up:
                raise StoreLocked(
                    f"another run writes into {self._folder}: {_holder(handle)}. Stop it, or give this one an output "
                    "folder of its own"
                )
            threading.Event().wait(_LOOK_SECONDS)

    def _locked(self, handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:
            # On NFS `flock` is a POSIX lock, which may answer EACCES where another process has one.
            if fault.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                return False
            raise ConfigError(
                f"{self._path} cannot be locked ({fault.strerror}), so two runs could not be kept apart: put the output on "
                "a file system with locks"
            ) from fault
        return True


def _holder(handle: int) -> str:
    try:
        holder = json.loads(os.pread(handle, 4096, 0))
        return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "it has not said yet which process it is"
