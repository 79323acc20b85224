"""Where a group begins in a queue of which it has no progress.

"latest" is the queue's end for a group that begins with the topic. A queue that is made while the group runs, or that is there when
a group with progress in others of the topic comes back, begins at its first message: the end would lose what was sent before a member
noticed the queue. Whether a queue is that young a broker tells by RocketMQ's rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from metaq.client.consumer.membership.offset_store import Offsets
from metaq.client.consumer.options import GroupOptions
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset, GetPosition
from metaq.client.conversation.reading.time_search import first_at_or_after
from metaq.client.shared.core import ClientCore
from metaq.model import ConsumeFrom, MessageQueue
from metaq.model.topics.topic import RETRY_PREFIX


class Starting:
    """The start offsets of one member. Lives in the background loop."""

    def __init__(self, core: ClientCore, group: str, offsets: Offsets, options: GroupOptions) -> None:
        self._core, self._group, self._offsets, self._options = core, group, offsets, options
        self._there: dict[str, frozenset[MessageQueue]] = {}
        """Topic → queues that were there when it was first looked at, and have been since."""
        self._begun: dict[str, bool] = {}
        """Topic → whether the group had progress in it when this member came to its first queue without."""
        self._asking = asyncio.Lock()

    def seen(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Note the queues of a topic at a look; none: no name server knows it."""
        there = frozenset(queues)
        self._there[topic] = self._there.get(topic, there) & there

    def found(self, topics: Collection[str], *, new: bool) -> None:
        """Note topics that a pattern has found. `new`: they were not there at an earlier look."""
        if new:
            self._there.update((topic, frozenset()) for topic in topics)

    def forget(self, topics: Collection[str]) -> None:
        """Forget topics that are not subscribed to any more."""
        for topic in topics:
            self._there.pop(topic, None)
            self._begun.pop(topic, None)

    async def offset(self, queue: MessageQueue, *, shared: bool = True) -> int:
        """Return the offset at which the group goes on in a queue: the stored one, else by `consume_from`.

        `shared` False: the queue was named by the program, not by sharing out a topic. Raises one of FAULTS: the offset cannot be
        found out, so the queue must not be begun.
        """
        core, options = self._core, self._options
        stored = await self._offsets.load(queue)
        if stored is not None:
            return stored
        # A new group reads its retry topic from the beginning, as in RocketMQ: it has what failed before the first commit.
        if queue.topic.startswith(RETRY_PREFIX) or options.consume_from is ConsumeFrom.FIRST:
            return await core.ask_broker(queue.broker, GetMinOffset(queue))
        if options.consume_from is ConsumeFrom.TIMESTAMP:
            return await core.converse(queue.broker, first_at_or_after(queue, options.start_ms))
        if shared and await self._is_new(queue):
            young = await core.ask_broker(queue.broker, GetPosition(self._group, queue))
            if young is not None:
                return young
        return await core.ask_broker(queue.broker, GetMaxOffset(queue))

    async def _is_new(self, queue: MessageQueue) -> bool:
        """Return whether the group has begun without the queue."""
        there = self._there.get(queue.topic, frozenset())
        if queue not in there:
            return True
        async with self._asking:  # one question for all queues that are begun together
            if queue.topic not in self._begun:
                self._begun[queue.topic] = await self._offsets.begun(there)
        return self._begun[queue.topic]
