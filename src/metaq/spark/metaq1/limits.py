"""The most bytes of a micro-batch, in whole messages: only the messages themselves tell where the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from metaq.spark.metaq1.cluster import Offsets
from metaq.spark.metaq1.link import moved
from metaq.wire.metaq1.commands import Answer, Code, ResultLine
from metaq.wire.metaq1.frame import HEAD, HEAD_BYTES

WALK_BYTES: Final = 1 << 20
"""Most bytes of one `get`; the original's answers have no more."""

Get = Callable[[str, int, int], Answer]
"""Partition, offset, most bytes → the server's answer."""


def limited(start: Mapping[str, int], end: Offsets, most: int, get: Get, turn: int) -> Offsets:
    """Return `end` reduced to `most` bytes beyond `start`.

    Partitions get equal shares; what one leaves goes to those with more. One partition, another at each turn, gets one message at
    least, however large.

    Args:
        get: asks for messages: shares are walked, from head to head.
        turn: number of the batch.
    """
    waiting = {
        partition: stop - start[partition] for partition, stop in end.items() if stop > start.get(partition, stop)
    }
    if sum(waiting.values()) <= most:
        return end
    ordered = sorted(waiting)
    first = ordered[turn % len(ordered)]
    found, left = dict(end), most
    for number, partition in enumerate([first, *sorted(waiting.keys() - {first}, key=lambda one: (waiting[one], one))]):
        share, begin = left // (len(waiting) - number), start[partition]
        if share < waiting[partition]:
            found[partition] = boundary(partition, begin, begin + share, get, one=partition == first)
        left = max(0, left - (found[partition] - begin))
    return found


def boundary(partition: str, start: int, stop: int, get: Get, *, one: bool) -> int:
    """Return the last offset up to `stop` at which a message begins or the log ends; `start` begins one.

    Where the server moves `start` to its first message, what is gone does not count. Damage is left to whoever reads: then the
    offset is within the damaged message.

    Args: one: the first message counts even if it ends behind `stop`.
    """
    offset = start
    while stop - offset >= HEAD_BYTES or (one and offset == start):
        answer = get(partition, offset, min(max(stop - offset, HEAD_BYTES), WALK_BYTES))
        if isinstance(answer, ResultLine):
            if offset == start and answer.code == Code.MOVED and (kept := moved(answer, partition)) > start:
                start, stop, offset = kept, stop + kept - start, kept
                continue
            # Gone in this moment, or refused: reading it says so.
            return offset if offset > start else max(stop, start + 1)
        at, data = 0, answer.body
        while at + HEAD_BYTES <= len(data):
            size = HEAD.unpack_from(data, at)[0]
            if size < 0:
                return offset if offset > start else start + 1
            after = offset + HEAD_BYTES + size
            if after > stop:
                return after if one and offset == start else offset
            at, offset = at + HEAD_BYTES + size, after
        if not at and len(data) < HEAD_BYTES:
            return offset if offset > start else start + 1
    return offset
