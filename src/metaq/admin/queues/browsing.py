"""Messages of a topic by their place: those of a queue from an offset on, one at an offset, and a topic's newest ones page by page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from metaq.admin.messages import FoundMessages, MessageNotFound, Wanted, find
from metaq.client.conversation.reading.newest import between
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset
from metaq.client.identity.names import checked
from metaq.client.shared.core import ClientCore
from metaq.errors import BadRequest, ConfigError, ConnectionFailed
from metaq.model import MessageQueue, StoredMessage, SysFlag
from metaq.model.message import BODY_AS_STORED, BODY_BYTES_MAX
from metaq.model.topics.topic import check_topic
from metaq.wire import compression

READ_MAX: Final = 500
"""Messages that one call reads at most."""
CROWD_MAX: Final = 5000
"""Messages of one millisecond of which a page may be in the middle."""
_PULL_SECONDS: Final = 5.0


class MessagePlace(Struct, frozen=True):
    """Where a message is: its queue, and its offset there. As text `BROKER:QUEUE:OFFSET`."""

    queue: MessageQueue
    offset: int

    def __str__(self) -> str:
        return f"{self.queue.broker}:{self.queue.queue_id}:{self.offset}"


def place_of(topic: str, text: str) -> MessagePlace:
    """Parse a place. Raises ConfigError."""
    broker, _, rest = text.rpartition(":")
    broker, _, queue = broker.rpartition(":")
    if not (broker and _is_number(queue) and _is_number(rest)):
        raise ConfigError(f"{text[:60]!r} is no place of a message: BROKER:QUEUE:OFFSET")
    return MessagePlace(MessageQueue(checked(check_topic, topic), broker, int(queue)), int(rest))


def queue_of(topic: str, text: str) -> MessageQueue:
    """Parse a queue, `BROKER:NUMBER`. Raises ConfigError."""
    broker, _, queue = text.rpartition(":")
    if not (broker and _is_number(queue)):
        raise ConfigError(f"{text[:60]!r} is no queue: BROKER:NUMBER")
    return MessageQueue(checked(check_topic, topic), broker, int(queue))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18


class QueuePage(Struct, frozen=True):
    """Messages of a queue that has offsets [low, high), in their order, bodies decompressed. Those that were deleted meanwhile are left out."""

    queue: MessageQueue
    start: int
    low: int
    high: int
    messages: tuple[StoredMessage, ...]


async def of_queue(core: ClientCore, queue: MessageQueue, start: int | None, count: int) -> QueuePage:
    """Return up to `count` messages of a queue, from an offset on. `start`: None: the newest.

    Raises NoRoute; ConfigError: the topic has no such queue; ConnectionFailed.
    """
    address = await _address(core, queue)
    low = await core.ask(address, GetMinOffset(queue))
    high = await core.ask(address, GetMaxOffset(queue))
    count = min(count, READ_MAX)
    begin = max(low, high - count if start is None else min(start, high))
    found = await core.converse_at(address, between(queue, begin, min(high, begin + count)), _PULL_SECONDS)
    return QueuePage(queue, begin, low, high, tuple(map(_opened, found)))


async def at(core: ClientCore, place: MessagePlace) -> StoredMessage:
    """Return the message at a place. Raises MessageNotFound, NoRoute, ConfigError, ConnectionFailed."""
    address = await _address(core, place.queue)
    found = await core.converse_at(address, between(place.queue, place.offset, place.offset + 1), _PULL_SECONDS)
    if found:
        return _opened(found[0])
    raise MessageNotFound(
        f"there is no message at offset {place.offset} of queue {place.queue.queue_id} of topic {place.queue.topic} at "
        f"{place.queue.broker}, or it is not there any more"
    )


def is_as_stored(message: StoredMessage) -> bool:
    """Return whether the body could not be decompressed, so that it is as it is stored."""
    return bool(message.sys_flag & BODY_AS_STORED)


def _opened(message: StoredMessage) -> StoredMessage:
    if message.sys_flag & int(SysFlag.COMPRESSED):
        try:
            message.body = compression.decompress(message.body, message.sys_flag, 4 * BODY_BYTES_MAX)
        except (BadRequest, ConfigError):
            message.sys_flag |= BODY_AS_STORED
    return message


async def _address(core: ClientCore, queue: MessageQueue) -> str:
    route = await core.routes.route(queue.topic, fresh=True)
    data = next((one for one in route.queues if one.broker == queue.broker), None)
    broker = route.broker(queue.broker)
    if data is None or broker is None or queue.queue_id >= max(data.read_queues, data.write_queues):
        known = ", ".join(f"{one.broker}:0-{max(one.read_queues, one.write_queues) - 1}" for one in route.queues)
        raise ConfigError(f"topic {queue.topic} has no queue {queue.broker}:{queue.queue_id}; it has {known}")
    if broker.any_address is None:
        raise ConnectionFailed(f"broker {queue.broker}, which has the queue, is away")
    return broker.any_address


class Cursor(Struct, frozen=True):
    """Where a list of a topic's messages, the newest first, goes on: behind `skip` of those stored at `before_ms`."""

    before_ms: int
    skip: int


class TopicPage(Struct, frozen=True):
    """Messages, the newest first. `following`: where older ones begin; None: there are none. `silent`: as of `FoundMessages`."""

    messages: tuple[StoredMessage, ...]
    following: Cursor | None
    silent: tuple[str, ...]


async def newest(core: ClientCore, wanted: Wanted, cursor: Cursor | None) -> TopicPage:
    """Return messages of a topic, or those with a key, the newest first, from a cursor on. Raises as `messages.find`.

    What is stored meanwhile moves nothing: a cursor names a time, and how many messages of that millisecond were shown.
    """
    skip = min(cursor.skip, CROWD_MAX) if cursor is not None else 0
    end_ms = cursor.before_ms + 1 if cursor is not None else wanted.end_ms
    found = await find(
        core,
        Wanted(
            topic=wanted.topic, key=wanted.key, start_ms=wanted.start_ms, end_ms=end_ms,
            limit=min(wanted.limit, READ_MAX) + skip,
        ),
    )  # fmt: skip
    return _page(found, min(wanted.limit, READ_MAX), cursor.before_ms if cursor is not None else None, skip)


def _page(found: FoundMessages, count: int, before_ms: int | None, skip: int) -> TopicPage:
    # Within a millisecond the order is that of brokers and logs, which stays.
    messages = list(reversed(found.messages))
    shown = sum(1 for one in messages[:skip] if one.store_ms == before_ms)
    rest = messages[shown:]
    page = rest[:count]
    if not page or not (found.more or len(rest) > count):
        return TopicPage(tuple(page), None, found.silent)
    last = page[-1].store_ms
    before = shown if last == before_ms else 0
    return TopicPage(tuple(page), Cursor(last, before + _of_millisecond(page, last)), found.silent)


def _of_millisecond(messages: Iterable[StoredMessage], store_ms: int) -> int:
    return sum(1 for one in messages if one.store_ms == store_ms)
