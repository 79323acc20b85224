"""What a reader finds in an archive, and where it goes on at the brokers (docs/archive.md).

A queue is read from the archive as far as that goes, in threads: nothing here waits for a disk in the loop. Where the archive
ends the broker begins, at the very next offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from metaq.client.consumer.read_message import ReadMessage
from metaq.client.identity.names import Namespace
from metaq.client.shared.pulling import made_plain
from metaq.client.shared.together import in_thread
from metaq.errors import ConfigError, MessagesLost, MetaqError, OffsetOutOfRange, StoreFailed
from metaq.model import MessageQueue, SubscriptionData
from metaq.model.filters.sql import SQL92, compile_sql
from metaq.model.message import BODY_AS_STORED
from metaq.wire import hot

if TYPE_CHECKING:
    from metaq.archive.replay import ArchivedTopic

Found = TypeVar("Found")

QUEUES_AT_ONCE = 16
"""Queues whose archived files are open at a time: each holds a few MB."""
CALL_SECONDS = 120.0
"""Seconds for a call: a look at an archive reads all of its manifests."""


class Replayed(Struct, frozen=True):
    """Some messages of a queue, and the offset behind all that was looked at."""

    messages: list[ReadMessage]
    next_offset: int


class Replay:
    """The archive of a reader's topic. Lives in the background loop."""

    def __init__(self, archive: str | Path, namespace: Namespace, topic: str, subscription: SubscriptionData) -> None:
        """Raises ConfigError: there is no archive, pyarrow is missing, or only a broker can tell what is wanted."""
        self.matches = _matcher(subscription)
        self.namespace = namespace
        self.archived = _archived(archive, namespace.wrapped(topic))
        self.slots = asyncio.Semaphore(QUEUES_AT_ONCE)
        self._ends: dict[MessageQueue, int] = {}

    async def look(self) -> None:
        """See how far the archive has come. Raises ConfigError: it has nothing of the topic. StoreError."""
        seen = await self._ask(self.archived.renew)
        self._ends = {self.namespace.plain_queue(queue): end for queue, end in seen.end.items()}

    @property
    def queues(self) -> set[MessageQueue]:
        return set(self._ends)

    def end(self, queue: MessageQueue) -> int:
        """The archive's end in a queue at the last look; 0: it does not know the queue."""
        return self._ends.get(queue, 0)

    async def begin(self, queue: MessageQueue) -> int | None:
        """The first offset of a queue in the archive; None: it has nothing of it. Raises StoreError."""
        return await self._ask(lambda: self.archived.begin(self.inside(queue)))

    async def at_time(self, queue: MessageQueue, ms: int) -> int | None:
        """The first archived message that was stored then or later; None: there is none. Raises StoreError."""
        return await self._ask(lambda: self.archived.at_time(self.inside(queue), ms))

    async def covers(self, queue: MessageQueue, offset: int) -> bool:
        """Whether it is the archive that is read from an offset on. Raises StoreError."""
        begin = await self.begin(queue)
        return begin is not None and begin <= offset < self.end(queue)

    async def earliest(self, queue: MessageQueue, kept: int | None) -> int:
        """Where a queue begins that its broker, if it has one, keeps from `kept` on. Raises StoreError."""
        begin = await self.begin(queue)
        known = [one for one in (begin, kept) if one is not None]
        return min(known, default=self.end(queue))

    async def fault_at(self, queue: MessageQueue, offset: int, kept: range) -> MetaqError:
        """The error of an offset that neither the broker, which keeps `kept`, nor the archive has."""
        end, begin = self.end(queue), await self.begin(queue)
        if not end or not end <= offset < kept.start:
            return OffsetOutOfRange(
                queue, offset, range(kept.start if begin is None else min(begin, kept.start), kept.stop)
            )
        return MessagesLost(
            queue,
            range(offset, kept.start),
            f"The archive {self.archived.folder.path} ends at {end}, and the broker keeps only what comes from {kept.start} on: "
            f"seek(queue, offset={kept.start}) goes on behind them.",
        )

    def foreign(self, queue: MessageQueue, kept: range) -> MetaqError | None:
        """The error of a broker's queue that ends before the archive does; None: it does not."""
        if self.end(queue) <= kept.stop:
            return None
        return OffsetOutOfRange(
            queue,
            self.end(queue),
            kept,
            f"That is how far the archive {self.archived.folder.path} has come: the topic was made anew since, or the broker has "
            "lost its newest messages. Leave archive= away, or give the archive of this topic.",
        )

    def open(self, queue: MessageQueue, offset: int, kept: range) -> ReplayedQueue:
        """Begin to read. `kept`: the bounds of the queue, for its messages."""
        return ReplayedQueue(self, queue, offset, kept)

    def inside(self, queue: MessageQueue) -> MessageQueue:
        """The queue as the archive knows it."""
        return self.namespace.wrapped_queue(queue)

    async def _ask(self, function: Callable[[], Found]) -> Found:
        try:
            return await in_thread(function)
        except OSError as fault:
            raise self.fault(fault) from fault

    def fault(self, fault: Exception) -> MetaqError:
        """The error for something unforeseen."""
        return StoreFailed(f"the archive {self.archived.folder.path} cannot be read: {fault}")


