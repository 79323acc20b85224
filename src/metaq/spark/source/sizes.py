"""Slices weighed in bytes: how large a part of one is, and where in it so many bytes end. Judged by samples."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from metaq.client.conversation.reading.sizes import Sample

RECORD_BYTES_GUESS = 1024
"""Of a message of which nothing is known."""


class Profile:
    """Bytes along the messages [start, end) of a queue: each is as large as those of the nearest sample."""

    def __init__(self, start: int, end: int, samples: Sequence[Sample] = (), guess: float = RECORD_BYTES_GUESS) -> None:
        """Args: samples: in order; where there are none, a message has `guess` bytes."""
        self.start, self.end = start, end
        middles = itertools.accumulate(
            ((one.stop + other.start) // 2 for one, other in itertools.pairwise(samples)), max
        )
        borders = [min(max(start, middle), end) for middle in middles]
        self._borders = [start, *borders, end]
        self._means = [max(1.0, sample.mean) for sample in samples] or [max(1.0, guess)]
        sizes = [
            (stop - begin) * mean
            for (begin, stop), mean in zip(itertools.pairwise(self._borders), self._means, strict=True)
        ]
        self._sums = [0.0, *itertools.accumulate(sizes)]

    @property
    def bytes(self) -> float:
        """Of all of it."""
        return self._sums[-1]

    def until(self, offset: int) -> float:
        """Bytes of the messages before `offset`."""
        part = max(0, min(bisect.bisect_right(self._borders, offset) - 1, len(self._means) - 1))
        return self._sums[part] + (offset - self._borders[part]) * self._means[part]

    def place(self, size: float) -> int:
        """The last offset before which there are at most `size` bytes."""
        return min(self.end, int(self._reached(size)))

    def marks(self, pieces: int) -> list[int]:
        """Where to cut into so many pieces of about equal bytes: `start`, the places between, `end`. Each piece has a
        message at least; `pieces` must not be more than there are messages."""
        marks = [self.start]
        for step in range(1, pieces):
            wanted = round(self._reached(self.bytes * step / pieces))
            marks.append(min(max(wanted, marks[-1] + 1), self.end - (pieces - step)))
        return [*marks, self.end]

    def _reached(self, size: float) -> float:
        part = min(bisect.bisect_right(self._sums, size) - 1, len(self._means) - 1)
        return self._borders[part] + (size - self._sums[part]) / self._means[part]
