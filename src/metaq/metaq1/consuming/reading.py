"""Reads of a partition without a group: a single get, and a walk over a whole topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from metaq.client.identity.options import check_whole, checked_seconds
from metaq.errors import BadRequest, RemoteProtocolError
from metaq.metaq1.conversation import answers
from metaq.metaq1.model.message import check_topic_word
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.model.received import ReceivedMessage
from metaq.metaq1.shared.core import FactoryCore
from metaq.metaq1.shared.links import Link
from metaq.wire.metaq1.commands import GetLine
from metaq.wire.metaq1.frame import frames, split_attribute

GET_SECONDS: Final = 10.0
"""Time-out of a get, as in Java."""
BROWSER_GROUP: Final = "Just_for_Browser"
"""Name under which a browser reads, as in Java."""
BROWSER_BYTES: Final = 1 << 20
BROWSER_SECONDS: Final = 5.0


class MessageIterator:
    """The messages of one get, `metaq.metaq1.ReceivedMessage`: iterate once.

    `offset` counts the bytes of those that were taken, so that `asked offset + offset` is where the next get begins. Raises
    RemoteProtocolError: a frame is damaged.
    """

    def __init__(self, topic: str, partition: Partition, start: int, data: bytes) -> None:
        self.topic, self.partition, self.start = topic, partition, start
        """Of the get."""
        self.offset = 0
        self._frames = frames(data)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        at = self.start + self.offset
        try:
            frame = next(self._frames)
        except BadRequest as error:
            raise RemoteProtocolError(f"topic {self.topic}, partition {self.partition}, at {at}: {error}") from None
        attribute, data = split_attribute(frame.flag, frame.body)
        self.offset += frame.size
        text = None if attribute is None else attribute.decode("utf-8", "replace")
        return ReceivedMessage(self.topic, data, text, frame.message_id, frame.flag, self.partition, at, frame.size)


async def get(
    link: Link, topic: str, group: str, partition: Partition, offset: int, max_size: int, timeout: float
) -> answers.Fetched:
    """In the loop: one get at a server. Raises ConnectionFailed, RequestTimeout, BrokerError, RemoteProtocolError."""
    action = f"get messages of topic {topic}, partition {partition}"
    answer = await link.ask(
        lambda opaque: GetLine(topic, group, partition.partition, offset, max_size, opaque), action, timeout
    )
    return answers.fetched(answer, link.address, action)


async def fetch(
    core: FactoryCore, topic: str, group: str, partition: Partition, offset: int, max_size: int, timeout: float
) -> answers.Fetched:
    """In the loop: one get, at a server of a published topic. Raises NoRoute, and as `get`."""
    link = core.links.acquire(core.address_of(topic, partition))
    try:
        return await get(link, topic, group, partition, offset, max_size, timeout)
    finally:
        core.links.release(link)


async def read(
    core: FactoryCore, topic: str, group: str, partition: Partition, offset: int, max_size: int, timeout: float
) -> MessageIterator | None:
    """In the loop: one get of a topic that need not be published. None: there is nothing at this offset (now)."""
    await core.routes.publish(topic)
    try:
        found = await fetch(core, topic, group, partition, offset, max_size, timeout)
    finally:
        await core.routes.unpublish(topic)
    return MessageIterator(topic, partition, offset, found.data) if isinstance(found, answers.Found) else None


class Walk:
    """A walk over all partitions of a topic, from the first message that is there to where nothing more is. No I/O.

    Args:
        max_size: bytes of a get.
        bytes_max: of the largest, for a message that does not fit.
    """

    def __init__(self, topic: str, partitions: Sequence[Partition], max_size: int, bytes_max: int) -> None:
        self._topic, self._partitions = topic, deque(partitions)
        self._max_size = self._size = max_size
        self._bytes_max = bytes_max
        self._offset = 0
        self._block: MessageIterator | None = None

    def ask(self) -> tuple[Partition, int, int] | None:
        """Return what to get: partition, offset, bytes; None: the walk has ended. The last block was iterated over.

        Raises RemoteProtocolError: a message is larger than any get.
        """
        block, self._block = self._block, None
        if block is not None:
            if block.offset:
                self._offset += block.offset
            elif self._size >= self._bytes_max:
                raise RemoteProtocolError(
                    f"topic {self._topic}, partition {block.partition}: the message at {self._offset} does not fit into "
                    f"max_read_buffer={self._bytes_max}"
                )
            else:
                self._size = min(2 * self._size, self._bytes_max)
        return (self._partitions[0], self._offset, self._size) if self._partitions else None

    def got(self, found: answers.Fetched) -> MessageIterator | None:
        """Return the block to iterate over; None: ask on."""
        if isinstance(found, answers.Found):
            self._block = MessageIterator(self._topic, self._partitions[0], self._offset, found.data)
            return self._block
        if isinstance(found, answers.Moved) and found.offset > self._offset:
            self._offset = found.offset  # the first files were deleted
        else:
            self._partitions.popleft()
            self._offset, self._size = 0, self._max_size
        return None


class BrowserBase:
    """What the browsers for threads and for asyncio share. `max_size`: bytes of each get. `timeout`: seconds for each."""

    def __init__(self, core: FactoryCore, topic: str, max_size: int, timeout: float) -> None:
        check_topic_word(topic)
        check_whole("max_size", max_size)
        checked_seconds("timeout", timeout, least=0.001)
        self._core, self._topic, self._max_size, self._timeout = core, topic, max_size, timeout

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._topic

    async def _begin(self) -> Walk:
        await self._core.routes.publish(self._topic)
        try:
            partitions = await self._core.routes.partitions(self._topic)
        except BaseException:
            await self._core.routes.unpublish(self._topic)
            raise
        return Walk(self._topic, partitions, self._max_size, self._core.config.max_read_buffer)

    async def _next(self, walk: Walk) -> MessageIterator | None:
        """Return the next block; None: there is none."""
        while (asked := walk.ask()) is not None:
            partition, offset, size = asked
            found = await fetch(self._core, self._topic, BROWSER_GROUP, partition, offset, size, self._timeout)
            block = walk.got(found)
            if block is not None:
                return block
        return None

    async def _end_walk(self) -> None:
        await self._core.routes.unpublish(self._topic)
