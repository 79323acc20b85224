"""Held acknowledgements: answers that wait for a flush, a replica, or a disk that lags less (`metaq.broker.log.acks`).

The answers of one read event wait together until the log is durable up to the end that the event reached. Each event
asks for that, so the next fsync covers all of them, and its report releases all answers up to there: group commit, as
answers see it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from metaq.broker.log.acks import AckPolicy, Due, Lack
from metaq.clock import Clock
from metaq.wire.codes import ResponseCode
from metaq.wire.command import LENGTH_BYTES, decode, encode, frame_bytes
from metaq.wire.extensions import IN_DOUBT_MARK

log = logging.getLogger(__name__)


class FlushedLog(Protocol):
    """What holding answers needs of the message store's flusher."""

    def when_flushed(self, log_end: int, done: Callable[[bool], None]) -> None:
        """Call `done`, in another thread, once the log is durable up to `log_end`; with False if it never will be."""
        ...


class AckSink(Protocol):
    """Takes released answers: a peer, a slot among its other answers, or the `members` of a sweep."""

    def write(self, data: bytes) -> None: ...


class Waiting(NamedTuple):
    """Answers of one read event."""

    due: Due
    since: float
    """Monotonic seconds."""
    peer: AckSink
    frames: bytes


CODE_OF: Final[Mapping[Lack, ResponseCode]] = {
    # RocketMQ's send statuses: clients take 10 and 12 for "stored", so a producer does not send the message a second
    # time.
    Lack.FLUSHED: ResponseCode.FLUSH_DISK_TIMEOUT,
    Lack.COPIED: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    Lack.NO_REPLICA: ResponseCode.SLAVE_NOT_AVAILABLE,
    # None of the statuses above, which clients take for "stored": who leads next may not have it. They send it again.
    Lack.DOUBT: ResponseCode.SYSTEM_ERROR,
}


class HeldAcks:
    """Holds answers back until what they promise is true.

    Args:
        acks: knows what is due.
        store: reports flushes.
        clock: of the deadlines.
        call_soon: brings a call from another thread to the event loop.
        timeout_seconds: longest time that an answer is held for the disk.
        copy_seconds: longest time that one is held for a replica, while the disk has its messages.
        took: told how long the answers that waited longest of each release were held, s.
        too_late: rewrites answers whose time is up to say what their messages lack; see `hold`.
    """

    def __init__(
        self,
        acks: AckPolicy,
        flusher: FlushedLog,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], None],
        timeout_seconds: float,
        too_late: Callable[[bytes, Lack], bytes] | None = None,
        took: Callable[[float], None] | None = None,
        copy_seconds: float = 3.0,
    ) -> None:
        self._acks, self._flusher, self._clock = acks, flusher, clock
        self._call_soon, self._timeout, self._copy_seconds = call_soon, timeout_seconds, copy_seconds
        self._too_late = _too_late if too_late is None else too_late
        self._took = took if acks.promises else None
        # A deque will do: offsets and ages both grow, so whatever is to be released or has expired is at the front.
        self._waiting: deque[Waiting] = deque()
        self._releasing = self._lost = self._copying = False

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, peer: AckSink, due: Due, frames: bytes) -> None:
        """Write `frames`, whole answers, to `peer` once what is due has come. Offsets never go back from call to call.

        If the time is up before, they are written too: as they are, or by `too_late` if they promise what is lacking.
        """
        self._waiting.append(Waiting(due, self._clock.monotonic(), peer, frames))
        # Counted over all connections: above `unanswered_bytes_max` the appender refuses sends, since no peer's own
        # limit sees these bytes.
        self._acks.waiting_bytes += len(frames)
        if self._acks.lack(due) is Lack.COPIED:
            if len(self._waiting) == 1:
                self._wait_for_copy(due)
        else:
            self._flusher.when_flushed(due.flushed, self._flushed)

    def holds(self, peer: object) -> bool:
        """Return whether answers to a peer are held, by itself or with others of a sweep. Looks at all: for rare events."""
        return any(one.peer is peer or peer in getattr(one.peer, "members", ()) for one in self._waiting)

    def _wait_for_copy(self, due: Due) -> None:
        """Wait for the copy of the first answer only: copies come in order, and `_release` looks at the others then."""
        if not self._copying:
            self._copying = True
            self._acks.copies.when_copied(due.copied, self._copied)

    def _flushed(self, good: bool) -> None:
        """Have the event loop release answers. For any thread; several calls before that make one release."""
        if not good:
            self._lost = True
        if not self._releasing:
            self._releasing = True
            self._call_soon(self._release)

    def _copied(self) -> None:
        self._copying = False
        self._flushed(good=True)

    def _release(self) -> None:
        self._releasing = False  # first: a flush that is reported from here on must schedule another release
        if self._lost:
            # A failed fsync is final: the kernel may have dropped the dirty pages, and a later fsync would succeed without them.
            # So nothing is acknowledged any more, and the broker stops.
            self._lost = False
            log.error("%d answers are withheld: the log could not be made durable", len(self._waiting))
            while self._waiting:
                self._pop()
            return
        before = len(self._waiting)
        while self._waiting:
            lack = self._acks.lack(self._waiting[0].due)
            if lack is not None:
                if lack is Lack.COPIED:
                    self._wait_for_copy(self._waiting[0].due)
                return
            if self._took is not None and len(self._waiting) == before:
                self._took(self._clock.monotonic() - self._waiting[0].since)
            self._write(self._pop())

    def expire(self) -> None:
        """Write the answers that have waited too long: their messages are stored, but not known to be durable."""
        now = self._clock.monotonic()
        while self._waiting:
            first = self._waiting[0]
            is_copied_only = self._acks.lack(first.due) is Lack.COPIED
            if now - first.since < (self._copy_seconds if is_copied_only else self._timeout):
                return
            self._write(self._pop())

    def _write(self, waiting: Waiting) -> None:
        # Without a promise (ASYNC_FLUSH on a disk that lags) the answer was only slowed down, and lacks nothing.
        lack = self._acks.shortfall(waiting.due)
        waiting.peer.write(self._too_late(waiting.frames, lack) if lack else waiting.frames)

    def _pop(self) -> Waiting:
        waiting = self._waiting.popleft()
        self._acks.waiting_bytes -= len(waiting.frames)
        return waiting


def _too_late(frames: bytes, lack: Lack) -> bytes:
    """Return remoting answers, those to sends and staged transactions with the code of what they lack.

    The answer to END_TRANSACTION, which has no ext fields, stays a success: RocketMQ has no such code for it. In doubt it does not:
    who leads next may ask about the transaction again.
    """
    parts, start = [], 0
    while start < len(frames):
        size = frame_bytes(frames, start, len(frames))
        command = decode(frames[start + LENGTH_BYTES : start + size])
        # Failures stay what they are: an answer that says "refused" must not become one that says "stored".
        if command.code == ResponseCode.SUCCESS and (command.ext or lack is Lack.DOUBT):
            command.code = CODE_OF[lack]
            if lack is Lack.DOUBT:
                command.remark = f"{IN_DOUBT_MARK}{lack.value}"
        parts.append(encode(command))
        start += size
    return b"".join(parts)
