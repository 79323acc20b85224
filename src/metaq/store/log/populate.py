"""Faults in pages ahead of the log's end, and makes the next log file before it is needed.

A first touch of a page costs 1-1.5 µs in the writing thread, and up to 18 ms when the file system has to find blocks;
populated ahead it costs 0.2-0.35 µs there (docs/architecture.md, "The log"). The thread waits until a part of what it
populated is used up, and takes as much as lasts for the time between two rounds.

The kernel makes as many pages in one go as the device reads ahead, and whoever wants that core waits for all of them: 8 MiB
(a common setting of virtual disks) take 1-4 ms, and 17-18 where the machine's memory is not at hand. In a flood of messages
that pays: page by page 1 KB messages, 4 × 64, were 374 k/s instead of 551. At 50 000 messages a second it made the p99 of a
consumer 3-15 ms. So up to `UNHURRIED_BYTES_MAX` the thread goes page by page, a little at a time.
"""

from __future__ import annotations

import logging
from typing import Final

from metaq.clock import Clock
from metaq.errors import StoreError
from metaq.store.log.commit_log import CommitLog
from metaq.store.mapped_file import MappedFile
from metaq.store.worker import Worker

log = logging.getLogger(__name__)
AHEAD_BYTES_MIN: Final = 4 * 1024 * 1024
# A quarter of a second (`_SECONDS_AHEAD`) at 256 MiB/s.
AHEAD_BYTES_MAX: Final = 64 * 1024 * 1024
_SECONDS_AHEAD: Final = 0.25
UNHURRIED_BYTES_MAX: Final = 8 * 1024 * 1024
"""A larger window, for more than 32 MiB/s, is populated with read-ahead."""
_STEP_BYTES: Final = 4 * 1024 * 1024
_ROUND_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.05
"""Time over which the rate is taken, at least: a burst of some hundred messages is no flood."""


def window(written: int, seconds: float) -> int:
    """Return how many bytes to hold ready, 4 to 64 MiB, when `written` were written in the last `seconds`. Pure."""
    rate = written / max(seconds, 0.001)
    return max(AHEAD_BYTES_MIN, min(AHEAD_BYTES_MAX, int(rate * _SECONDS_AHEAD)))


class Populator:
    """The thread. Writers call `wake` once the log's end is behind `due_at`, a LogOffset: one comparison for each append."""

    def __init__(self, commit_log: CommitLog, clock: Clock, *, pages: bool = True) -> None:
        """`pages`: False where records are not written in place; then the thread only makes files."""
        self._log, self._clock = commit_log, clock
        self._populated = commit_log.end
        self._looked_at = (commit_log.end, clock.monotonic())
        self._advised: tuple[MappedFile, bool] | None = None
        """The file that was populated last, and whether page by page."""
        self.due_at = commit_log.end
        self.works = pages
        """False also if this kernel cannot populate."""
        self.worker = Worker("populate", self.round, lambda: _ROUND_SECONDS)
        """Its failures do not stop the store: the writers then fault in pages and make files themselves, and get the errors."""

    def start(self) -> None:
        self.worker.start()
        self.worker.wake()

    def wake(self) -> None:
        self.due_at = 1 << 62  # until the round has set the next mark: one wake-up, not one for each append
        self.worker.wake()

    def restart(self) -> None:
        """Begin anew at the log's end, which was cut."""
        self._populated = self.due_at = self._log.end
        self._looked_at = (self._log.end, self._clock.monotonic())

    def round(self) -> None:
        """Populate one window ahead of the log's end, and make the next file if it is due."""
        end, now = self._log.end, self._clock.monotonic()
        seconds = now - self._looked_at[1]
        ahead = window(end - self._looked_at[0], max(seconds, _LOOK_SECONDS))
        unhurried = ahead <= UNHURRIED_BYTES_MAX
        # Kept until then: the rate of a burst is taken over the whole of it.
        if seconds >= _LOOK_SECONDS:
            self._looked_at = (end, now)
        if self._log.next_file_due():
            try:
                self._log.make_next_file()
            except StoreError as error:  # writers will meet it themselves, and say so, when the file is needed
                log.warning("the next log file cannot be made yet: %s", error)
        # What writers have passed over already is not populated any more.
        start, stop = max(end, self._populated), end + ahead
        while start < stop and self.works and not self.worker.stopping:
            file = self._log.run.find(start)
            if file is None:  # the next file is not made yet
                break
            if self._advised != (file, unhurried):
                file.touch_singly(singly=unhurried)
                self._advised = file, unhurried
            size = min(_STEP_BYTES, stop - start, file.end - start)
            # A kernel that cannot is asked once, not in each round.
            self.works = file.populate(start, size)
            start += size
        self._populated = max(self._populated, start)
        # Next when an eighth is used up, a little at a time; in a flood when half is, so that the thread seldom takes the core.
        self.due_at = end + ahead - ahead // (8 if unhurried else 2)

    def stop(self) -> None:
        self.worker.stop()
