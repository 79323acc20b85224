"""Pages ahead of the log's end, faulted in before they are written, and the next log file before it is needed.

A first touch of a page costs 1-1.5 µs in the writing thread, and up to 18 ms when the file system has to find blocks;
populated ahead it costs 0.2-0.35 µs there (docs/architecture.md, "The log"). The thread waits until half of what it
populated is used up, and takes as much as lasts for the time between two rounds.
"""

from __future__ import annotations

import logging
from typing import Final

from metaq.clock import Clock
from metaq.errors import StoreError
from metaq.store.commit_log import CommitLog
from metaq.store.worker import Worker

log = logging.getLogger(__name__)
AHEAD_BYTES_MIN: Final = 4 * 1024 * 1024
AHEAD_BYTES_MAX: Final = 64 * 1024 * 1024
_SECONDS_AHEAD: Final = 0.25
_STEP_BYTES: Final = 4 * 1024 * 1024
_ROUND_SECONDS: Final = 1.0


def window(written: int, seconds: float) -> int:
    """How many bytes to hold ready when `written` were written in the last `seconds`. Pure; 4 to 64 MiB."""
    rate = written / max(seconds, 0.001)
    return max(AHEAD_BYTES_MIN, min(AHEAD_BYTES_MAX, int(rate * _SECONDS_AHEAD)))


class Populator:
    """The thread. `due_at` is the log offset from which writers should call `wake` (an integer compare for them)."""

    def __init__(self, commit_log: CommitLog, clock: Clock, *, pages: bool = True) -> None:
        """`pages`: False where records are not written in place; then the thread only makes files."""
        self._log, self._clock = commit_log, clock
        self._populated = commit_log.end
        self._looked_at = (commit_log.end, clock.monotonic())
        self.due_at = commit_log.end
        self.works = pages
        """False also if this kernel cannot populate."""
        self.worker = Worker("populate", self.round, lambda: _ROUND_SECONDS)
        """Without `on_failure`: what it does not do, the writers do themselves, and get the errors."""

    def start(self) -> None:
        self.worker.start()
        self.worker.wake()

    def wake(self) -> None:
        self.due_at = 1 << 62  # until the round has set the next mark
        self.worker.wake()

    def restart(self) -> None:
        """The log was cut: what was made ready behind its end may be gone."""
        self._populated = self.due_at = self._log.end
        self._looked_at = (self._log.end, self._clock.monotonic())

    def round(self) -> None:
        """Populate one window ahead of the log's end, and make the next file if it is due."""
        end, now = self._log.end, self._clock.monotonic()
        ahead = window(end - self._looked_at[0], now - self._looked_at[1])
        self._looked_at = (end, now)
        if self._log.next_file_due():
            try:
                self._log.make_next_file()
            except StoreError as error:  # writers will meet it themselves, and say so, when the file is needed
                log.warning("the next log file cannot be made yet: %s", error)
        start, stop = max(end, self._populated), end + ahead
        while start < stop and self.works and not self.worker.stopping:
            file = self._log.run.find(start)
            if file is None:
                break
            size = min(_STEP_BYTES, stop - start, file.end - start)
            self.works = file.populate(start, size)
            start += size
        self._populated = max(self._populated, start)
        self.due_at = end + ahead // 2

    def stop(self) -> None:
        self.worker.stop()
