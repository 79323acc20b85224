"""Locks on a file that belong to a process: POSIX record locks, of which the system knows who has them."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final

_FLOCK: Final = struct.Struct("hhqqi4x")
"""C's `struct flock` on 64-bit Linux: type, whence, start, length, process."""


def take(descriptor: int) -> bool:
    """Lock byte 0 of an open file, as Java's FileChannel.lock(0, 1). Return whether no other process has it.

    The lock ends with the process, and when the process closes any descriptor of the file. Its children have none of it.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        return False
    return True


def holder(descriptor: int) -> int | None:
    """Return the id of the other process that has the lock; None: nobody has. 0: it is in another container. Raises OSError."""
    asked = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    kind, _whence, _start, _length, process = _FLOCK.unpack(asked)
    return None if kind == fcntl.F_UNLCK else int(process)
