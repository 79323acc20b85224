"""Bounded sets of labels: the busiest keys by name, and the others in one sum.

Ten thousand topics would be ten thousand series of each counter, which is what brings a Prometheus down. So a counter is
told for the `most` keys that have grown the most lately, and for all others together as `OTHERS`. Both only ever grow: the
sum counts what its keys have grown while they were in it, whoever is named before or after.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

OTHERS: Final = "(others)"
"""Label of the sum. No topic or group can have this name."""
DECAY: Final = 0.8
"""What a key's activity keeps from one look to the next: the last five looks count, so that one burst does not change the names."""
PIECE: Final = 250
"""Keys that are looked at in a piece of work."""
STAY: Final = 1.5
"""How much more active another key must be than a named one to take its place."""


def _grown(before: int, now: int) -> int:
    """Return how much a counter has grown; one that has gone back has begun anew: its topic was deleted, and made again."""
    return now - before if now >= before else now


class Top(Generic[K]):
    """Chooses the keys of one counter, or of several that have the same keys.

    Args: most: keys that are named; 0: all.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.named: set[K] = set()
        self._activity: dict[K, float] = {}
        self._seen: dict[K, int] = {}

    def look(self, counts: Iterable[tuple[K, int]]) -> Iterator[None]:
        """Choose again, by how much each key's count has grown since the last look; yields between pieces of work."""
        activity, seen = dict[K, float](), dict[K, int]()
        for number, (key, count) in enumerate(counts, 1):
            activity[key] = self._activity.get(key, 0.0) * DECAY + _grown(self._seen.get(key, 0), count)
            seen[key] = count
            if not number % PIECE:
                yield
        self._activity, self._seen = activity, seen
        if not self.most or len(activity) <= self.most:
            self.named = set(activity)
            return
        # A heap, in pieces: sorting ten thousand keys would hold the loop for 5 ms.
        largest = list[tuple[float, K]]()
        for number, (key, value) in enumerate(activity.items(), 1):
            weight = value * STAY if key in self.named else value
            if len(largest) < self.most:
                heapq.heappush(largest, (weight, key))
            elif weight > largest[0][0]:
                heapq.heapreplace(largest, (weight, key))
            if not number % PIECE:
                yield
        self.named = {key for _, key in largest}


class Others(Generic[K]):
    """The sum of the keys that are not named, of one counter."""

    def __init__(self) -> None:
        self.total = 0
        self._seen: dict[K, int] = {}

    def split(self, counts: Iterable[tuple[K, int]], named: set[K]) -> Iterator[tuple[K, int] | None]:
        """Yield the named keys with their counts, and None between pieces of work; then `total` is the sum of the others."""
        seen = dict[K, int]()
        for number, (key, count) in enumerate(counts, 1):
            if key in named:
                yield key, count
            else:
                self.total += _grown(self._seen.get(key, 0), count)
            seen[key] = count
            if not number % PIECE:
                yield None
        self._seen = seen
