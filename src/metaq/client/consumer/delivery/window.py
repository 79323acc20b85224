"""Sliding window of a queue: what has been handed out, and what of that is finished (Java's ProcessQueue). Pure, no I/O.

    finished_offset      next_offset
    v                    v
    1 1 0 1 1 1 0 0 | 0 0 0 0            one byte per queue offset, 1 = finished; chunks as they were pulled
    └─── chunk ────┘└─ chunk ─┘

Messages of one queue are worked on side by side and finish in any order. What may be committed is the smallest
unfinished offset: a consumer that dies with gaps gets everything from the first gap on again.

A message is finished by one assignment into its chunk's `flags`, which the GIL makes atomic, from whichever thread.
Everything else is called from the background loop alone. Offsets that hold no message for us (filtered, or not
messages) are finished from the start.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from metaq.client.consumer.received.outcome import Pause, delay_level_of
from metaq.model import MessageQueue, StoredMessage

M = TypeVar("M", bound=StoredMessage)
SendBack: TypeAlias = "Callable[[Chunk[M], M, int], None]"
Halt: TypeAlias = "Callable[[Chunk[M], M, float], None]"


class Shut(enum.IntFlag):
    """Reasons why nothing of a window is handed out."""

    DROPPED = 1
    """Final: the queue is no longer ours, or the consumer stops."""
    HELD = 2
    """The user has paused the queue, or a handler has; nothing is pulled either."""
    SUSPENDED = 4
    """The user has suspended the consumer."""


_DROPPED, _HELD, _SUSPENDED = (int(reason) for reason in Shut)  # Plain numbers: `&` with the enum costs a microsecond.


class Chunk(Generic[M]):
    """Messages of one pull, and a byte for every offset that it covered."""

    __slots__ = ("base", "flags", "messages", "records", "scanned", "size", "window")

    in_order = lost = False
    """Messages of a chunk finish in any order; acks count."""

    def __init__(self, window: Window[M], base: int, flags: bytearray, messages: Sequence[M], size: int = 0) -> None:
        self.window, self.base, self.flags, self.messages, self.size = window, base, flags, messages, size
        self.records: Any = None
        """The records that the messages were decoded from, if wanted (`Handover.with_records`)."""
        self.scanned = 0

    @property
    def end(self) -> int:
        return self.base + len(self.flags)

    def rest(self, start: int) -> Chunk[M]:
        """Our messages from number `start` on, under the same flags."""
        rest = Chunk(self.window, self.base, self.flags, self.messages[start:])
        rest.records = self.records
        return rest

    def again(self, message: M) -> Chunk[M]:
        """One of our messages, to be handed out once more under the same flag."""
        return Chunk(self.window, self.base, self.flags, [message])

    def reply(self, message: M, reply: Any) -> Any:
        """Any thread: reply to a request of ours. Returns a future."""
        assert self.window.replies is not None
        return self.window.replies(message, reply)

    def fail(self, message: M, verdict: BaseException) -> None:
        """Any thread: our message was not handled. The verdict is what its handling raised."""
        window = self.window
        if isinstance(verdict, Pause):
            assert window.halt is not None
            window.halt(self, message, verdict.seconds)
        else:
            assert window.send_back is not None
            window.send_back(self, message, delay_level_of(verdict))


class Window(Generic[M]):
    """The window of one queue."""

    def __init__(
        self,
        queue: MessageQueue,
        next_offset: int,
        send_back: SendBack[M] | None = None,
        halt: Halt[M] | None = None,
    ) -> None:
        self.queue = queue
        self.send_back = send_back
        """Called, from any thread, for failed messages of the queue: (chunk, message, delay level)."""
        self.halt = halt
        """Called, from any thread, when a handler wants the queue to pause: (chunk, message, seconds)."""
        self.replies: Callable[[M, Any], Any] | None = None
        """Called, from any thread, to reply to requests of the queue: (message, reply)."""
        self.shut = 0
        """Nothing is handed out unless this is 0, see `Shut`. An int: it is looked at for each message."""
        self._shutting = threading.RLock()  # A signal handler may stop the consumer in the thread that holds it.
        self.next_offset = next_offset
        """Offset of the next pull."""
        self.paused = False
        """Whether flow control has stopped pulling."""
        self.parked: deque[Chunk[M]] = deque()
        """Chunks that takers found while the queue was held. Any thread appends, and looks at `held` again afterwards."""
        self.taken_ms = 0
        """When messages were last handed out; 0: never."""
        self._chunks: deque[Chunk[M]] = deque()

    def close(self, reason: Shut) -> None:
        """Any thread: hand out nothing from now on."""
        with self._shutting:
            self.shut |= int(reason)

    def open(self, reason: Shut) -> None:
        """Any thread: take back one reason not to hand out."""
        with self._shutting:
            self.shut &= ~int(reason)

    @property
    def dropped(self) -> bool:
        """Whether nothing of it will be handed out any more."""
        return bool(self.shut & _DROPPED)

    @dropped.setter
    def dropped(self, value: bool) -> None:
        (self.close if value else self.open)(Shut.DROPPED)

    @property
    def held(self) -> bool:
        """Whether pulled messages are parked, and no more are pulled."""
        return bool(self.shut & _HELD)

    @held.setter
    def held(self, value: bool) -> None:
        (self.close if value else self.open)(Shut.HELD)

    @property
    def waits(self) -> bool:
        """Whether nothing of it should be offered: for good, or until it is not held any more."""
        return bool(self.shut & (_DROPPED | _HELD))

    def add(self, messages: Sequence[M], next_offset: int, size: int = 0) -> Chunk[M] | None:
        """Take in the messages, of `size` bytes, of a pull that covered [self.next_offset, next_offset).

        Returns None if there are none.
        """
        base, self.next_offset = self.next_offset, next_offset
        if not messages:
            return None
        # The usual case, every offset has a message: without a loop over them.
        if len(messages) == next_offset - base:
            flags = bytearray(next_offset - base)
        else:
            flags = bytearray(b"\1") * max(next_offset - base, messages[-1].queue_offset + 1 - base)
            for message in messages:
                flags[message.queue_offset - base] = 0
        chunk = Chunk(self, base, flags, messages, size)
        self._chunks.append(chunk)
        return chunk

    def reset(self, offset: int) -> None:
        """Forget everything and go on at `offset`."""
        self._chunks.clear()
        self.next_offset = offset

    def finished_offset(self) -> int:
        """Return the smallest unfinished offset, or the next to be pulled: the offset to commit."""
        while self._chunks:
            head = self._chunks[0]
            unfinished = head.flags.find(0, head.scanned)
            if unfinished >= 0:
                # The next look begins here: what is before it stays finished.
                head.scanned = unfinished
                return head.base + unfinished
            self._chunks.popleft()
        return self.next_offset

    @property
    def unfinished(self) -> int:
        """Number of pulled and unfinished messages."""
        return sum(chunk.flags.count(0, chunk.scanned) for chunk in self._chunks)

    @property
    def last_unfinished(self) -> int | None:
        """Return the highest unfinished offset."""
        for chunk in reversed(self._chunks):
            if (index := chunk.flags.rfind(0, chunk.scanned)) >= 0:
                return chunk.base + index
        return None

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of the pulls that are not finished."""
        return sum(chunk.size for chunk in self._chunks)

    @property
    def span(self) -> int:
        """Distance between the smallest unfinished offset and the next to be pulled."""
        return self.next_offset - self.finished_offset()
