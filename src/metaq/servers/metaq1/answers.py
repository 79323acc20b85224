"""The answers of one connection of the MetaQ 1.x server, in the order of their questions.

A client finds its answers by their number, so the order would be free; but a person at a terminal has no other way, and
who waits for the last answer knows that all others have come. An answer that comes late, because its messages are
read from the disk or its put waits for it, keeps its place: later ones wait behind it, and are counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

WAITING_BYTES_MAX: Final = 1024 * 1024
"""Of answers behind a late one: above it a connection gets no more of them made."""
WAITING_BYTES_MAX_ALL: Final = 256 * 1024 * 1024
"""Of the answers behind late ones of all connections together: above it those that have late ones get no more of them made."""
WAITING_MAX: Final = 1024
"""Late answers of one connection."""
_SLOT_BYTES: Final = 256
JOINED_BYTES_MAX: Final = 64 * 1024
"""Answers of one read event are gathered up to this, then written: only then the peer shows whether it reads them."""
LONG_BYTES: Final = 32 * 1024
"""From here on an answer is written by itself: joining it with others would cost more than a write."""


class AnswerSink(Protocol):
    """The peer."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...


class Slot:
    """The place of an answer that comes later; what it is given first is the answer."""

    __slots__ = ("_answers", "behind", "data")

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.data: bytes | memoryview | None = None
        self.behind = list[bytes | memoryview]()

    def write(self, data: bytes | memoryview) -> None:
        """Here is the answer."""
        if self.data is None:
            self.data = data
            self._answers.came(len(data))


class Behind:
    """How many bytes wait behind late answers, of all connections."""

    def __init__(self) -> None:
        self.bytes = 0


class Answers:
    """What one connection is yet to be sent. `drained` is called when it had been full, or awaited, and all has gone out.

    `behind`: what it shares with the other connections.
    """

    def __init__(self, peer: AnswerSink, drained: Callable[[], None], behind: Behind | None = None) -> None:
        self._peer, self._drained, self._behind = peer, drained, behind or Behind()
        self._gathered = list[bytes | memoryview]()
        self._gathered_bytes = 0
        self._slots = deque[Slot]()
        self._bytes = 0
        """Behind late answers."""
        self.awaited = False
        """Whether somebody wants to hear when nothing is late any more."""

    @property
    def late(self) -> int:
        """How many answers are late."""
        return len(self._slots)

    @property
    def full(self) -> bool:
        """Whether no more answers should be made before the late ones have come."""
        if not self._slots:
            return False
        if self._behind.bytes > WAITING_BYTES_MAX_ALL:
            self.awaited = True  # the others may be answered before, and do not tell us
            return True
        return self._bytes > WAITING_BYTES_MAX or len(self._slots) >= WAITING_MAX

    def _add(self, size: int) -> None:
        self._bytes += size
        self._behind.bytes += size

    def close(self) -> None:
        """The connection has ended: nothing of it waits any more."""
        self._slots.clear()
        self._add(-self._bytes)

    def say(self, *data: bytes | memoryview) -> None:
        """An answer that is there. It goes out with the next `flush`, or behind the late ones."""
        if self._slots:
            self._slots[-1].behind.extend(data)
            self._add(sum(map(len, data)))
            return
        for part in data:
            self._write(part)

    def _write(self, part: bytes | memoryview) -> None:
        if len(part) >= LONG_BYTES:
            self.flush()
            self._peer.write(part)
        elif part:
            self._gathered.append(part)
            self._gathered_bytes += len(part)
            if self._gathered_bytes >= JOINED_BYTES_MAX:
                self.flush()

    def later(self) -> Slot:
        """An answer that comes later."""
        self.flush()
        slot = Slot(self)
        self._slots.append(slot)
        self._add(_SLOT_BYTES)
        return slot

    def flush(self) -> None:
        """Write what was gathered."""
        if self._gathered:
            data = b"".join(self._gathered) if len(self._gathered) > 1 else self._gathered[0]
            self._gathered.clear()
            self._gathered_bytes = 0
            self._peer.write(data)

    def came(self, size: int) -> None:
        """A late answer has come, of so many bytes."""
        if not self._slots:  # the connection is closed
            return
        self._add(size)
        slots, was_full = self._slots, self.full
        while slots and (data := slots[0].data) is not None:
            slot = slots.popleft()
            self._add(-(_SLOT_BYTES + len(data) + sum(map(len, slot.behind))))
            for part in (data, *slot.behind):
                self._write(part)
        self.flush()
        if (was_full and not self.full) or (self.awaited and not slots):
            self.awaited = False
            self._drained()
