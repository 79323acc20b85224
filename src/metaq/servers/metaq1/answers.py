"""Answers of one connection of the MetaQ 1.x server, in the order of their commands.

A client finds its answers by their opaque, and the original's come in any order. But a person at a terminal has only
the order, and whoever waits for the last answer knows that all others have come. A late answer, whose messages are read
from the disk or whose put waits for it, keeps its place: later answers wait behind it, and are counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from metaq.kept import Kept
from metaq.model.metaq1.partition import Judged

WAITING_BYTES_MAX: Final = 1024 * 1024
"""Most bytes behind late answers of one connection: above that none of its commands are taken."""
WAITING_BYTES_MAX_ALL: Final = 256 * 1024 * 1024
"""Most bytes behind late answers of all connections: above that no commands are taken of those that have late
answers."""
WAITING_MAX: Final = 1024
"""Most late answers of one connection."""
_SLOT_BYTES: Final = 256
"""Bytes that a late answer counts for until it comes."""
JOINED_BYTES_MAX: Final = 64 * 1024
"""Bytes of answers that are gathered before they are written: only a write shows whether the peer reads."""
LONG_BYTES: Final = 32 * 1024
"""Smallest answer that is written by itself: joining it with others would cost more than a write."""


class AnswerSink(Protocol):
    """The peer."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...


class Slot:
    """The place of a late answer. The first `write` is the answer; others are ignored."""

    __slots__ = ("_answers", "behind", "data")

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.data: bytes | memoryview | None = None
        self.behind = list[bytes | memoryview]()

    def write(self, data: bytes | memoryview) -> None:
        """Give the answer."""
        if self.data is None:
            self.data = data
            self._answers.came(len(data))


class Behind:
    """Bytes behind late answers of all connections."""

    def __init__(self) -> None:
        self.bytes = 0


class Answers:
    """Answers that one connection is still to be sent. `sink`: where they go; not to the peer while that waits for its quota.

    Args:
        peer: the connection.
        drained: called when it was `full` and is so no more, or was `awaited` and no answer is late any more.
        behind: shared with the other connections.
        keep: counts what waits here (`Peer.keep`).
    """

    def __init__(
        self,
        peer: AnswerSink,
        drained: Callable[[], None],
        behind: Behind | None = None,
        keep: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.sink, self._drained, self._behind = peer, drained, behind or Behind()
        self._gathered = list[bytes | memoryview]()
        self._gathered_bytes = 0
        self._slots = deque[Slot]()
        self._kept = Kept(keep)
        """Bytes behind late answers."""
        self.awaited = False
        """Call `drained` when no answer is late any more."""

    @property
    def late(self) -> int:
        """Number of late answers."""
        return len(self._slots)

    @property
    def full(self) -> bool:
        """No command should be taken before late answers have come."""
        if not self._slots:
            return False
        if self._behind.bytes > WAITING_BYTES_MAX_ALL:
            self.awaited = True  # the other connections may drain before, and do not tell us
            return True
        return self._kept.bytes > WAITING_BYTES_MAX or len(self._slots) >= WAITING_MAX

    def _add(self, size: int) -> None:
        self._behind.bytes += size
        self._kept.add(size)

    def close(self) -> None:
        """Drop everything: the connection has ended."""
        self._slots.clear()
        # Counted over all connections, too: what a closed one held must not keep others from being read.
        self._behind.bytes -= self._kept.bytes
        self._kept.clear()

    def say(self, *data: bytes | memoryview) -> None:
        """Add an answer. It goes out with the next `flush`, or behind the late ones."""
        if self._slots:
            self._slots[-1].behind.extend(data)
            self._add(sum(map(len, data)))
            return
        for part in data:
            self._write(part)

    def _write(self, part: bytes | memoryview) -> None:
        if len(part) >= LONG_BYTES:
            self.flush()
            self.sink.write(part)
        elif part:
            self._gathered.append(part)
            self._gathered_bytes += len(part)
            if self._gathered_bytes >= JOINED_BYTES_MAX:
                self.flush()

    def later(self) -> Slot:
        """Add the place of a late answer."""
        self.flush()
        # What was gathered so far has just gone out: it belongs before the late answer.
        slot = Slot(self)
        self._slots.append(slot)
        self._add(_SLOT_BYTES)
        return slot

    def flush(self) -> None:
        """Write the gathered answers."""
        if self._gathered:
            data = b"".join(self._gathered) if len(self._gathered) > 1 else self._gathered[0]
            self._gathered.clear()
            self._gathered_bytes = 0
            self.sink.write(data)

    def came(self, size: int) -> None:
        """Write what a late answer of `size` bytes lets go."""
        if not self._slots:  # the connection is closed
            return
        self._add(size)
        slots, was_full = self._slots, self.full
        while slots and (data := slots[0].data) is not None:
            slot = slots.popleft()
            self._add(-(_SLOT_BYTES + len(data) + sum(map(len, slot.behind))))
            # The answers to commands behind the late one waited here for it.
            for part in (data, *slot.behind):
                self._write(part)
        self.flush()
        if (was_full and not self.full) or (self.awaited and not slots):
            self.awaited = False
            self._drained()


def raised_or(outcome: Judged | Exception) -> Judged:
    """Return an outcome. Raises it if it is an error."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
