"""Frames of MetaQ 1.x out of a queue's records (docs/metaq1.md): what one get hands out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from metaq.errors import BadRequest
from metaq.model import StoredMessage
from metaq.options import MIB
from metaq.store.consume_queue import ConsumeQueue
from metaq.store.message_store import MessageStore
from metaq.store.pull import ReadResult, ReadStatus
from metaq.wire import hot
from metaq.wire.compression import decompress

FRAME_BODY_BYTES_MAX: Final = 64 * MIB
"""A compressed body that expands to more is handed out as it is stored."""
_RECORDS_BYTES_MIN, _RECORDS_BYTES_MAX = MIB, 8 * MIB
_RECORD_BYTES_PER_FRAME: Final = 8
"""Records of small messages are so much larger than their frames."""
_QUEUE_OFFSET: Final = slice(20, 28)
"""Of a record."""


class FrameRun(Struct, frozen=True):
    """Which frames are wanted: those of `count` messages of a queue from `queue_offset` on, `size` bytes behind the first
    `skip`."""

    topic: str
    queue_id: int
    queue_offset: int
    count: int
    skip: int
    size: int


class FramesRead(Struct, frozen=True):
    """What was found. Without a body: there is nothing at that place, now or any more."""

    body: bytes
    queue_offset: int
    """Of the first message that is there. Behind the one that was wanted: those before it are lost."""
    count: int = 0
    frame_bytes: int = 0
    """So many messages were looked at, and their whole frames have so many bytes."""


class FrameReader:
    """Reads runs of frames."""

    def __init__(self, store: MessageStore, broker_id: int) -> None:
        self._pull, self._broker_id = store.pull, broker_id

    def read(self, run: FrameRun) -> FramesRead | Callable[[], FramesRead]:
        """The frames, or a call for another thread that returns them: they are not in memory, or are to be expanded.

        Either raises ConfigError if a body was compressed with LZ4 or ZSTD, and the extra that brings them is missing.
        """
        bytes_max = min(max(run.size * _RECORD_BYTES_PER_FRAME, _RECORDS_BYTES_MIN), _RECORDS_BYTES_MAX)
        pulled = self._pull(run.topic, run.queue_id, run.queue_offset, run.count, bytes_max)
        if (job := pulled.job) is not None:
            return lambda: self._frames(run, job(), _expanded)
        try:
            return self._frames(run, pulled, _not_here)
        except _CompressedError:
            kept = bytes(pulled.body)  # the log's pages may go meanwhile
            pulled.body = kept
            return lambda: self._frames(run, pulled, _expanded)

    def _frames(self, run: FrameRun, pulled: ReadResult, expand: Callable[[bytes, int], bytes]) -> FramesRead:
        if pulled.status is ReadStatus.FOUND:
            first = int.from_bytes(pulled.body[_QUEUE_OFFSET], "big")
            if first != run.queue_offset:
                return FramesRead(b"", first)
            body, count, frame_bytes = hot.frames(pulled.body, self._broker_id, run.skip, run.size, expand)
            return FramesRead(body, first, count, frame_bytes)
        if pulled.status in _GONE:
            return FramesRead(b"", max(pulled.next_offset, run.queue_offset))
        return FramesRead(b"", run.queue_offset)


_GONE = (ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.OFFSET_TOO_SMALL)


class _CompressedError(Exception):
    pass


def _not_here(_body: bytes, _sys_flag: int) -> bytes:
    raise _CompressedError


def _expanded(body: bytes, sys_flag: int) -> bytes:
    try:
        return decompress(body, sys_flag, FRAME_BODY_BYTES_MAX)
    except BadRequest:
        return body


class CountedPositions:
    """The positions of one queue, computed from all its records: the seam for `store.positions`."""

    def __init__(self, store: MessageStore, queue: ConsumeQueue) -> None:
        self._store, self._queue = store, queue
        self._first = queue.min_offset
        self._ends = [0]

    def _catch_up(self) -> None:
        while (offset := self._first + len(self._ends) - 1) < self._queue.max_offset:
            pulled = self._store.pull(self._queue.topic, self._queue.queue_id, offset, 1)
            if pulled.job is not None:
                pulled = pulled.job()
            message = hot.decode_records(pulled.body, 0, len(pulled.body), StoredMessage, "", 0, 0)[0]
            size = hot.frames(pulled.body, 0, 0, len(message.body) * 1100 + 40_000, _expanded)[2]
            self._ends.append(self._ends[-1] + size)

    @property
    def min(self) -> int:
        """Position of the first frame that is kept."""
        return self.position(self._queue.min_offset)

    @property
    def max(self) -> int:
        """Position behind the last one."""
        return self.position(self._queue.max_offset)

    def position(self, queue_offset: int) -> int:
        """Where the frame of a message begins."""
        self._catch_up()
        return self._ends[queue_offset - self._first]

    def confirm(self, queue_offset: int, count: int, frame_bytes: int) -> bool:
        """Whether so many messages from a queue offset on have frames of so many bytes."""
        return self.position(queue_offset + count) - self.position(queue_offset) == frame_bytes

    def append(self, queue_offset: int, frame_bytes: int) -> int:  # noqa: ARG002  read from the record
        """The next message has a frame of so many bytes. Returns its position."""
        return self.position(queue_offset)

    def at(self, position: int) -> tuple[int, int]:
        """The queue offset of the frame that holds a position, and where the frame begins."""
        self._catch_up()
        row = bisect_right(self._ends, position) - 1
        return self._first + row, self._ends[row]
