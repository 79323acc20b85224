"""Finding a queue offset by time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from metaq.store.queues.consume_queue import ConsumeQueue


def offset_at(queue: ConsumeQueue, store_time: Callable[[int], int], timestamp_ms: int) -> int:
    """The queue offset of the message stored at `timestamp_ms`, or of the one stored closest to it.

    Args: store_time: LogOffset → milliseconds, -1 if no record is there.
    Returns: an exact hit (the first of several); else the closer neighbour, the older one of two equally close; for a
    time behind the newest message its offset (not max); 0 for an empty queue or an unreadable record.
    RocketMQ narrows the search by the files' modification times, which a copy of the folder loses; we search all.
    """
    low, high = queue.min_offset, queue.max_offset
    if low >= high:
        return 0

    def time_of(offset: int) -> int:
        units = queue.units(offset, 1)
        return store_time(units[0].log_offset) if units else -1

    right = low + bisect_left(range(low, high), timestamp_ms, key=time_of)
    if right == low:
        return right if time_of(right) >= 0 else 0
    left_ms = time_of(right - 1)
    if right == high:
        return right - 1 if left_ms >= 0 else 0
    right_ms = time_of(right)
    if left_ms < 0 or right_ms < 0:
        return 0
    return right - 1 if timestamp_ms - left_ms <= right_ms - timestamp_ms else right
