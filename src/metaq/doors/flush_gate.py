"""Answers that wait for the disk: with SYNC_FLUSH all acknowledgements, else those of producers that outrun it.

All answers of one read event wait together for the log to be durable up to the end that the event reached. One callback
is under way at a time: the flush thread makes everything durable that was appended before it began, so when it reports,
all answers up to there go out, and the next callback is for the rest. That is group commit seen from the answers' side.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from metaq.clock import Clock
from metaq.net.peer import Peer
from metaq.wire.codes import ResponseCode
from metaq.wire.command import decode, encode
from metaq.wire.frame import LENGTH_BYTES, frame_bytes

log = logging.getLogger(__name__)


class FlushedLog(Protocol):
    """What the gate needs of the message store."""

    @property
    def flushed(self) -> int:
        """LogOffset up to which the log is durable."""
        ...

    def when_flushed(self, log_end: int, done: Callable[[bool], None]) -> None:
        """Call `done`, from another thread, once the log is durable up to `log_end`; with False if it never will be."""
        ...


class Waiting(NamedTuple):
    """Answers of one read event."""

    log_end: int
    durable: bool
    """The answers promise durability, so that a late one must say that it cannot."""
    deadline: float
    peer: Peer
    frames: bytes


class FlushGate:
    """Holds answers back. `call_soon` brings a call from the flush thread to the event loop."""

    def __init__(
        self, store: FlushedLog, clock: Clock, call_soon: Callable[[Callable[[], None]], None], timeout_seconds: float
    ) -> None:
        self._store, self._clock, self._call_soon, self._timeout = store, clock, call_soon, timeout_seconds
        self._waiting: deque[Waiting] = deque()
        self._armed = False
        self.bytes = 0
        """Of all answers that wait."""

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, peer: Peer, log_end: int, frames: bytes, *, durable: bool = True) -> None:
        """Write `frames`, whole answers, to `peer` when the log is durable up to `log_end`, which never goes back.

        When the time is up before, they go out too: with code FLUSH_DISK_TIMEOUT if `durable`, else as they are.
        """
        self._waiting.append(Waiting(log_end, durable, self._clock.monotonic() + self._timeout, peer, frames))
        self.bytes += len(frames)
        self._arm()

    def _arm(self) -> None:
        if self._waiting and not self._armed:
            self._armed = True
            self._store.when_flushed(
                self._waiting[0].log_end, lambda good: self._call_soon(lambda: self._release(good=good))
            )

    def _release(self, *, good: bool) -> None:
        self._armed = False
        if not good:
            # A failed fsync is final (DESIGN, promise 1): nobody gets an acknowledgement any more.
            log.error("%d answers are withheld: the log could not be made durable", len(self._waiting))
            self._waiting.clear()
            self.bytes = 0
            return
        flushed = self._store.flushed
        while self._waiting and self._waiting[0].log_end <= flushed:
            waiting = self._pop()
            waiting.peer.write(waiting.frames)
        self._arm()

    def expire(self) -> None:
        """Answer those who waited too long: their messages are stored, but not known to be durable."""
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0].deadline <= now:
            waiting = self._pop()
            waiting.peer.write(_timed_out(waiting.frames) if waiting.durable else waiting.frames)

    def _pop(self) -> Waiting:
        waiting = self._waiting.popleft()
        self.bytes -= len(waiting.frames)
        return waiting


def _timed_out(frames: bytes) -> bytes:
    """The same answers, each with the code FLUSH_DISK_TIMEOUT."""
    parts, start = [], 0
    while start < len(frames):
        size = frame_bytes(frames, start, len(frames))
        command = decode(frames[start + LENGTH_BYTES : start + size])
        if command.code == ResponseCode.SUCCESS:
            command.code = ResponseCode.FLUSH_DISK_TIMEOUT
        parts.append(encode(command))
        start += size
    return b"".join(parts)
