"""Pieces of this broker's log for those who compare it with another replica's: read in a thread, a few requests at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias, TypeVar

from metaq.broker.environment import Environment
from metaq.broker.part import BrokerPart
from metaq.errors import Reason, Refused
from metaq.model.scrub import RANGE_BYTES, RANGES_MAX, LogChecksums
from metaq.saved import PendingOutcome
from metaq.store.log import ranges

WAITING_MAX: Final = 16
"""Requests that are read or wait, of all peers together: each reads 16 MiB at most."""

T = TypeVar("T")


Reading: TypeAlias = PendingOutcome[T]
"""A piece of the log that is being read; done when it is there."""


class LogRanges(BrokerPart):
    """Reads pieces of one log. Only on the thread that owns the broker.

    Args: call_soon: brings a call of the thread that reads to the owner's thread.
    """

    leads = False

    def __init__(self, environment: Environment, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._store, self._call_soon = environment.store, call_soon
        self._thread: ThreadPoolExecutor | None = None
        self._waiting = 0
        self._closed = False

    def checksums(self, start: int, stop: int) -> Reading[LogChecksums]:
        """Have the checksums of [start, stop) told, see `LogChecksums`: of as many ranges as one answer has, and as are durable.

        Raises Refused: too much is asked for at once.
        """
        self._check(start)
        stop = min(stop, start + RANGES_MAX * RANGE_BYTES)
        return self._begin(lambda: self._checksums(start, stop))

    def _checksums(self, start: int, stop: int) -> LogChecksums:
        log, flushed = self._store.log, self._store.state.flushed
        folder = str(self._store.folder.commit_log)
        found = ranges.checksums(log, start, min(stop, flushed), RANGE_BYTES)
        # Behind the reading: what retention has taken meanwhile is not told as a part of the log.
        return LogChecksums(log.min, flushed, log.file_bytes, folder, tuple(found))

    def piece(self, start: int, size: int) -> Reading[bytes]:
        """Have the bytes from `start` on told: RANGE_BYTES at most, and no more than are durable.

        Raises Refused: too much is asked for at once.
        """
        self._check(start)
        stop = start + min(size, RANGE_BYTES)
        return self._begin(lambda: ranges.piece(self._store.log, start, min(stop, self._store.state.flushed)))

    def _check(self, start: int) -> None:
        if start < 0:
            raise Refused(Reason.INVALID, f"log offset {start}: a log begins at 0 or behind it")
        if self._closed:
            raise Refused(Reason.UNAVAILABLE, "this broker is stopping: it reads nothing of its log any more")
        if self._waiting >= WAITING_MAX:
            raise Refused(Reason.BUSY, f"{self._waiting} pieces of the log are being read for others; try again")

    def _begin(self, read: Callable[[], T]) -> Reading[T]:
        reading = PendingOutcome[T]()

        def done(end: Callable[[], None]) -> None:
            self._waiting -= 1
            end()

        def work() -> None:
            try:
                outcome = read()
            except OSError as error:
                refusal = Refused(Reason.UNAVAILABLE, f"the log cannot be read: {error}")
                self._call_soon(lambda: done(lambda: reading.finish(refusal)))
            else:
                self._call_soon(lambda: done(lambda: reading.succeed(outcome)))

        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "metaq-scrub")
        self._waiting += 1
        self._thread.submit(work)
        return reading

    def close(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
