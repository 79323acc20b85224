"""Messages: found by id, key or time, and the units of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from metaq.address import join_address
from metaq.client.conversation.call import FAULTS, Conversation
from metaq.client.conversation.reading.key_search import FULL, KeySearch, search_key
from metaq.client.conversation.reading.lookups import END_OF_TIME_MS, ViewMessage, opened
from metaq.client.conversation.reading.newest import newest_between
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset
from metaq.client.conversation.reading.units import GetUnits
from metaq.client.identity.names import checked
from metaq.client.shared.core import ClientCore
from metaq.errors import BadRequest, BrokerError, ConfigError, NotFound, RemoteProtocolError
from metaq.model import BrokerData, MessageQueue, StoredMessage
from metaq.model.inspection import QueueUnits
from metaq.model.topics.topic import check_topic
from metaq.wire.record import parse_offset_id

T = TypeVar("T")

FOUND_MAX: Final = FULL
"""Messages that a search returns if it is not told how many."""
KEY_CHARS_MAX: Final = 255
_AT_ONCE: Final = 32
"""Conversations under way at a time."""
_PULL_SECONDS: Final = 5.0
"""Timeout of one request of a search by time, which may read from the disk."""


class MessageNotFound(NotFound):
    """No broker has the message, or none that has it can be asked."""


class FoundMessages(Struct, frozen=True):
    """Messages in the order in which they were stored, bodies decompressed.

    `more`: there are older ones beside them. `silent`: brokers that could not be asked, so that messages may be missing.
    """

    messages: tuple[StoredMessage, ...]
    """What was found; empty: nothing."""
    more: bool = False
    silent: tuple[str, ...] = ()


class Wanted(Struct, frozen=True, kw_only=True):
    """What is looked for: a message id, or messages with a key, or all, stored in [start_ms, end_ms)."""

    topic: str | None = None
    message_id: str | None = None
    key: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    limit: int = FOUND_MAX

    def check(self) -> None:
        """Raises ConfigError."""
        if self.topic is not None:
            checked(check_topic, self.topic)
        elif self.message_id is None:
            raise ConfigError("name the topic: only an id that a broker gave says where its message is")
        if self.message_id is not None and (self.key, self.start_ms, self.end_ms) != (None, None, None):
            raise ConfigError("an id is of one message: leave key and times out")
        for what, text in (("message id", self.message_id), ("key", self.key)):
            if text is not None and (not text or len(text) > KEY_CHARS_MAX or text.split() != [text]):
                raise ConfigError(
                    f"{text[:60]!r} is no {what}: it has 1 to {KEY_CHARS_MAX} characters, none of them a blank"
                )
        if self.limit < 1:
            raise ConfigError(f"limit={self.limit}: at least one message")


async def find(core: ClientCore, wanted: Wanted) -> FoundMessages:
    """Find messages. Raises ConfigError, NoRoute; the first broker's error if none answers."""
    wanted.check()
    if wanted.message_id is not None:
        placed = await _at_its_place(core, wanted.message_id)
        if placed is not None and wanted.topic in {None, placed.topic}:
            return FoundMessages((placed,))
        if wanted.topic is None:
            raise MessageNotFound(
                f"no broker has a message with the offset id {wanted.message_id}. If this is the message id that the producer gave, "
                "name the topic as well"
            )
    topic = wanted.topic or ""
    route = await core.routes.route(topic, fresh=True)
    key = wanted.message_id or wanted.key
    queues = {data.broker: [MessageQueue(topic, data.broker, number) for number in range(data.read_queues)] for data in route.queues}  # fmt: skip
    if key is None:
        return await _newest(core, route.brokers, queues, wanted)
    search = KeySearch(
        topic=topic, key=key, unique=wanted.message_id is not None, start_ms=wanted.start_ms or 0,
        end_ms=END_OF_TIME_MS if wanted.end_ms is None else wanted.end_ms, limit=wanted.limit,
    )  # fmt: skip
    asked = [(data, search_key(search, data.broker, queues.get(data.broker, []))) for data in route.brokers]
    hits, silent = await _at_brokers(core, asked)
    if wanted.message_id is not None and not any(one.messages for one in hits):
        placed = await _behind_other_addresses(core, wanted.message_id, topic)
        if placed is not None:
            return FoundMessages((placed,))
    return _joined([one.messages for one in hits], wanted.limit, silent, more=any(one.more for one in hits))


async def get(core: ClientCore, message_id: str, topic: str | None) -> StoredMessage:
    """Return one message. A producer that was not answered sends again: of several with its id the oldest is returned.

    Raises MessageNotFound, ConfigError, NoRoute.
    """
    found = await find(core, Wanted(topic=topic, message_id=message_id))
    if not found.messages:
        asked = f"; these brokers could not be asked: {', '.join(found.silent)}" if found.silent else ""
        raise MessageNotFound(f"no message of topic {topic} has the id {message_id}{asked}")
    return found.messages[0]


