"""A queue consumed in order: state of its taker, messages in hand, and pauses after failures.

    runs       [ 1 1 1 0 0 0 0 ] [ 0 0 0 ] ...      as they were pulled, 1 = finished
                     └ hand

A queue is with one taker at a time (a thread or a task), which goes through a run of messages: the next one comes when
the one before is finished. A taker that comes for the next while the one before is neither finished nor failed leaves
the queue, and so does one whose message failed; whoever settles it, or the end of the pause, offers the queue anew. So
queues are worked on side by side, and of each at most one hand (one message, or one batch) is out.

A message that failed comes again, and nothing behind it before it, until it is finished or with the dead letters.

Nothing here knows a broker or an event loop. Takers and those that settle may be any threads; `arrive` is for the loop.
"""

from __future__ import annotations

import copy
import enum
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from metaq.client.consumer.delivery.window import Chunk, Window
from metaq.client.consumer.received.outcome import Pause, Reject
from metaq.model import StoredMessage

log = logging.getLogger("metaq.client")

M = TypeVar("M", bound=StoredMessage)

FIRST_PAUSE = 1.0
"""Pause of a queue after the first failure of a message, s; Java's suspendCurrentQueueTimeMillis."""
LAST_PAUSE = 30.0
"""Longest pause of a queue, s; it doubles with each failure. The bound is Java's."""


class Again(Struct, frozen=True):
    """Deliver the message again after a pause, s. `counts`: it counts as a failed delivery."""

    seconds: float
    counts: bool


class DeadLetter(Struct, frozen=True):
    """Store the message with the dead letters. `exhausted`: after maxReconsumeTimes; otherwise at once."""

    exhausted: bool


def judge(reconsume_times: int, verdict: BaseException, max_reconsume_times: int | None) -> Again | DeadLetter:
    """Decide on a failed message. `reconsume_times`: earlier failures; `max_reconsume_times` None: no limit.

    `Later` counts like any exception: with its own delay, others would overtake, so the queue's pause is used.
    """
    if not isinstance(verdict, Exception):  # a cancelled task, for example: not the message's fault
        return Again(0.0, counts=False)
    if isinstance(verdict, Reject):
        return DeadLetter(exhausted=False)
    if isinstance(verdict, Pause):
        return Again(verdict.seconds, counts=False)
    if max_reconsume_times is not None and reconsume_times >= max_reconsume_times:
        return DeadLetter(exhausted=True)
    # The shift is bounded because the number of failures is not.
    return Again(min(FIRST_PAUSE * (1 << min(reconsume_times, 30)), LAST_PAUSE), counts=True)


class Lease:
    """Time until which a queue may be consumed, monotonic seconds; extended with each renewal of the lock."""

    __slots__ = ("until",)

    def __init__(self, until: float = math.inf) -> None:
        self.until = until


class Effects(Protocol[M]):
    """Callbacks of ordered queues, from any thread."""

    def offer(self, queue: OrderedQueue[M]) -> None:
        """A queue has something for a taker. `each` or `batches` follow."""
        ...

    def failed(self, run: Run[M], message: M, verdict: BaseException) -> None:
        """A message failed. `again` and `unblock` follow, or a mark in the run and `unblock`."""
        ...

    def left(self, queue: OrderedQueue[M]) -> None:
        """The taker left a queue: there may be room for more."""
        ...


