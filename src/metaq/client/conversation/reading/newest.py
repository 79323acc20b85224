"""The newest messages of a queue that were stored in a range of times."""

from __future__ import annotations

from collections.abc import Callable

from metaq.client.conversation.call import Conversation, asked
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset
from metaq.client.conversation.reading.pulling import PLAIN_COUNT, Pull, PullStatus
from metaq.client.conversation.reading.time_search import first_at_or_after
from metaq.model import MessageQueue, StoredMessage
from metaq.model.topics.system import TOOLS_GROUP
from metaq.wire import hot


def newest_between(
    queue: MessageQueue,
    start_ms: int | None,
    end_ms: int | None,
    count: int,
    wanted: Callable[[StoredMessage], bool] = lambda _message: True,
) -> Conversation[list[StoredMessage]]:
    """Find the newest `count` messages stored at `start_ms` or later and before `end_ms`, of those `wanted`; oldest first.

    Times in ms since the epoch, the broker's clock; None: no bound. Bodies are as they are stored. Read backwards, in blocks.
    """
    if start_ms is None:
        low = yield from asked(GetMinOffset(queue))
    else:
        low = yield from first_at_or_after(queue, start_ms)
    if end_ms is None:
        high = yield from asked(GetMaxOffset(queue))
    else:
        high = yield from first_at_or_after(queue, end_ms)
    found: list[StoredMessage] = []
    while low < high and len(found) < count:
        begin = max(low, high - max(count, PLAIN_COUNT))
        block = yield from between(queue, begin, high)
        found = [*filter(wanted, block), *found]
        high = begin
    return found[max(0, len(found) - count) :]


def between(queue: MessageQueue, start: int, stop: int) -> Conversation[list[StoredMessage]]:
    """Read the messages of a queue with offsets in [start, stop), bodies as they are stored. Those that are gone are left out."""
    found: list[StoredMessage] = []
    while start < stop:
        result = yield from asked(
            Pull(group=TOOLS_GROUP, queue=queue, offset=start, count=min(stop - start, PLAIN_COUNT))
        )
        if result.status is PullStatus.FOUND:
            records = result.records
            some = hot.decode_records(
                records, 0, len(records), StoredMessage, queue.broker, result.min_offset, result.max_offset
            )
            found += [one for one in some if one.queue_offset < stop]
        if result.next_offset <= start:  # nothing is behind it, or a broker that does not go on
            break
        start = result.next_offset
    return found
