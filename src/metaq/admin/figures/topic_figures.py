"""A topic in figures: per queue its bounds, bytes, last message, and who reads it."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from metaq.admin import topics
from metaq.admin.figures.sizes import MessagesSize, size_of, total
from metaq.client.shared.core import ClientCore
from metaq.model import MessageQueue, Perm, QueueStats


class QueueFigures(Struct, frozen=True):
    """One queue [begin, end). `last_ms`: store time of its newest message, 0 without one. `size`: None: the broker does not tell.

    `readable`: consumers get it: the topic may be read there, and has so many read queues.
    """

    queue: MessageQueue
    """The queue."""
    begin: int
    """QueueOffset of the first message that it keeps."""
    end: int
    """QueueOffset behind its last message."""
    last_ms: int
    size: MessagesSize | None
    readable: bool

    @property
    def messages(self) -> int:
        """Number of messages between `begin` and `end`."""
        return max(0, self.end - self.begin)


class TopicFigures(Struct, frozen=True):
    """A topic at `now_ms`. `readers`: groups with members that subscribe to it; `stopped`: those that only have progress in it."""

    topic: str
    """Name of the topic."""
    now_ms: int
    queues: tuple[QueueFigures, ...]
    """Its queues at all brokers."""
    readers: tuple[str, ...]
    stopped: tuple[str, ...]

    @property
    def messages(self) -> int:
        """Number of messages in all queues."""
        return sum(queue.messages for queue in self.queues)

    @property
    def size(self) -> MessagesSize | None:
        """Bytes of all queues together; None: a broker does not tell."""
        return total(queue.size for queue in self.queues)

    def unread(self, queue: QueueFigures) -> bool:
        """Whether no group reads a queue. Readers without a group are known to no broker."""
        return not self.readers or not queue.readable


async def figures_of(core: ClientCore, name: str) -> TopicFigures:
    """Return the figures of a topic. Raises TopicNotFound."""
    details = await topics.describe(core, name)
    holders = {data.broker for data in details.route.queues}
    addresses = {
        data.broker: address
        for data in details.route.brokers
        if data.broker in holders and (address := data.any_address) is not None
    }
    readable = {data.broker: data.read_queues if data.perm & Perm.READ else 0 for data in details.route.queues}

    async def one(queue: MessageQueue, stats: QueueStats) -> QueueFigures:
        size = await size_of(core, addresses[queue.broker], queue, stats.min_offset, stats.max_offset)
        can = queue.queue_id < readable.get(queue.broker, 0)
        return QueueFigures(queue, stats.min_offset, stats.max_offset, stats.last_ms, size, can)

    queues = await asyncio.gather(*(one(queue, stats) for queue, stats in details.queues.items()))
    readers, stopped = await topics.readers(core, name, addresses.values())
    return TopicFigures(name, core.clock.now_ms(), tuple(queues), tuple(readers), tuple(stopped))
