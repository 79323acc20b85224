"""Asking brokers where queues begin and end, and where a moment lies."""

from __future__ import annotations

from metaq.client.conversation.time_search import TimeSearch
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

    Some twenty small pulls (`metaq.client.time_search`). Raises as `min_offset`.
    """
    search = TimeSearch(await min_offset(core, queue), await max_offset(core, queue), store_ms)
    wanted = Wanted(READER_GROUP, StoredMessage, 1, inline=True, hold=False)
    everything = subscribe(queue.topic)
    while (probe := search.probe) is not None:
        pulled = await pull(core, wanted, queue, probe, 1, everything)
        if pulled.status is PullStatus.FOUND and pulled.messages:
            search.stored(pulled.messages[0].queue_offset, pulled.messages[0].store_ms)
        else:
            search.gone(pulled.min_offset, pulled.next_offset)
    return search.low
