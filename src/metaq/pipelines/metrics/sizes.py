"""Bytes between two offsets of a queue: exact at the borders of slices that were read, by the mean size within one."""

from __future__ import annotations

import bisect

from msgspec import Struct, field

MARKS_MAX = 256
"""Most marks per queue; beyond it every other one is dropped, so that a large lag is measured in coarser steps."""


class Sizes(Struct, array_like=True):
    """Cumulative bytes of a queue at some of its offsets, from the first one that was read. Both lists are ascending."""

    offsets: list[int] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)

    @property
    def known(self) -> range:
        """Range of offsets whose sizes are known, both ends included."""
        return range(self.offsets[0], self.offsets[-1]) if self.offsets else range(0)

    def read(self, start: int, end: int, size: int) -> None:
        """Note the bytes of the messages [start, end). Slices must come in order."""
        if not self.offsets:
            self._mark(start, 0)
        elif start > self.offsets[-1]:
            # Messages that retention removed before they were read count as 0 bytes.
            self._mark(start, self.totals[-1])
        if end > self.offsets[-1]:
            self._mark(end, self.totals[-1] + size)
        if len(self.offsets) > MARKS_MAX:
            for marks in (self.offsets, self.totals):
                marks[1:-1] = marks[2:-1:2]

    def up_to(self, offset: int) -> int:
        """Return the bytes before an offset, which must be in `known` or its end."""
        place = bisect.bisect_left(self.offsets, offset)
        if self.offsets[place] == offset:
            return self.totals[place]
        low, high = self.offsets[place - 1], self.offsets[place]
        below = self.totals[place - 1]
        return below + (self.totals[place] - below) * (offset - low) // (high - low)

    def _mark(self, offset: int, total: int) -> None:
        self.offsets.append(offset)
        self.totals.append(total)