async def units(
    core: ClientCore, topic: str, queue_id: int, *, broker: str | None, start: int | None, count: int, group: str | None
) -> tuple[MessageQueue, int, QueueUnits]:
    """Return the queue, the offset of the first unit, and up to `count` units of it.

    Args: start: offset, below 0: so many before the end; None: the first. One that is not there any more is the first.
    Raises: ConfigError: the topic has no such queue, or several brokers have one.
    """
    route = await core.routes.route(checked(check_topic, topic), fresh=True)
    have = [
        data.broker
        for data in route.queues
        if queue_id in range(max(data.read_queues, data.write_queues)) and broker in {None, data.broker}
    ]
    if len(have) != 1:
        known = ", ".join(f"{data.broker}:0-{max(data.read_queues, data.write_queues) - 1}" for data in route.queues)
        why = (
            "several brokers have" if have else "no broker has" if broker is None else f"broker {broker} does not have"
        )
        wanted = f": name the broker, too, such as {have[0]}:{queue_id}" if have else ""
        raise ConfigError(f"{why} a queue {queue_id} of topic {topic}; the topic has {known}{wanted}")
    queue = MessageQueue(topic, have[0], queue_id)
    low, high = (
        await core.ask_broker(queue.broker, GetMinOffset(queue)),
        await core.ask_broker(queue.broker, GetMaxOffset(queue)),
    )
    first = low if start is None else high + start if start < 0 else start
    first = max(low, first)
    if first >= high:  # RocketMQ refuses it without a reason
        return queue, first, QueueUnits(low, high, (), group)
    return queue, first, await core.ask_broker(queue.broker, GetUnits(queue, first, count, group))


async def _at_its_place(core: ClientCore, message_id: str) -> StoredMessage | None:
    """Return the message that begins where an id of a broker says; None: it is no such id, or it is not there.

    Only brokers of this cluster are asked: the id of a producer has the same form, and another machine in it.
    """
    try:
        host, port, log_offset = parse_offset_id(message_id)
    except BadRequest:
        return None
    address = join_address(host, port)
    for data in (await core.consult(core.name_servers.cluster())).brokers.values():
        if address in data.addresses.values():
            return await _at(core, address, data.broker, log_offset, message_id)
    return None


async def _behind_other_addresses(core: ClientCore, message_id: str, topic: str) -> StoredMessage | None:
    """As `_at_its_place`, of a broker of ours that is registered under another address than its messages have, as behind NAT."""
    try:
        _, _, log_offset = parse_offset_id(message_id)
    except BadRequest:
        return None
    await core.learn_levels(topic)
    for data in (await core.routes.route(topic)).brokers:
        # Not a RocketMQ: it takes what is at any offset for a size, and answers with so many bytes.
        if data.master is not None and core.is_ours(data.broker):
            found = await _at(core, data.master, data.broker, log_offset, message_id)
            if found is not None and found.topic == topic:
                return found
    return None


async def _at(core: ClientCore, address: str, broker: str, log_offset: int, message_id: str) -> StoredMessage | None:
    try:
        found = await core.ask(address, ViewMessage(log_offset, broker))
    except (BrokerError, BadRequest, RemoteProtocolError):  # none begins there, whatever RocketMQ takes for one
        return None
    return found if found.offset_id == message_id.upper() else None


async def _newest(
    core: ClientCore, brokers: Sequence[BrokerData], queues: dict[str, list[MessageQueue]], wanted: Wanted
) -> FoundMessages:
    asked = [
        (data, newest_between(queue, wanted.start_ms, wanted.end_ms, wanted.limit + 1))
        for data in brokers
        for queue in queues.get(data.broker, ())
    ]
    found, silent = await _at_brokers(core, asked)
    return _joined(found, wanted.limit, silent)


def _joined(
    parts: Iterable[Iterable[StoredMessage]], limit: int, silent: Sequence[str], *, more: bool = False
) -> FoundMessages:
    messages = sorted(
        (one for part in parts for one in part), key=lambda one: (one.store_ms, one.broker, one.log_offset)
    )
    more = more or len(messages) > limit
    return FoundMessages(tuple(opened(messages[-limit:])), more, tuple(sorted(set(silent))))


async def _at_brokers(
    core: ClientCore, conversations: Iterable[tuple[BrokerData, Conversation[T]]]
) -> tuple[list[T], list[str]]:
    """Run conversations, with masters where they are up. Return outcomes, and the brokers that did not answer all of theirs.

    Raises the first error if none answered.
    """
    asked = list(conversations)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(data: BrokerData, conversation: Conversation[T]) -> T:
        async with turns:
            return await core.converse_at(data.any_address or "", conversation, _PULL_SECONDS)

    return await answered([(data.broker, one(data, conversation)) for data, conversation in asked])


async def answered(asked: Sequence[tuple[str, Awaitable[T]]]) -> tuple[list[T], list[str]]:
    """Wait for what brokers are asked (name, outcome). Return the outcomes, and the names of those that failed.

    Raises the first error if all failed.
    """
    outcomes = await asyncio.gather(*(work for _, work in asked), return_exceptions=True)
    found: list[T] = []
    failed: dict[str, BaseException] = {}
    for (broker, _), outcome in zip(asked, outcomes, strict=True):
        if not isinstance(outcome, BaseException):
            found.append(outcome)
        elif isinstance(outcome, FAULTS):
            failed.setdefault(broker, outcome)
        else:
            raise outcome
    if failed and not found:
        raise next(iter(failed.values()))
    return found, list(failed)
