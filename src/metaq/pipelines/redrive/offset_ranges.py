"""Sets of a topic's messages: queue offsets per queue, as sorted half-open ranges that neither touch nor overlap."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator, Mapping

Range = tuple[int, int]
"""[start, end)."""
Place = tuple[str, int]
"""Broker and queue id; the topic is known."""
Ranges = dict[Place, list[Range]]


def ranges_of(offsets: Iterable[int]) -> list[Range]:
    """Return the ranges of exactly these offsets, which are sorted and distinct."""
    found: list[Range] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


def joined(one: Iterable[Range], other: Iterable[Range]) -> list[Range]:
    """Return the union."""
    found: list[Range] = []
    for start, end in heapq.merge(one, other):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def together(one: Mapping[Place, list[Range]], other: Mapping[Place, list[Range]]) -> Ranges:
    """Return the union, queue by queue."""
    return {place: joined(one.get(place, ()), other.get(place, ())) for place in {**one, **other}}


def count(ranges: Mapping[Place, list[Range]]) -> int:
    """Return the number of messages."""
    return sum(end - start for some in ranges.values() for start, end in some)


def within(ranges: list[Range], start: int, end: int) -> list[Range]:
    """Return the intersection with [start, end)."""
    first = bisect.bisect_right(ranges, start, key=lambda one: one[1])
    found = []
    for begin, stop in ranges[first:]:
        if begin >= end:
            break
        found.append((max(begin, start), min(stop, end)))
    return found


def first_gap(ranges: list[Range], start: int) -> int:
    """Return the first offset from `start` on that is in no range."""
    found = within(ranges, start, start + 1)
    if not found:
        return start
    return ranges[bisect.bisect_right(ranges, start, key=lambda one: one[1])][1]


def pieces(ranges: Iterable[Range], most: int) -> Iterator[Range]:
    """Yield the same offsets in ranges of at most `most`."""
    for start, end in ranges:
        for begin in range(start, end, most):
            yield begin, min(begin + most, end)
