"""Syncs the log in a native thread that never takes the GIL: the event loop does not wait for it, nor it for the loop."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from metaq.compiled import compiled
from metaq.store.disk import Disk, Mapped, pages
from metaq.store.log.commit_log import CommitLog
from metaq.store.mapped_file import MappedFile

if TYPE_CHECKING:
    from metaq.store.log._syncing import Syncs

STEP_BYTES: Final = 64 * 1024 * 1024
"""What is synced at once: waiters for the first bytes need not wait for the last."""

_compiled, _ = compiled("metaq.store.log._syncing")
_Syncs: type[Syncs] | None = _compiled.Syncs if _compiled else None


class SyncThread:
    """Syncs ranges of the log that it is asked for. One caller at a time, but for `wait` and `heard`."""

    def __init__(self, commit_log: CommitLog, flushed: int, forget: Callable[[int], object]) -> None:
        self._log, self._forget = commit_log, forget
        # The native thread tells by a descriptor: it never takes the GIL, so it cannot call Python.
        self.told = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        assert _Syncs is not None, "`possible` says so"
        self._syncs = _Syncs(self.told, flushed)
        self._asked = flushed
        self._file: MappedFile | None = None
        self._mapped: Mapped | None = None
        """Mapping of `_file`. Held because `release_before` may drop the file's own while it is synced."""
        self._thread = threading.Thread(target=self._syncs.run, name="metaq-sync", daemon=True)
        self._thread.start()

    @staticmethod
    def possible(disk: Disk) -> bool:
        """Whether the compiled module is there, and the disk syncs as `Disk` does."""
        # The native thread calls msync itself, past the `Disk`: a test's disk would not see it.
        return _Syncs is not None and type(disk).sync_range is Disk.sync_range

    def ask(self, flushed: int) -> None:
        """Sync what is there from `flushed` on, of one file, as soon as what is under way is over.

        Raises OSError: the file cannot be mapped.
        """
        end, file = self._log.end, self._file
        if file is None or not file.start <= flushed < file.end:
            # Whatever was asked for before is over: it was of another file, and `flushed` is behind it.
            # One file at a time: a mapping is one file's, and msync takes a range of one mapping.
            file = next((file for file in self._log.run.files if file.end > flushed), None)
            self._file, self._mapped = file, None if file is None else file.mapped
        if file is None or self._mapped is None or file.start >= end:
            address, size, stop = 0, 0, end  # the log begins anew behind `flushed`: there is nothing to sync
        else:
            start = max(flushed, file.start)
            stop = min(end, file.end, start + STEP_BYTES)
            address, size = pages(self._mapped, start - file.start, stop - file.start)
        # Each range is asked for once: the thread would sync it again.
        if stop > self._asked:
            self._asked = stop
            self._syncs.ask(address, size, stop)

    def wait(self) -> None:
        """Return when the range asked for is synced, or its sync has failed."""
        self._syncs.wait(self._asked)

    def look(self) -> tuple[int, int]:
        """Return the LogOffset up to which the log is durable, and the errno of the sync that failed, or 0."""
        return self._syncs.look()

    def heard(self) -> None:
        """Read the event descriptor empty, so that the loop's reader is not called again for the same news."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.told)

    def cut(self, log_end: int) -> None:
        """Take note that the log ends at `log_end` now. Returns when no sync is under way any more."""
        self._syncs.rewind(log_end)
        self._asked, self._file, self._mapped = min(self._asked, log_end), None, None

    def stop(self) -> None:
        """End the thread. Nobody may ask or wait any more."""
        self._forget(self.told)
        self._syncs.end()
        # Before the descriptor is closed: the thread may just be writing to it, and its number may be another file's at
        # once.
        self._thread.join()
        os.close(self.told)
