"""Group commit: one thread syncs the log for all who wait."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from metaq.clock import SYSTEM
from metaq.histogram import SIZES, Measured
from metaq.store.log.commit_log import CommitLog
from metaq.store.log.parts import State
from metaq.store.log.sync_thread import STEP_BYTES, SyncThread
from metaq.store.worker import Worker

log = logging.getLogger(__name__)


class Flusher:
    """`MessageStore.flusher`. Syncs the log at least every `interval_ms()`, and at once when somebody waits.

    While one sync runs, further waiters gather; the next one serves them all.
    """

    def __init__(self, commit_log: CommitLog, interval_ms: Callable[[], int], state: State) -> None:
        self._log, self._interval_ms, self._state = commit_log, interval_ms, state
        self._lock = threading.Lock()
        # One sync at a time, whichever thread asks: the second one would wait in the kernel for the same pages.
        self._syncing = threading.Lock()
        self._waiters: list[tuple[int, Callable[[bool], None]]] = []
        self._stopping = False
        self._beside: SyncThread | None = None
        self.seconds, self.sizes = Measured(), Measured(SIZES)
        """Of the syncs: how long each took, and how many bytes it made durable."""
        self._since = 0.0
        """When the native thread was asked for what it has not told yet; 0: for nothing."""
        state.flushed = commit_log.end  # recovery has synced what it found
        self.worker = Worker("flush", self.flush, lambda: self._interval_ms() / 1000, state.fail)
        state.when_failed(lambda _why: self.worker.wake())  # nothing is durable any more: whoever waits is told

    def start(self) -> None:
        self.worker.start()

    def watch(self, look_at: Callable[[int, Callable[[], None]], None], forget: Callable[[int], object]) -> bool:
        """Sync in a thread that does not hold the GIL, and call those who wait from an event loop.

        Args:
            look_at: the loop's `add_reader`
            forget: its `remove_reader`.

        Returns False, and changes nothing, without the compiled module or on a test's disk.
        """
        if not self._state.takes or not SyncThread.possible(self._log.run.disk):
            return False
        with self._syncing, self._lock:
            self._beside = SyncThread(self._log, self._state.flushed, forget)
        look_at(self._beside.told, self._look)
        return True

    def when_flushed(self, log_end: int, done: Callable[[bool], None]) -> None:
        """Call `done(True)` once the log is durable up to `log_end`; `done(False)` if it never will be.

        `done` runs in the flush thread, or in the loop of `watch`: hand over to your own. At once if it is durable already.
        """
        with self._lock:
            beside = self._beside
            # The look is under the lock: between it and the append a flush could report, and this waiter would be
            # forgotten.
            waits = not self._stopping and self._state.failed is None and self._state.flushed < log_end
            if waits:
                self._waiters.append((log_end, done))
        if not waits:
            done(self._state.failed is None and self._state.flushed >= log_end)
        elif beside is None:
            self.worker.wake()
        else:
            self._ask(beside)

    def flush(self) -> None:
        """Make the log durable up to here, and answer those who wait. The thread's own step; others may call it too."""
        with self._syncing:
            if self._state.failed is None:
                # A native thread may have taken the work over: see `watch`.
                if self._beside is None:
                    self._sync()
                else:
                    self._wait(self._beside)
        self._tell()

    def _sync(self) -> None:
        end = self._log.end
        try:
            start = self._state.flushed
            while start < end:  # in steps of 64 MiB: waiters for the first bytes need not wait for the last
                stop = min(end, start + STEP_BYTES)
                began = SYSTEM.monotonic()
                self._log.sync(start, stop)
                self._measure(began, stop - start)
                start = self._state.flushed = stop
                self._tell()
        except OSError as error:
            self._fail(error.errno or 0)

    def _measure(self, began: float, size: int) -> None:
        self.seconds.add(SYSTEM.monotonic() - began)
        self.sizes.add(size)

    def _wait(self, beside: SyncThread) -> None:
        end = self._log.end
        while self._state.failed is None and self._state.flushed < end:
            self._ask(beside)
            beside.wait()
            self._settle(beside)

    def _look(self) -> None:
        """The thread beside us has done something."""
        beside = self._beside
        if beside is None:
            return
        beside.heard()
        self._settle(beside)
        self._tell()
        if self._waiters:
            self._ask(beside)  # of the next file, of the next step, or of what came since

    def _ask(self, beside: SyncThread) -> None:
        try:
            with self._lock:
                if self._state.failed is None:
                    beside.ask(self._state.flushed)
                    self._since = self._since or SYSTEM.monotonic()
        except OSError as error:
            self._fail(error.errno or 0)

    def _settle(self, beside: SyncThread) -> None:
        with self._lock:
            done, error = beside.look()
            if self._since and done > self._state.flushed:
                self._measure(self._since, done - self._state.flushed)
                self._since = 0.0
            # Two threads may settle: the one with the older news must not take the mark back.
            self._state.flushed = max(self._state.flushed, done)
        if error:
            self._fail(error)

    def _fail(self, error: int) -> None:
        # Final: after a failed sync the kernel forgets which pages were dirty, so a second one would succeed and prove nothing.
        self._state.fail(f"the commit log could not be made durable: {os.strerror(error)}")

    def _tell(self) -> None:
        """Answer those whose bytes are durable; all of them, with False, after a failure."""
        failed, flushed = self._state.failed is not None, self._state.flushed
        with self._lock:
            # Waiters are looked for under the lock and called without it: a callback may ask for the next flush.
            ready = [(end, done) for end, done in self._waiters if failed or end <= flushed]
            self._waiters = [(end, done) for end, done in self._waiters if not failed and end > flushed]
        for end, done in ready:
            try:
                done(end <= flushed)
            except Exception:
                log.exception("a callback that waited for the flush of log offset %d failed", end)

    def cut(self, log_end: int) -> None:
        """Take note that the log ends at `log_end` now; whoever waits for more gets `done(False)`."""
        with self._syncing, self._lock:  # no sync under way may report bytes durable that are gone
            self._state.flushed = min(self._state.flushed, log_end)
            if self._beside is not None:
                self._beside.cut(log_end)
            # Their messages are gone: neither this flush nor a later one may acknowledge them.
            gone = [done for end, done in self._waiters if end > log_end]
            self._waiters = [(end, done) for end, done in self._waiters if end <= log_end]
        for done in gone:
            done(False)

    def stop(self) -> None:
        """End the thread after a last flush."""
        with self._lock:
            # From here on nobody is queued any more: a waiter behind the last flush would wait for ever.
            self._stopping = True
        self.worker.stop()
        self.flush()  # what came since the thread's last step
        with self._syncing, self._lock:
            beside, self._beside = self._beside, None
            waiters, self._waiters = self._waiters, []
        if beside is not None:
            beside.stop()
        for end, done in waiters:
            done(self._state.failed is None and end <= self._state.flushed)
