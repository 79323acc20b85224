"""Makes the frames that a get of MetaQ 1.x receives of a queue's records (docs/metaq1.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from metaq.errors import ConfigError, Reason, Refused
from metaq.options import MIB
from metaq.store.message_reader import MessageReader
from metaq.store.reads.pull import ReadResult, ReadStatus
from metaq.wire import hot
from metaq.wire.frame_size import expanded_body

_RECORDS_BYTES_MIN, _RECORDS_BYTES_MAX = MIB, 8 * MIB
_RECORD_BYTES_PER_FRAME: Final = 8
"""How many times larger records of small messages are than their frames."""
_QUEUE_OFFSET: Final = slice(20, 28)
"""Bytes of a record's queue offset."""


class FrameRun(Struct, frozen=True):
    """The bytes that a get asks for: `size` behind the first `skip` of the frames of `count` messages from `queue_offset` on."""

    topic: str
    queue_id: int
    queue_offset: int
    count: int
    skip: int
    size: int


class FramesRead(Struct, frozen=True):
    """The result of a get. An empty body: no message is there, yet or any more."""

    body: bytes
    queue_offset: int
    """Of the first message that is there. If it is behind the one that was wanted, those in between are lost."""
    count: int = 0
    """Messages whose frames end in the body, or in what was skipped."""
    frame_bytes: int = 0
    """Size of those frames: compared with the positions before the answer is sent."""


class FrameReader:
    """Reads runs of frames."""

    def __init__(self, reader: MessageReader, broker_id: int) -> None:
        self._pull, self._broker_id = reader.pull, broker_id

    def read(self, run: FrameRun) -> FramesRead | Callable[[], FramesRead]:
        """Return the frames; or a call for another thread that does, if they are not in memory or have to be decompressed.

        The call raises Refused UNAVAILABLE if a body was compressed with LZ4 or ZSTD, and the extra that brings them is missing.
        """
        pulled = self._records(run)
        if pulled.job is not None:
            return lambda: self._frames(run, pulled, _expanded)
        try:
            return self._frames(run, pulled, plain_only)
        except CompressedError:  # read again in the thread: a request that waits for one holds no copy of the records
            return lambda: self._frames(run, self._records(run), _expanded)

    def _records(self, run: FrameRun) -> ReadResult:
        bytes_max = min(max(run.size * _RECORD_BYTES_PER_FRAME, _RECORDS_BYTES_MIN), _RECORDS_BYTES_MAX)
        return self._pull(run.topic, run.queue_id, run.queue_offset, run.count, bytes_max)

    def _frames(self, run: FrameRun, pulled: ReadResult, expand: Callable[[bytes, int], bytes]) -> FramesRead:
        if pulled.job is not None:
            pulled = pulled.job()
        if pulled.status is ReadStatus.FOUND:
            first = int.from_bytes(pulled.body[_QUEUE_OFFSET], "big")
            if first != run.queue_offset:  # the pull has passed over lost messages: the positions go on behind them
                return FramesRead(b"", first)
            body, count, frame_bytes = hot.frames(pulled.body, self._broker_id, run.skip, run.size, expand)
            return FramesRead(body, first, count, frame_bytes)
        if pulled.status in _GONE:
            return FramesRead(b"", max(pulled.next_offset, run.queue_offset))
        return FramesRead(b"", run.queue_offset)


_GONE = (ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.OFFSET_TOO_SMALL)


class CompressedError(Exception):
    """A body would have to be decompressed first."""


def plain_only(_body: bytes, _sys_flag: int) -> bytes:
    """Stand in for decompression where it may not be done: raise CompressedError."""
    raise CompressedError


def _expanded(body: bytes, sys_flag: int) -> bytes:
    try:
        return expanded_body(body, sys_flag)
    except ConfigError as error:  # the library is missing here; its position was computed where it was installed
        raise Refused(Reason.UNAVAILABLE, str(error)) from None
