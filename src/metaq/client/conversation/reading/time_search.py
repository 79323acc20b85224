"""Where in a queue a moment lies.

A broker's own search (GET_OFFSET_BY_TIMESTAMP) gives the *nearest* message: it may be older than the moment, any of those
stored in the same millisecond, and for a moment in the future it is the newest message instead of the end. So the
messages themselves are asked, some twenty of them: within a queue their store times never go back.
"""

from __future__ import annotations

from metaq.client.conversation.call import Conversation, asked
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset
from metaq.client.conversation.reading.pulling import Pull, PullStatus
from metaq.model import MessageQueue
from metaq.model.topics.system import TOOLS_GROUP
from metaq.wire.record import decode_record


def first_at_or_after(queue: MessageQueue, store_ms: int, group: str = TOOLS_GROUP) -> Conversation[int]:
    """The offset of the first message stored at `store_ms` (ms since the epoch, the broker's clock) or later.

    The max offset if none is. Some twenty small pulls for `group`. Raises RemoteProtocolError: a record is broken.
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
    """Store time (ms since the epoch) of the first message kept at `offset` or behind it; None if none can be read.

    No request tells the store time of an offset, so one message is pulled. An offset that retention has passed is
    answered with the first that is kept. Raises RemoteProtocolError: the record is broken.
    """
    for _ in range(2):
        result = yield from asked(Pull(group=TOOLS_GROUP, queue=queue, offset=offset, count=1))
        if result.status is PullStatus.FOUND and len(result.records):
            return decode_record(result.records).store_ms
        if result.status is not PullStatus.OUT_OF_RANGE:
            return None
        offset = result.next_offset
    return None


class TimeSearch:
    """Finds the first message of a queue stored at a moment or later.

    While `probe` is not None, read the message at that queue offset and call `stored`, or `gone` if there is none. Then
    `low` is the answer: the end of the queue if no message is that young.
    """

    def __init__(self, low: int, high: int, wanted_ms: int) -> None:
        """Args: low, high: the queue's min and max offset. wanted_ms: the moment, ms since the epoch, broker's clock."""
        self.low, self.high, self._wanted_ms = low, high, wanted_ms
        self._behind_a_hole: int | None = None

    @property
    def probe(self) -> int | None:
        """The queue offset to look at next; None when the search is over."""
        if self.low >= self.high:
            return None
        return self._middle if self._behind_a_hole is None else self._behind_a_hole

    def stored(self, offset: int, store_ms: int) -> None:
        """The message at `offset`, the first that is kept at the probe or behind it, was stored at `store_ms`."""
        if store_ms >= self._wanted_ms:
            self._all_before()
        else:
            self._all_behind(offset + 1)

    def gone(self, min_offset: int, next_offset: int) -> None:
        """Nothing is kept at the probe. The queue begins at `min_offset` now, and reading goes on at `next_offset`."""
        if min_offset > self._middle:  # It left the log, and with it all before.
            self._all_behind(min_offset)
        elif (self.probe or 0) < next_offset < self.high:
            self._behind_a_hole = next_offset
        else:  # No message from the middle to the end.
            self._all_before()

    @property
    def _middle(self) -> int:
        return (self.low + self.high) // 2

    def _all_before(self) -> None:
        self.high, self._behind_a_hole = self._middle, None

    def _all_behind(self, offset: int) -> None:
        self.low, self._behind_a_hole = offset, None
