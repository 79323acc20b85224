"""Long answers piece by piece, as the peer reads them; and reads of old messages, in threads and in turns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

from metaq.store.reads.long_body import ColdBody, LongBody

UNDER_WAY_MAX = 8
"""Most concurrent reads of old messages: each brings at most 256 KiB into memory, or one message."""
WAITING_MAX = 1024
"""Most queued reads of one connection."""

Done = Callable[["asyncio.Future[Any]"], None]


class ColdReads:
    """Runs reads that may wait for the disk, in threads. Connections take turns, so one with many reads delays no
    other."""

    def __init__(self, readers: Executor) -> None:
        self._readers = readers
        self._waiting: dict[object, deque[tuple[Callable[[], Any], Done]]] = {}
        """Queued reads by connection, in the order of their turns."""
        self._under_way = 0

    def read(self, connection: object, job: Callable[[], Any], done: Done) -> bool:
        """Run `job` in a thread, and call `done` on the event loop with its future.

        Returns False: too many reads of this connection wait already.
        """
        mine = self._waiting.setdefault(connection, deque())
        if len(mine) >= WAITING_MAX:
            return False
        mine.append((job, done))
        self._begin()
        return True

    def forget(self, connection: object) -> None:
        """Drop the queued reads of a closed connection."""
        self._waiting.pop(connection, None)

    def _begin(self) -> None:
        while self._waiting and self._under_way < UNDER_WAY_MAX:
            connection = next(iter(self._waiting))
            # The connection is taken out and put back at the end: a dict keeps the order of insertion, so each
            # connection gets one read in its turn.
            mine = self._waiting.pop(connection)
            job, done = mine.popleft()
            if mine:
                self._waiting[connection] = mine
            self._under_way += 1
            loop = asyncio.get_running_loop()
            try:
                future = loop.run_in_executor(self._readers, job)
            except RuntimeError as error:  # no more threads, or the server is closed: `done` hears of it all the same
                future = loop.create_future()
                future.set_exception(error)
            future.add_done_callback(partial(self._done, done))

    def _done(self, done: Done, future: asyncio.Future[Any]) -> None:
        self._under_way -= 1
        # Reads are cancelled only when the server closes its threads: nothing more is begun then.
        if not future.cancelled():
            # asyncio logs an exception that nobody retrieves, and the connection that would may be gone.
            future.exception()
            self._begin()
        done(future)


class Pieces:
    """A `net.turns.Source` of recent records, read on the event loop: they are in the page cache."""

    def __init__(self, body: LongBody) -> None:
        self._body = body

    def take(self, ready: Callable[[], None]) -> bytes | memoryview | None:  # noqa: ARG002  it always is
        return self._body.next()


class ColdPieces:
    """A `net.turns.Source` of old records: one piece at a time, in a thread unless it is in the page cache."""

    def __init__(self, body: ColdBody, connection: object, reads: ColdReads) -> None:
        self._body, self._connection, self._reads = body, connection, reads
        self._read: asyncio.Future[bytes | memoryview] | None = None
        self._reading = False

    def take(self, ready: Callable[[], None]) -> bytes | memoryview | None:
        read, self._read = self._read, None
        if read is not None:
            return read.result()
        if not self._reading:
            if (piece := self._body.next_cached()) is not None:
                return piece
            self._reading = self._reads.read(self._connection, self._body.next, partial(self._done, ready))
            if not self._reading:
                raise RuntimeError("too many reads of old messages wait for this connection")
        return None

    def _done(self, ready: Callable[[], None], future: asyncio.Future[bytes | memoryview]) -> None:
        self._read, self._reading = future, False
        ready()
