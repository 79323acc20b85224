"""Makes checksums of log files that a running broker has closed, a few MiB at a time."""

from __future__ import annotations

import logging
import zlib
from typing import Final

from metaq.store.log.parts import Parts
from metaq.store.log.sums import RANGE_BYTES, Sums, SumsFolder
from metaq.store.mapped_file import MappedFile

log = logging.getLogger(__name__)
_RANGES_OF_A_STEP: Final = 16
"""Some 15 ms of work, and at one step a second no load for the disk: what was just closed is in the page cache."""


class SumsMaker:
    """All is called by those who hold `Housekeeper.work`, so that no file is changed or deleted meanwhile.

    Files that were closed before this start are the first `metaq store scrub`'s: reading a whole log is nothing to do unasked.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._folder = SumsFolder(parts.folder.root, parts.disk)
        self._next = parts.log.end
        """LogOffset from which files are closed by this broker."""
        self._again: set[int] = set()
        """Files that were repaired."""
        self._sums: list[int] = []
        self._of = -1
        """The file whose checksums are being made."""

    def step(self) -> None:
        """Go on with the oldest file that has none. A failure is logged, and the file left to a scrub."""
        file = self._due()
        if file is None:
            return
        if file.start != self._of:
            self._of, self._sums = file.start, []
        try:
            first = file.start + len(self._sums) * RANGE_BYTES
            for place in range(first, min(file.end, first + _RANGES_OF_A_STEP * RANGE_BYTES), RANGE_BYTES):
                self._sums.append(zlib.crc32(file.peek(place, min(RANGE_BYTES, file.end - place))))
            if len(self._sums) * RANGE_BYTES < file.size:
                return
            self._folder.save(Sums(file.start, file.size, RANGE_BYTES, tuple(self._sums)))
        except OSError as error:
            log.warning("no checksums of %s are kept until `metaq store scrub` makes them: %s", file.path, error)
        self._again.discard(file.start)
        self._next, self._of = max(self._next, file.end), -1

    def _due(self) -> MappedFile | None:
        flushed = min(self._parts.state.flushed, self._parts.log.end)
        for file in self._parts.log.run.files:
            if file.end <= flushed and (file.end > self._next or file.start in self._again):
                return file
        return None

    def changing(self, file: MappedFile) -> None:
        """Drop the checksums of a file before it is changed, and again afterwards. Raises OSError."""
        self._folder.forget(file.start)
        self._of = -1
        if file.end <= self._parts.log.end:
            self._again.add(file.start)

    def cut(self, log_end: int) -> None:
        """Drop those of files that do not end at or below the log's end. Raises OSError."""
        self._folder.drop(log_end - self._parts.log.file_bytes + 1, 1 << 63)
        self._next, self._of = min(self._next, log_end), -1
        self._again = {start for start in self._again if start < log_end}

    def expired(self, log_begin: int) -> None:
        """Delete those of log files that are gone. A failure is logged: the next time does it."""
        try:
            self._folder.drop(0, log_begin)
        except OSError as error:
            log.warning("checksums of deleted log files stay in %s: %s", self._folder.folder, error)
        self._again = {start for start in self._again if start >= log_begin}
