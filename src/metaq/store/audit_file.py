"""Audit logs on the disk: lines that a thread appends, syncs by interval, and moves into numbered files.

Two of them, `audit.log` for what was done by administrators and `refused.log` for what was refused: whoever makes a server refuse
much fills only the second. Each grows to `file_bytes`, becomes `NAME.1` then, and so on up to `files`: the oldest is deleted. So both
together never take more than `2 · file_bytes · (files + 1)`.

The queue to the thread is bounded. What finds it full is dropped, counted, and told by the next line that gets through.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from metaq.clock import SYSTEM
from metaq.log import RateLimitedLog
from metaq.store.disk import Disk

log = logging.getLogger(__name__)

QUEUE_MAX: Final = 8192
"""Lines that wait for the disk."""
REFUSED_QUEUE_MAX: Final = QUEUE_MAX * 3 // 4
"""Lines above which refused requests are dropped: the rest is for administrative ones."""
SYNC_SECONDS: Final = 1.0
"""Longest time for which a written line is not on the disk."""
CLOSE_SECONDS: Final = 5.0
"""Longest wait for the last lines at a stop: a disk that hangs must not hold it up."""
DONE: Final = "audit.log"
REFUSED: Final = "refused.log"


class AuditFile:
    """The audit logs of one server. Nothing is made on the disk before the first line.

    Args:
        folder: of the files.
        file_bytes: size at which a file is put aside.
        files: those that are kept beside the one that is written, of each of the two logs.
        left_out: makes the line that says how many were dropped.
        disk: for tests.
        sync_seconds: interval of syncs.
    """

    def __init__(
        self,
        folder: Path,
        file_bytes: int,
        files: int,
        left_out: Callable[[int], bytes],
        disk: Disk | None = None,
        sync_seconds: float = SYNC_SECONDS,
    ) -> None:
        self.folder, self._file_bytes, self._files = folder, file_bytes, files
        self._left_out, self._disk, self._sync_seconds = left_out, disk or Disk(), sync_seconds
        self._queue: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._dropped = self.dropped = 0
        """Lines dropped since the last that was told of, and in all."""
        self._faults = RateLimitedLog(log)
        self._open: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._dirty = set[str]()

    def put(self, line: bytes, *, refused: bool) -> bool:
        """Have a line written. For any thread. Returns False: it was dropped, and counted."""
        if self._queue.qsize() >= (REFUSED_QUEUE_MAX if refused else QUEUE_MAX):
            self._drop(1)
            return False
        self._queue.put((REFUSED if refused else DONE, line))
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="metaq-audit", daemon=True)
                    self._thread.start()
        return True

    def close(self) -> None:
        """Write and sync what waits, and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(CLOSE_SECONDS)

    def _drop(self, count: int) -> None:
        with self._lock:
            self._dropped += count
            self.dropped += count

    # -- in the thread
    def _run(self) -> None:
        sync_at = SYSTEM.monotonic() + self._sync_seconds
        going = True
        while going:
            try:
                item = self._queue.get(timeout=max(0.0, sync_at - SYSTEM.monotonic()) if self._dirty else None)
            except queue.Empty:
                item = ("", b"")
            going = item is not None
            if item is not None and item[1]:
                if not self._dirty:
                    sync_at = SYSTEM.monotonic() + self._sync_seconds
                self._take(*item)
            if self._dirty and (not going or SYSTEM.monotonic() >= sync_at):
                self._sync()
        for descriptor in self._open.values():
            os.close(descriptor)

    def _take(self, name: str, line: bytes) -> None:
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            line += self._left_out(dropped)
        try:
            self._write(name, line)
        except OSError as error:
            self._drop(1 + dropped)
            self._close(name)
            self._faults.error(
                "write", "lines of the audit log are lost: %s cannot be written: %s", self.folder / name, error
            )

    def _write(self, name: str, line: bytes) -> None:
        descriptor = self._open.get(name)
        if descriptor is not None and self._sizes[name] and self._sizes[name] + len(line) > self._file_bytes:
            self._put_aside(name)
            descriptor = None
        if descriptor is None:
            descriptor = self._opened(name)
        left = memoryview(line)
        while left:
            left = left[os.write(descriptor, left) :]
        self._sizes[name] += len(line)
        self._dirty.add(name)

    def _opened(self, name: str) -> int:
        path = self.folder / name
        self._disk.make_folder(self.folder)
        descriptor = self._disk.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._open[name] = descriptor
        os.fchmod(descriptor, 0o600)  # it says who administers, and from where
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            size += os.write(descriptor, b"\n")  # a line that a power cut has torn stands alone
        self._sizes[name] = size
        self._disk.sync_folder(self.folder)
        return descriptor

    def _put_aside(self, name: str) -> None:
        self._sync()
        self._close(name)
        path = self.folder / name
        for number in range(self._files, 0, -1):
            older = path.with_name(f"{name}.{number - 1}") if number > 1 else path
            if older.exists():
                older.replace(path.with_name(f"{name}.{number}"))
        if not self._files:
            path.unlink(missing_ok=True)
        self._disk.sync_folder(self.folder)

    def _close(self, name: str) -> None:
        descriptor = self._open.pop(name, None)
        self._dirty.discard(name)
        if descriptor is not None:
            os.close(descriptor)

    def _sync(self) -> None:
        for name in sorted(self._dirty):
            try:
                self._disk.sync_file(self._open[name])
            except OSError as error:
                self._faults.error("sync", "%s cannot be synced: %s", self.folder / name, error)
        self._dirty.clear()