class Run(Generic[M]):
    """Messages of one pull, in order; what they belong to while they are consumed."""

    __slots__ = ("base", "chunk", "done", "flags", "marks", "messages", "queue")

    in_order = True

    def __init__(self, queue: OrderedQueue[M], chunk: Chunk[M]) -> None:
        self.queue, self.chunk = queue, chunk
        self.base, self.marks = chunk.base, chunk.flags
        self.messages: list[M] = list(chunk.messages)
        self.done = 0
        """Number of messages before the hand, all of which are finished."""
        self.flags = self  # So that an ack is noticed, and can be ignored when it is too late.

    @property
    def lost(self) -> bool:
        return self.queue.lost

    def __getitem__(self, index: int) -> int:
        return self.marks[index]

    def __setitem__(self, index: int, value: int) -> None:
        """A message is finished."""
        queue = self.queue
        if queue.lost:
            queue.tell_of_loss(self.base + index)
        self.marks[index] = value
        if queue.idle:
            queue.offer()

    def reply(self, message: M, reply: Any) -> Any:
        return self.chunk.reply(message, reply)

    def fail(self, message: M, verdict: BaseException) -> None:
        self.queue.fail(self, message, verdict)

    def skip(self) -> bool:
        """Move `done` behind the finished messages. Returns whether some are left."""
        messages, marks, base = self.messages, self.marks, self.base
        done, count = self.done, len(messages)
        while done < count and marks[messages[done].queue_offset - base]:
            done += 1
        self.done = done
        return done < count

    def replace(self, message: M, counts: bool) -> M:
        """Replace a message that comes again with another object: what its last holder still says is of the old one."""
        again = copy.copy(message)
        again.reconsume_times += counts
        index = next(index for index, one in enumerate(self.messages) if one.queue_offset == message.queue_offset)
        self.messages[index] = again
        return again


class Turn(Chunk[M]):
    """An ordered queue that is handed out: its taker goes through `queue`."""

    __slots__ = ("queue",)

    def __init__(self, queue: OrderedQueue[M]) -> None:
        super().__init__(queue.window, 0, bytearray(), ())
        self.queue = queue


class State(enum.Enum):
    """Whether an ordered queue is idle, offered, or in a taker's hands."""

    IDLE = enum.auto()
    OFFERED = enum.auto()
    TAKEN = enum.auto()


