"""The thread that syncs without the interpreter: neither waits for the other."""

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
    """Syncs the log, of which it is told stretch by stretch. All but `wait` and `heard` is for one at a time."""

    def __init__(self, commit_log: CommitLog, flushed: int, forget: Callable[[int], object]) -> None:
        self._log, self._forget = commit_log, forget
        self.told = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        assert _Syncs is not None, "`possible` says so"
        self._syncs = _Syncs(self.told, flushed)
        self._asked = flushed
        self._file: MappedFile | None = None
        self._mapped: Mapped | None = None
        """Held while it is synced: the file may let go of it."""
        self._thread = threading.Thread(target=self._syncs.run, name="metaq-sync", daemon=True)
        self._thread.start()

    @staticmethod
    def possible(disk: Disk) -> bool:
        """Whether the module is there, and syncing is what this disk does, and nothing of a test's own."""
        return _Syncs is not None and type(disk).sync_range is Disk.sync_range

    def ask(self, flushed: int) -> None:
        """Sync what is there from `flushed` on, of one file, as soon as what is under way is over.

        Raises OSError: the file cannot be mapped.
        """
        end, file = self._log.end, self._file
        if file is None or not file.start <= flushed < file.end:
            # Whatever was asked for before is over: it was of another file, and `flushed` is behind it.
            file = next((file for file in self._log.run.files if file.end > flushed), None)
            self._file, self._mapped = file, None if file is None else file.mapped
        if file is None or self._mapped is None or file.start >= end:
            address, size, stop = 0, 0, end  # the log begins anew behind `flushed`: there is nothing to sync
        else:
            start = max(flushed, file.start)
            stop = min(end, file.end, start + STEP_BYTES)
            address, size = pages(self._mapped, start - file.start, stop - file.start)
        if stop > self._asked:
            self._asked = stop
            self._syncs.ask(address, size, stop)

    def wait(self) -> None:
        """Until what was asked for is over."""
        self._syncs.wait(self._asked)

    def look(self) -> tuple[int, int]:
        """Up to where the log is durable, and the errno of the sync that failed, or 0."""
        return self._syncs.look()

    def heard(self) -> None:
        """Take what is told by `told`: it is not readable any more."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.told)

    def cut(self, log_end: int) -> None:
        """The log ends there now. Returns when nothing is under way any more."""
        self._syncs.rewind(log_end)
        self._asked, self._file, self._mapped = min(self._asked, log_end), None, None

    def stop(self) -> None:
        """Nobody asks or waits any more."""
        self._forget(self.told)
        self._syncs.end()
        self._thread.join()
        os.close(self.told)
