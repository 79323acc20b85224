"""`PullConsumer.poll`: a long-polling pull for each of the member's queues, and a buffer of received messages.

Runs on the background loop. Nothing is pulled before the first `poll`, nor from a queue with buffered
messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct, field

from metaq.client.consumer.membership.generations import Anchor
from metaq.client.consumer.membership.once_log import OnceLog
from metaq.client.consumer.read_message import ReadMessage
from metaq.client.conversation.retry import DENIED_SECONDS
from metaq.client.shared.core import ClientCore
from metaq.errors import AccessDenied, ConfigError, MetaqError, OffsetOutOfRange
from metaq.model import MessageQueue

log = logging.getLogger("metaq.client")

T = TypeVar("T")

BUFFER_BYTES_MAX = 64 * 1024 * 1024
"""Buffered bytes of bodies of all queues, above which nothing more is pulled."""
PAUSE_SECONDS = 1.0
"""Pause after a failed pull, s."""


class Batch(Protocol):
    """The result of a pull."""

    @property
    def messages(self) -> Sequence[ReadMessage]: ...

    @property
    def next_offset(self) -> int: ...


Pull = Callable[[MessageQueue, int], Awaitable[Batch]]
"""(queue, offset): up to so many messages, held by the broker while there are none. Raises OffsetOutOfRange, MetaqError."""


class PolledMember(Protocol):
    """The member whose queues are polled."""

    @property
    def queues(self) -> list[MessageQueue]: ...

    async def position(self, queue: MessageQueue) -> int: ...

    def update(self, queue: MessageQueue, offset: int) -> None: ...

    async def look_for_new(self, queues: Sequence[MessageQueue]) -> bool:
        """Move those of the queues, which end before positions, whose topic was made anew. Returns whether one was."""
        ...


class Stopped(Exception):
    """`stop` came before a pull was answered."""


class _Place(Struct):
    """One queue: its buffered messages, and the next offset to pull."""

    waiting: deque[ReadMessage] = field(default_factory=deque)
    next_offset: int = -1
    """Offset of the next pull; below 0: not known yet."""
    position: int = -1
    """Offset of the next message that is handed out."""
    newest: Anchor | None = None
    """The newest message that was pulled."""
    task: asyncio.Task[None] | None = None

    def end(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Polling:
    """One pull consumer's polls."""

    def __init__(self, core: ClientCore, member: PolledMember, pull: Pull) -> None:
        self._core, self._member, self._pull = core, member, pull
        self._places: dict[MessageQueue, _Place] = {}
        self._given: dict[MessageQueue, int] = {}
        """Queue → next offset, if what the last poll handed out is consumed."""
        self._paused: set[MessageQueue] = set()
        self._came = asyncio.Event()
        self._held: set[asyncio.Task[Any]] = set()
        self._stopped = False
        self._waiting_bytes = 0
        self._turn = 0
        self._busy = False
        self._faults = OnceLog(log)
        self._refusal: AccessDenied | None = None
        """What the next poll that has nothing to hand out raises."""
        self.skipped = 0
        """Messages that were deleted before they were polled."""

    async def poll(self, timeout: float, count: int) -> list[ReadMessage]:
        """Return up to `count` messages of our queues; none after `timeout` seconds, or once stopped.

        Raises ConfigError: another poll is waiting. AccessDenied: see `refuse`.
        """
        if self._busy:
            raise ConfigError("another poll of this consumer is under way: poll in one thread or task")
        self._busy = True
        try:
            self.consumed()
            deadline = asyncio.get_running_loop().time() + timeout
            while not self._stopped:
                self._came.clear()
                self._look()
                if found := self._take(count):
                    self._look()  # emptied queues are pulled again while these messages are processed
                    return found
                if self._refusal is not None:
                    refusal, self._refusal = self._refusal, None
                    raise refusal
                try:
                    async with asyncio.timeout_at(min(deadline, asyncio.get_running_loop().time() + PAUSE_SECONDS)):
                        await self._came.wait()  # with a time-out: a rebalance may give us queues meanwhile
                except TimeoutError:
                    if asyncio.get_running_loop().time() >= deadline:
                        return []
            return []
        finally:
            self._busy = False

    # As Kafka's consumer: the next poll acknowledges the messages of the one before.
    def consumed(self) -> None:
        """Count what the last poll handed out as consumed, so that its offsets may be committed."""
        given, self._given = self._given, {}
        for queue, offset in given.items():
            with contextlib.suppress(ConfigError):  # the queue went to another member meanwhile
                self._member.update(queue, offset)

    def position(self, queue: MessageQueue) -> int | None:
        """The offset of the next message of a queue that poll hands out; None: nothing was polled of it."""
        place = self._places.get(queue)
        return None if place is None or place.position < 0 else place.position

    def newest(self, queue: MessageQueue) -> Anchor | None:
        """Return the newest message that was pulled of a queue since its offset was moved."""
        place = self._places.get(queue)
        return None if place is None else place.newest

    def seek(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets. Raises ConfigError: a queue is not ours."""
        self._check_ours(offsets)
        for queue, offset in offsets.items():
            self._member.update(queue, offset)
            self.moved(queue)

    def moved(self, queue: MessageQueue) -> None:
        """Drop what is buffered of a queue whose offset was moved."""
        self._given.pop(queue, None)
        self._forget(queue)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of them until `resume`. Raises ConfigError: one is not ours."""
        chosen = set(queues)
        self._check_ours(chosen)
        self._paused |= chosen

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self._paused.difference_update(queues)
        self._came.set()

    @property
    def paused(self) -> list[MessageQueue]:
        return sorted(self._paused)

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, a pull by hand. Raises Stopped, and cancels it, if `stop` comes first; at once if that was before."""
        if self._stopped:
            work.close()
            raise Stopped
        task = asyncio.ensure_future(work)
        self._held.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not self._stopped or (caller is not None and caller.cancelling()):
                raise
            raise Stopped from None
        finally:
            task.cancel()
            self._held.discard(task)

    def refuse(self, error: AccessDenied) -> None:
        """Raise `error` in the poll that waits, or the next one: access control refuses what the group needs."""
        self._refusal = error
        self._came.set()

    def stop(self) -> None:
        """End the poll that waits, and pulls that brokers hold."""
        self._stopped = True
        self._came.set()
        for task in self._held:
            task.cancel()

    def close(self) -> None:
        self.stop()
        for queue in list(self._places):
            self._forget(queue)

    def _check_ours(self, queues: Iterable[MessageQueue]) -> None:
        if foreign := sorted(set(queues) - set(self._member.queues)):
            raise ConfigError(f"{foreign[0]} is not this member's now: assign it, or register its topic")

    def _forget(self, queue: MessageQueue) -> None:
        if (place := self._places.pop(queue, None)) is not None:
            place.end()
            self._waiting_bytes -= sum(len(message.body) for message in place.waiting)

    # -------------------------------------------------------------- pulls

    def _look(self) -> None:
        """Start a pull for each queue of ours that has nothing waiting."""
        ours = set(self._member.queues)
        for queue in self._places.keys() - ours:
            # Buffered messages of lost queues are dropped: their new owner gets them.
            self._forget(queue)
        self._paused &= ours
        for queue in sorted(ours - self._paused):
            place = self._places.setdefault(queue, _Place())
            if not place.waiting and place.task is None and self._waiting_bytes <= BUFFER_BYTES_MAX:
                place.task = self._core.spawn(self._fill(queue, place))

    async def _fill(self, queue: MessageQueue, place: _Place) -> None:
        """Pull once. The next pull is started by the next look."""
        asked = self._core.clock.monotonic()
        try:
            if place.next_offset < 0:
                place.next_offset = place.position = await self._member.position(queue)
            batch = await self._pull(queue, place.next_offset)
        except OffsetOutOfRange as error:
            short = place.next_offset > error.kept.stop
            if short and self._places.get(queue) is place and await self._member.look_for_new([queue]):
                return  # the place is forgotten
            self._out_of_range(queue, place, error)
        except MetaqError as error:
            self._faults.once(f"{queue}", f"{queue} cannot be polled, trying again: {error}")
            if isinstance(error, AccessDenied):
                self.refuse(error)
            await self._core.leaders.pause(
                queue.broker, DENIED_SECONDS if isinstance(error, AccessDenied) else PAUSE_SECONDS, asked
            )
        else:
            self._faults.over(f"{queue}")
            place.next_offset = batch.next_offset
            place.waiting.extend(batch.messages)
            if batch.messages:
                place.newest = Anchor.of(batch.messages[-1])
            self._waiting_bytes += sum(len(message.body) for message in batch.messages)
            if not place.waiting and place.position != batch.next_offset:  # A filter passed over what is there.
                place.position = self._given[queue] = batch.next_offset
        place.task = None
        self._came.set()

    def _out_of_range(self, queue: MessageQueue, place: _Place, error: OffsetOutOfRange) -> None:
        kept = error.kept
        if place.next_offset < kept.start:
            gone = range(place.next_offset, kept.start)
            self.skipped += len(gone)
            log.warning(
                "%d messages of %s were deleted before they were polled: offsets %d to %d",
                len(gone), queue, gone.start, gone.stop - 1,
            )  # fmt: skip
            place.next_offset = place.position = kept.start
        else:
            log.warning("%s ends at %d, wanted was %d: going on at %d", queue, kept.stop, place.next_offset, kept.stop)
            place.next_offset = place.position = kept.stop

    def _take(self, count: int) -> list[ReadMessage]:
        """From one queue after the other; another one begins each time."""
        ready = sorted(queue for queue, place in self._places.items() if place.waiting and queue not in self._paused)
        self._turn += 1
        start = self._turn % len(ready) if ready else 0
        found: list[ReadMessage] = []
        for queue in ready[start:] + ready[:start]:
            place = self._places[queue]
            while place.waiting and len(found) < count:
                message = place.waiting.popleft()
                self._waiting_bytes -= len(message.body)
                found.append(message)
                place.position = message.queue_offset + 1
            if not place.waiting:
                place.position = place.next_offset
            self._given[queue] = place.position
            if len(found) == count:
                break
        return found