class OrderedQueue(Generic[M]):
    """One queue in orderly consumption, see the module."""

    def __init__(self, window: Window[M], lease: Lease, monotonic: Callable[[], float], effects: Effects[M]) -> None:
        """Args: lease: nothing is handed out once it is over."""
        self.window, self.lease = window, lease
        self._monotonic, self._effects = monotonic, effects
        self.turn = Turn(self)
        self._runs: deque[Run[M]] = deque()
        self._lock = threading.RLock()  # A signal handler may settle a message in the thread that holds it.
        self._state = State.IDLE
        self.idle = True
        """Whether no taker has the queue and it is not offered. After a change that could let it go on, call `offer`."""
        self._hand = 0
        """Number of messages that were handed out last; they begin at the first run's `done`."""
        self._fallen: set[int] = set()
        """Offsets of the handed out messages that failed."""
        self._blocks = 0
        """Failed messages that block the queue: their pause is not over, or they are on their way to the dead letters."""
        self.filing = 0
        """Messages on their way to the dead letters."""
        self.lost = False
        """The lock is no longer ours: acks are ignored."""

    # -------------------------------------------------------------- in the loop

    def arrive(self, chunk: Chunk[M]) -> Run[M]:
        """Take in pulled messages. They belong to the run returned."""
        run = Run(self, chunk)
        with self._lock:
            self._runs.append(run)
        return run

    def again(self, run: Run[M], message: M, *, counts: bool) -> M:
        """Let a failed message come again, when `unblock` is called: as the object returned."""
        with self._lock:
            return run.replace(message, counts)

    def unblock(self) -> None:
        """Take back one block: a failed message is done with, or its pause is over."""
        with self._lock:
            self._blocks -= 1
        self.offer()

    def lose(self) -> None:
        """Hand out nothing any more, and ignore acks of messages in hand. They still end the hand; nobody looks at the
        window of a lost queue any more."""
        self.lost = True
        self.window.dropped = True
        with self._lock:
            while len(self._runs) > 1:  # Nobody will take them; only what is in hand is looked at any more.
                self._runs.pop()

    @property
    def busy(self) -> bool:
        """Whether a message is in somebody's hands, or on its way to the dead letters."""
        with self._lock:
            return self.filing > 0 or bool(self._in_hand())

    def in_hand(self) -> list[int]:
        """Return the offsets of the messages in somebody's hands."""
        with self._lock:
            return self._in_hand()

    # -------------------------------------------------------------- any thread

    def offer(self) -> None:
        """Offer the queue if there is something to hand out now."""
        with self._lock:
            if (
                self._state is not State.IDLE
                or self._blocks
                or self.window.waits
                or self._monotonic() >= self.lease.until
                or self._in_hand()
            ):
                return
            self._end_hand()
            if not self._more():
                return
            self._state, self.idle = State.OFFERED, False
            self.turn.messages = self._runs[0].messages
        self._effects.offer(self)

    def fail(self, run: Run[M], message: M, verdict: BaseException) -> None:
        """Take in that a message of one of the runs failed."""
        if run.marks[message.queue_offset - run.base]:  # It was finished before, so the queue has gone on.
            return
        with self._lock:
            self._fallen.add(message.queue_offset)
            if not self.lost:
                self._blocks += 1
        if self.lost:
            self.tell_of_loss(message.queue_offset)
        else:
            self._effects.failed(run, message, verdict)

    def tell_of_loss(self, offset: int) -> None:
        log.warning(
            "what was said of offset %d of %s is ignored: the queue was left meanwhile, because its lock was lost or it was "
            "moved, and whoever has it now gets the message again",
            offset, self.window.queue,
        )  # fmt: skip

    def _in_hand(self) -> list[int]:
        """The offsets of messages handed out and neither finished nor failed."""
        if not self._hand:
            return []
        # The hand is always of the first run: `lose` keeps that one, and `_more` removes runs only between hands.
        run = self._runs[0]
        hand = [message.queue_offset for message in run.messages[run.done : run.done + self._hand]]
        return [offset for offset in hand if offset not in self._fallen and not run.marks[offset - run.base]]

    def _end_hand(self) -> None:
        self._hand = 0
        self._fallen.clear()

    def _more(self) -> bool:
        """Whether there is an unfinished message; finished runs are removed."""
        while self._runs:
            if self._runs[0].skip():
                return True
            self._runs.popleft()
        return False

    # -------------------------------------------------------------- the taker

    def each(self) -> Generator[M]:
        """Return the messages of one run, one by one. Each must be settled before the next is requested.

        Whoever was offered the queue goes through it, or closes it.
        """
        run = self._begin()
        if run is None:
            return
        try:
            messages, marks, base = run.messages, run.marks, run.base
            window, lease, monotonic = self.window, self.lease, self._monotonic
            self._hand = 1
            for number in range(run.done, len(messages)):
                message = messages[number]
                index = message.queue_offset - base
                if marks[index]:  # Of a batch that failed in part.
                    continue
                # Before the check below: whoever drops the window and then looks at the hand either sees this message in hand,
                # or is seen by the check.
                run.done = number
                if window.shut or monotonic() >= lease.until:
                    break
                yield message
                if not marks[index]:  # failed, or still being processed
                    return
            else:
                run.done = len(messages)
            self._hand = 0
        finally:
            self._end()

    def batches(self, limit: int) -> Generator[list[M]]:
        """Return the messages of one run in batches of up to `limit`. Failed ones of a batch come again before others."""
        run = self._begin()
        if run is None:
            return
        try:
            window, lease, monotonic = self.window, self.lease, self._monotonic
            while run.skip():
                with self._lock:
                    hand = self._next_hand(run, limit)
                    self._hand = len(hand)
                if window.shut or monotonic() >= lease.until:  # after setting the hand, as in `each`
                    self._hand = 0
                    return
                start, stop, count = hand[0].queue_offset - run.base, hand[-1].queue_offset - run.base + 1, len(hand)
                yield hand
                if run.marks.find(0, start, stop) >= 0:  # Something failed, or somebody still works on it.
                    return
                with self._lock:
                    run.done += count
                    self._end_hand()
        finally:
            self._end()

    def _next_hand(self, run: Run[M], limit: int) -> list[M]:
        """Return the next messages from `done` on, at most `limit`, up to the first one that is finished already."""
        hand: list[M] = []
        for message in run.messages[run.done : run.done + limit]:
            if run.marks[message.queue_offset - run.base]:
                break
            hand.append(message)
        return hand

    def _begin(self) -> Run[M] | None:
        with self._lock:
            self._state, self.idle = State.TAKEN, False
            self._end_hand()
            if self._more():
                return self._runs[0]
        self._end()
        return None

    def _end(self) -> None:
        with self._lock:
            self._state, self.idle = State.IDLE, True
        self._effects.left(self)
        self.offer()