class ReplayedQueue:
    """One queue, under way through the archive."""

    def __init__(self, replay: Replay, queue: MessageQueue, offset: int, kept: range) -> None:
        self._replay, self._queue, self._kept = replay, queue, kept
        self._cursor = replay.archived.cursor(replay.inside(queue), offset)
        self._has_slot = False

    async def read(self) -> Replayed | None:
        """The next messages; None: the archive goes no further than to what was read. Raises MetaqError."""
        # Taken with the first read and kept until `close`: its files are open so long.
        if not self._has_slot:
            await self._replay.slots.acquire()
            self._has_slot = True
        try:
            return await in_thread(self._next)
        except MetaqError:
            raise
        except Exception as fault:  # Whatever it is: a queue that only stops would look like one without messages.
            raise self._replay.fault(fault) from fault

    def _next(self) -> Replayed | None:
        from metaq.archive.rows import messages_of

        before = self._cursor.offset
        batch = self._cursor.next()
        if batch is None:
            # Offsets behind the last message may be absent for good; the reader goes on behind them at the broker.
            return Replayed([], self._cursor.offset) if self._cursor.offset > before else None
        kept = self._kept
        messages = messages_of(batch, ReadMessage, self._replay.inside(self._queue).topic, kept.start, kept.stop)
        wanted = [message for message in messages if self._replay.matches(message)]
        for message in wanted:
            if message.sys_flag & BODY_AS_STORED:
                message.sys_flag &= ~BODY_AS_STORED
                message._fault = "it could not be decompressed when it was archived"  # noqa: SLF001  a slot for readers
        made_plain(wanted, self._queue, self._replay.namespace)
        return Replayed(wanted, self._cursor.offset)

    def close(self) -> None:
        """Close the files. No read may be under way."""
        self._cursor.close()
        if self._has_slot:
            self._has_slot = False
            self._replay.slots.release()


def _archived(archive: str | Path, topic: str) -> ArchivedTopic:
    try:
        from metaq.archive.replay import ArchivedTopic
    except ImportError as error:
        raise ConfigError(f"archive= needs pyarrow: pip install 'pymetaq[arrow]' ({error})") from None
    return ArchivedTopic(archive, topic)


def _matcher(subscription: SubscriptionData) -> Callable[[ReadMessage], bool]:
    """The filter on messages that a broker would apply otherwise."""
    # The broker's own code, so that a message matches here if and only if it matches there.
    if subscription.expression_type == SQL92:
        condition = hot.Condition(compile_sql(subscription.expression))
        return lambda message: condition.matches(message.properties_raw)
    if subscription.takes_all:
        return lambda _: True
    # Predicates are code of the broker's operator, which no client has.
    if not subscription.tags:
        raise ConfigError(
            f"archive= and the predicate {subscription.expression}: only brokers can ask it. Take all messages, tags or metaq.Sql"
        )
    return lambda message: message.tag in subscription.tags
