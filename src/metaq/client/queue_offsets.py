"""Asking brokers where queues begin and end, and where a moment lies."""

from __future__ import annotations

from metaq.client.core import ClientCore
from metaq.client.pulling import PullStatus, Wanted, pull
from metaq.errors import NoRoute
from metaq.model import MessageQueue, StoredMessage
from metaq.model.subscription import subscribe
from metaq.wire import headers
from metaq.wire.codes import RequestCode

READER_GROUP = "TOOLS_CONSUMER"
"""Every RocketMQ has this group from its start; pulls without a group of their own are counted there."""


def broker_address(core: ClientCore, queue: MessageQueue) -> str:
    """Where the queue's broker listens. Raises NoRoute."""
    address = core.address_of(queue.broker)
    if address is None:
        raise NoRoute(f"no broker named {queue.broker} is up")
    return address


async def min_offset(core: ClientCore, queue: MessageQueue) -> int:
    """The oldest offset kept. Raises BrokerError, NoRoute and what `Transport.call` raises."""
    return await _end(core, RequestCode.GET_MIN_OFFSET, queue)


async def max_offset(core: ClientCore, queue: MessageQueue) -> int:
    """One past the newest offset. Raises as `min_offset`."""
    return await _end(core, RequestCode.GET_MAX_OFFSET, queue)


async def _end(core: ClientCore, code: RequestCode, queue: MessageQueue) -> int:
    header = headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker)
    answer = await core.ask(broker_address(core, queue), code, header, f"find an end of {queue}")
    return headers.OffsetReplyHeader.from_ext(answer.ext).offset


async def first_at_or_after(core: ClientCore, queue: MessageQueue, store_ms: int) -> int:
    """The offset of the first message stored at `store_ms` (ms since the epoch) or later; the max offset if none is.

    A binary search over the messages themselves, some twenty small pulls: a broker's own search (29) gives the nearest
    message, which may be older, and any one of those stored in the same millisecond. Raises as `min_offset`.
    """
    low, high = await min_offset(core, queue), await max_offset(core, queue)
    wanted = Wanted(READER_GROUP, StoredMessage, 1, inline=True, hold=False)
    everything = subscribe(queue.topic)
    while low < high:
        middle = (low + high) // 2
        pulled = await pull(core, wanted, queue, middle, 1, everything)
        if pulled.status is PullStatus.FOUND and pulled.messages:
            message = pulled.messages[0]
            low, high = (low, middle) if message.store_ms >= store_ms else (message.queue_offset + 1, high)
        else:
            low = max(middle + 1, pulled.next_offset)  # Deleted while we searched.
    return low
