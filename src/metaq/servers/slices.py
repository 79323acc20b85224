"""Slow requests in slices of time: whatever one connection asks for, others are served in between.

A request that costs microseconds may come four thousand times in one read event, and one report over all queues of a group
costs seconds. So a connection has the loop for one slice; then it stops reading and waits for its turn
(`metaq.net.turns`), with what it has left of its read event, or of a request that is work in pieces.

The first slice of a read event needs no turn. Many connections together could fill the loop with those: of each window
they get half, and the others wait as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from metaq.clock import SYSTEM
from metaq.in_pieces import InPieces
from metaq.net.peer import Peer

SLICE_SECONDS: Final = 0.002
WINDOW_SECONDS: Final = 0.02
FIRST_SECONDS: Final = WINDOW_SECONDS / 2
"""Time of a window that first slices of all connections get."""
SHORT_SECONDS: Final = 0.000_25
"""A read event below this counts for nothing: that is what thousands of well-behaved clients bring, and a turn costs more."""
BYTES_PER_SECOND: Final = 1024**3
"""What a second of work counts for in a turn of the loop, in bytes that could be written meanwhile."""


class SlowWork:
    """Time that the slow requests of one server's connections have taken.

    Args: now: monotonic seconds.
    """

    __slots__ = ("_spent", "began", "now")

    def __init__(self, now: Callable[[], float] = SYSTEM.monotonic) -> None:
        self.now = now
        self.began, self._spent = now(), 0.0

    def spend(self, seconds: float, now: float) -> None:
        """Count the first slice of a read event."""
        if now - self.began >= WINDOW_SECONDS:
            self.began, self._spent = now, 0.0
        self._spent += seconds

    def is_free(self, now: float) -> bool:
        """Whether a connection may begin a slice without waiting for its turn."""
        return self._spent < FIRST_SECONDS or now - self.began >= WINDOW_SECONDS


class Slices:
    """The slices of one connection. Its session asks `may_go_on` before each slow request, and `end`s a read event that has `began` one.

    Args: peer: the connection. work: shared by the connections of a server.
    """

    __slots__ = ("_in_turn", "_jobs", "_peer", "_work", "began", "waits")

    def __init__(self, peer: Peer, work: SlowWork) -> None:
        self._peer, self._work = peer, work
        self.began = 0.0
        """Begin of the slice; 0 in a read event that has had no slow request, which needs no `end`."""
        self._in_turn = False
        self._jobs: deque[tuple[InPieces[None], int]] = deque()
        """Work under way and its memory; more than one if parked requests were resumed meanwhile."""
        self.waits = False
        """The connection is paused and waits for its turn: the session takes no more requests."""

    def may_go_on(self) -> bool:
        """Whether another slow request may be handled now. If not, the connection waits, and what is left is presented
        again in its turn."""
        now = self._work.now()
        if not self.began:
            if self._in_turn or self._work.is_free(now):
                self.began = now
                return True
        elif now - self.began < SLICE_SECONDS:
            return True
        self._wait()
        return False

    def end(self) -> None:
        """Account for a read event in which `may_go_on` was asked."""
        began, self.began = self.began, 0.0
        if not self._in_turn:
            now = self._work.now()
            if now - began > SHORT_SECONDS:
                self._work.spend(now - began, now)

    def run(self, work: InPieces[None], size: int = 0) -> None:
        """Run work in pieces: to its end if that is within the slice, else in turns, in which the connection reads nothing.

        It must not raise. What is left of it is dropped when the connection has closed meanwhile. `size`: memory that it takes
        meanwhile, bytes.
        """
        if self._jobs or not self._run(work, self.began or self._work.now()):
            self._jobs.append((work, size))
            self._peer.keep(size)
            self._wait()

    def _run(self, work: InPieces[None], began: float) -> bool:
        """Run pieces for a slice. Returns whether that was all."""
        for _ in work:  # noqa: SIM110  what is run here is the work, not a condition
            if self._work.now() - began >= SLICE_SECONDS:
                return False
        return True

    def _wait(self) -> None:
        if not self.waits:
            self.waits = True
            self._peer.pause()
            self._peer.when_its_turn(self._take_turn, beyond=True)

    def _take_turn(self) -> int:
        """Go on. Returns the cost in bytes."""
        began = self._work.now()
        self.waits = False
        if self._peer.closed:
            self._jobs.clear()
            return 0
        while self._jobs and self._run(self._jobs[0][0], began):
            self._peer.keep(-self._jobs.popleft()[1])
        if self._jobs:
            self._wait()
        else:
            self._in_turn = True
            try:
                self._peer.go_on()
            finally:
                self._in_turn = False
        return int((self._work.now() - began) * BYTES_PER_SECOND)
