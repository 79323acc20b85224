"""Which partitions of a topic each consumer of a group has, as Java's classes decide it. Pure functions of sorted texts.

All consumers of a group compute it for themselves, so each must come to the same result, in Java and in Python.
"""

from __future__ import annotations

import bisect
import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from metaq.metaq1.config import CONSIST, DEFAULT, LoadBalanceStrategy

REPETITIONS: Final = 40
"""Texts of each consumer that are hashed; each gives four points on the ring."""
_WORDS: Final = struct.Struct("<4I")


def in_java_order(texts: Iterable[str]) -> list[str]:
    """Return texts sorted as Java sorts them: by UTF-16 units, which differs from Python's order beyond U+FFFF."""
    return sorted(texts, key=lambda text: text.encode("utf-16-be", "surrogatepass"))


def consecutive(_topic: str, me: str, consumers: Sequence[str], partitions: Sequence[str]) -> list[str]:
    """Return partitions that follow each other; the first consumers have one more if they do not divide evenly. `DEFAULT`."""
    if me not in consumers:
        return []
    index = consumers.index(me)
    each, extra = divmod(len(partitions), len(consumers))
    start = each * index + min(index, extra)
    return list(partitions[start : start + each + (index < extra)])


def consistent(_topic: str, me: str, consumers: Sequence[str], partitions: Sequence[str]) -> list[str]:
    """Return the partitions whose next point on a ring of hashes is of this consumer. `CONSIST`: few partitions move when
    consumers come and go, and shares differ in size."""
    ring: dict[int, str] = {}
    for consumer in consumers:
        for repetition in range(REPETITIONS):
            # Of two consumers with one point the later has it.
            ring |= dict.fromkeys(_words(f"{consumer}-{repetition}"), consumer)
    points = sorted(ring)
    if not points:
        return []

    def owner(partition: str) -> str:
        place = bisect.bisect_left(points, _words(partition)[0])
        return ring[points[place if place < len(points) else 0]]

    return [partition for partition in partitions if owner(partition) == me]


def strategy_of(chosen: str | LoadBalanceStrategy) -> LoadBalanceStrategy:
    """Return the strategy of `ConsumerConfig.load_balance_strategy_type`."""
    return chosen if callable(chosen) else _NAMED[chosen]


_NAMED: Final[dict[str, LoadBalanceStrategy]] = {DEFAULT: consecutive, CONSIST: consistent}


def _words(text: str) -> tuple[int, ...]:
    digest = hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
    return _WORDS.unpack(digest)
