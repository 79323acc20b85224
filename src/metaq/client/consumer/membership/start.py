"""Where a member begins in a queue: at the progress that is kept, else where the group was told to start."""

from __future__ import annotations

from metaq.client.consumer.membership.offset_store import Offsets
from metaq.client.consumer.options import GroupOptions
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset
from metaq.client.conversation.reading.time_search import first_at_or_after
from metaq.client.shared.core import ClientCore
from metaq.model import ConsumeFrom, MessageQueue
from metaq.model.topics.topic import RETRY_PREFIX


async def start_offset(core: ClientCore, offsets: Offsets, queue: MessageQueue, options: GroupOptions) -> int:
    """The next offset to be consumed. Raises one of FAULTS: it cannot be found out, so do not begin."""
    stored = await offsets.load(queue)
    if stored is not None:
        return stored
    if queue.topic.startswith(RETRY_PREFIX) or options.consume_from is ConsumeFrom.FIRST:
        return await core.ask_broker(queue.broker, GetMinOffset(queue))
    if options.consume_from is ConsumeFrom.TIMESTAMP:
        return await core.converse(queue.broker, first_at_or_after(queue, options.start_ms))
    return await core.ask_broker(queue.broker, GetMaxOffset(queue))
