"""Mergeable histograms: counts in buckets whose width grows with the value.

Up to 127 each value has a bucket of its own; above, each doubling is divided into 64 buckets of equal width (log-linear, as
HdrHistogram). The error of a percentile is below 1/64 for any values, and a million latencies take a few hundred bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from metaq.errors import StoreCorrupt

STEPS_BITS = 6
"""log2 of the buckets per doubling."""
VALUE_MAX = (1 << 40) - 1
"""Largest value: 35 years in milliseconds. Larger ones are counted as this."""
_EXACT = 2 << STEPS_BITS
_HEAD = struct.Struct("<QqQQI")
_INDEX, _COUNT = np.dtype("<u2"), np.dtype("<u8")


class Histogram:
    """Counts of whole numbers >= 0, such as latencies in ms; negative ones count as 0. Mutable, not thread-safe.

    `count` values were added, `total` is their sum, and `high` the largest; all are 0 without any.
    """

    __slots__ = ("_buckets", "count", "high", "low", "total")

    def __init__(self, values: Iterable[int] = ()) -> None:
        """Count these values."""
        self._buckets: dict[int, int] = {}
        self.count = self.total = self.high = 0
        self.low = VALUE_MAX
        """Smallest value; without any, the largest possible."""
        self.add(np.fromiter(values, np.int64))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.encode() == other.encode()

    __hash__ = None  # type: ignore[assignment]  # It changes.

    def __repr__(self) -> str:
        return f"Histogram({self.count} values, [{self.low}, {self.high}])" if self.count else "Histogram()"

    def add(self, values: Any) -> None:
        """Count an array of int64."""
        if not len(values):
            return
        # Latencies are negative where the producer's clock is ahead of the broker's.
        values = np.clip(values, 0, VALUE_MAX)
        for index, count in zip(
            *(part.tolist() for part in np.unique(_places(values), return_counts=True)), strict=True
        ):
            self._buckets[index] = self._buckets.get(index, 0) + count
        self.count += len(values)
        self.total += int(values.sum())
        self.low, self.high = min(self.low, int(values.min())), max(self.high, int(values.max()))

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        for index, count in other._buckets.items():
            self._buckets[index] = self._buckets.get(index, 0) + count
        self.count += other.count
        self.total += other.total
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    @property
    def mean(self) -> float | None:
        """Mean of the values; None: there are none."""
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> int | None:
        """Return the smallest value that at least `percent` of the values do not exceed, with an error below 1/64. None: empty.

        Args: percent: above 0, at most 100.
        """
        if not self.count:
            return None
        wanted, seen = math.ceil(self.count * percent / 100), 0
        for index in sorted(self._buckets):
            seen += self._buckets[index]
            if seen >= wanted:
                low, high = bounds(index)
                return min(max((low + high) // 2, self.low), self.high)
        return self.high

    def encode(self) -> bytes:
        """Serialise, canonically: count, low, total, high, buckets u32; indexes u16; counts u64."""
        places = sorted(self._buckets)
        head = _HEAD.pack(self.count, self.low, self.total, self.high, len(places))
        counts = np.array([self._buckets[index] for index in places], _COUNT)
        return head + np.array(places, _INDEX).tobytes() + counts.tobytes()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Deserialise. Raises StoreCorrupt: not a histogram's bytes."""
        found = cls()
        try:
            found.count, found.low, found.total, found.high, buckets = _HEAD.unpack_from(data)
            places = np.frombuffer(data, _INDEX, buckets, _HEAD.size)
            counts = np.frombuffer(data, _COUNT, buckets, _HEAD.size + places.nbytes)
        except (struct.error, ValueError) as fault:
            raise StoreCorrupt(f"{len(data)} bytes are no histogram: {fault}") from None
        found._buckets = dict(zip(places.tolist(), counts.tolist(), strict=True))
        return found


def bounds(index: int) -> tuple[int, int]:
    """Return the smallest and the largest value of a bucket."""
    if index < _EXACT:
        return index, index
    shift = (index >> STEPS_BITS) - 1
    first = index - (shift << STEPS_BITS)
    return first << shift, ((first + 1) << shift) - 1


def _places(values: Any) -> Any:
    """Return the bucket of each value of [0, VALUE_MAX]."""
    # frexp's exponent is the number of bits, exactly for integers below 2 ** 53.
    shift = np.maximum(np.frexp(values.astype(np.float64))[1].astype(np.int64) - (STEPS_BITS + 1), 0)
    return (shift << STEPS_BITS) + (values >> shift)
