"""When bytes become durable: one thread syncs the log for all who wait (group commit)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final

from metaq.store.commit_log import CommitLog
from metaq.store.parts import State
from metaq.store.worker import Worker

log = logging.getLogger(__name__)
_STEP_BYTES: Final = 64 * 1024 * 1024


class Flusher:
    """Syncs the log at least every `interval_ms()`, and at once when somebody waits.

    While one sync runs, further waiters gather; the next one serves them all. A failed sync is final: after it the
    kernel forgets which pages were dirty, so a second try would lie.
    """

    def __init__(self, commit_log: CommitLog, interval_ms: Callable[[], int], state: State) -> None:
        self._log, self._interval_ms, self._state = commit_log, interval_ms, state
        self._lock = threading.Lock()
        self._syncing = threading.Lock()
        self._waiters: list[tuple[int, Callable[[bool], None]]] = []
        self._stopping = False
        state.flushed = commit_log.end  # recovery has seen to it
        self.worker = Worker("flush", self.flush, lambda: self._interval_ms() / 1000, state.fail)
        state.when_failed(lambda _why: self.worker.wake())  # nothing is durable any more: whoever waits is told

    def start(self) -> None:
        self.worker.start()

    def when_flushed(self, log_end: int, done: Callable[[bool], None]) -> None:
        """Call `done(True)` from the flush thread once the log is durable up to `log_end`; `done(False)` if it fails."""
        with self._lock:
            if not self._stopping:
                self._waiters.append((log_end, done))
                self.worker.wake()
                return
        done(self._state.failed is None and self._state.flushed >= log_end)

    def flush(self) -> None:
        """Sync what is there now. The thread's own step; others may call it too."""
        with self._syncing:
            if self._state.failed is None:
                self._sync()
        self._tell()

    def _sync(self) -> None:
        end = self._log.end
        try:
            start = self._state.flushed
            while start < end:  # in steps: waiters for the first bytes need not wait for the last
                stop = min(end, start + _STEP_BYTES)
                self._log.sync(start, stop)
                start = self._state.flushed = stop
                self._tell()
        except OSError as error:
            self._state.fail(f"the commit log could not be made durable: {os.strerror(error.errno or 0)}")

    def _tell(self) -> None:
        """Answer those whose bytes are durable; all of them, with False, after a failure."""
        failed, flushed = self._state.failed is not None, self._state.flushed
        with self._lock:
            ready = [(end, done) for end, done in self._waiters if failed or end <= flushed]
            self._waiters = [(end, done) for end, done in self._waiters if not failed and end > flushed]
        for end, done in ready:
            try:
                done(end <= flushed)
            except Exception:
                log.exception("a callback that waited for the flush of log offset %d failed", end)

    def cut(self, log_end: int) -> None:
        """The log ends at `log_end` now. Who waits for more is told that it will not be."""
        with self._syncing:
            self._state.flushed = min(self._state.flushed, log_end)
            with self._lock:
                gone = [done for end, done in self._waiters if end > log_end]
                self._waiters = [(end, done) for end, done in self._waiters if end <= log_end]
        for done in gone:
            done(False)

    def stop(self) -> None:
        """End the thread after a last flush."""
        with self._lock:
            self._stopping = True
        self.worker.stop()
        self.flush()
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for end, done in waiters:
            done(self._state.failed is None and end <= self._state.flushed)
