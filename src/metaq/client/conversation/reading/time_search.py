"""Offset of a store time in a queue.

RocketMQ's SEARCH_OFFSET_BY_TIMESTAMP (29) returns the *nearest* message: it may be older than the time, any of those
stored in the same millisecond, and for a future time it is the newest message instead of the end. So this is a binary
search with some twenty pulls of single messages; within a queue, store times never decrease.
"""

from __future__ import annotations

from metaq.client.conversation.call import Conversation, asked
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset
from metaq.client.conversation.reading.pulling import Pull, PullStatus
from metaq.model import MessageQueue
from metaq.model.topics.system import TOOLS_GROUP
from metaq.wire.record import decode_record


def first_at_or_after(queue: MessageQueue, store_ms: int, group: str = TOOLS_GROUP) -> Conversation[int]:
    """Find the offset of the first message stored at `store_ms` (ms since the epoch, the broker's clock) or later.

    The maximum offset if there is none. Some twenty small pulls for `group`. Raises RemoteProtocolError: a damaged record.
    """
    low = yield from asked(GetMinOffset(queue))
    high = yield from asked(GetMaxOffset(queue))
    search = TimeSearch(low, high, store_ms)
    while (probe := search.probe) is not None:
        result = yield from asked(Pull(group=group, queue=queue, offset=probe, count=1))
        if result.status is PullStatus.FOUND and len(result.records):
            message = decode_record(result.records)
            search.stored(message.queue_offset, message.store_ms)
        else:
            search.gone(result.min_offset, result.next_offset)
    return search.low


def store_time_from(queue: MessageQueue, offset: int) -> Conversation[int | None]:
    """Find the store time (ms since the epoch) of the first message at `offset` or behind it; None if none can be read.

    No request returns the store time of an offset, so one message is pulled. For a deleted offset, the oldest message counts.
    Raises RemoteProtocolError: a damaged record.
    """
    # A second time for a deleted offset, whose answer names the first one that is kept.
    for _ in range(2):
        result = yield from asked(Pull(group=TOOLS_GROUP, queue=queue, offset=offset, count=1))
        if result.status is PullStatus.FOUND and len(result.records):
            return decode_record(result.records).store_ms
        if result.status is not PullStatus.OUT_OF_RANGE:
            return None
        offset = result.next_offset
    return None


class TimeSearch:
    """Binary search of the first message stored at a time or later.

    While `probe` is not None, read the message at that queue offset and call `stored`, or `gone` if there is none. Then
    `low` is the answer: the end of the queue if no message is that young.
    """

    def __init__(self, low: int, high: int, wanted_ms: int) -> None:
        """
        Args:
            low, high: the queue's min and max offset.
            wanted_ms: the time, ms since the epoch, broker's clock.
        """
        self.low, self.high, self._wanted_ms = low, high, wanted_ms
        self._behind_a_hole: int | None = None

    @property
    def probe(self) -> int | None:
        """Next queue offset to read; None: the search is over."""
        if self.low >= self.high:
            return None
        return self._middle if self._behind_a_hole is None else self._behind_a_hole

    def stored(self, offset: int, store_ms: int) -> None:
        """Note the store time of the message at `offset`, the first one at the probe or behind it."""
        if store_ms >= self._wanted_ms:
            self._all_before()
        else:
            self._all_behind(offset + 1)

    def gone(self, min_offset: int, next_offset: int) -> None:
        """Note that no message is at the probe. The queue begins at `min_offset` now; reading continues at `next_offset`."""
        if min_offset > self._middle:  # retention has deleted it, with everything before it
            self._all_behind(min_offset)
        elif (self.probe or 0) < next_offset < self.high:
            self._behind_a_hole = next_offset
        else:  # there is no message between the middle and the end
            self._all_before()

    @property
    def _middle(self) -> int:
        return (self.low + self.high) // 2

    def _all_before(self) -> None:
        self.high, self._behind_a_hole = self._middle, None

    def _all_behind(self, offset: int) -> None:
        self.low, self._behind_a_hole = offset, None
