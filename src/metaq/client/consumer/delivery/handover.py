"""From the background loop to whoever consumes: chunks change hands, not single messages.

The loop puts chunks, any number of threads or of asyncio tasks (in any loop) take them. Closing wakes every taker and
gives it None, at once: what was not taken stays unfinished and comes again. While it is suspended takers wait,
whatever is there. In orderly consumption a chunk is a queue's turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from typing import Generic, TypeVar

from metaq.client.consumer.delivery.window import Chunk
from metaq.client.shared.loop import LOOK_SECONDS
from metaq.errors import AccessDenied
from metaq.model import StoredMessage

M = TypeVar("M", bound=StoredMessage)


class Handover(Generic[M]):
    """A queue of chunks with blocking and awaiting takers."""

    def __init__(self) -> None:
        self._chunks: queue.SimpleQueue[Chunk[M] | None] = queue.SimpleQueue()
        self._returned: deque[Chunk[M]] = deque()
        self._lock = threading.RLock()  # A signal handler may call `close` in the thread that holds it.
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._going = threading.Event()
        self._going.set()
        self.closed = False
        self._refusal: AccessDenied | None = None
        """What the next taker that waits is told."""
        self.with_records = False
        """Whether chunks keep the records that their messages were decoded from: `arrow_batches` makes columns of them."""

    @property
    def suspended(self) -> bool:
        return not self._going.is_set()

    def suspend(self) -> None:
        """Let takers wait from now on."""
        with self._lock:
            if not self.closed:
                self._going.clear()

    def resume(self) -> None:
        self._going.set()
        self._wake()

    def put(self, chunk: Chunk[M]) -> None:
        self._chunks.put(chunk)
        # Looked at without the lock: who begins to wait meanwhile looks once more itself, see `changed`.
        if self._waiting:
            self._wake()

    def take(self, timeout: float | None) -> Chunk[M] | None:
        """The next chunk; None once closed. Raises TimeoutError after `timeout` seconds; AccessDenied, see `refuse`."""
        while True:
            if not self._going.wait(LOOK_SECONDS if timeout is None else timeout):
                if timeout is None:
                    continue
                raise TimeoutError
            # What was given back is older than what waits in the queue.
            with contextlib.suppress(IndexError):
                return self._taken(self._returned.popleft())
            try:
                chunk = self._chunks.get(timeout=LOOK_SECONDS if timeout is None else timeout)
            except queue.Empty:
                if timeout is None:
                    continue
                raise TimeoutError from None
            if self._suspended_since(chunk):
                continue
            # An empty chunk only wakes a taker, see `give_back`: the messages are among the returned.
            if chunk is None or chunk.messages:
                return self._taken(chunk)

    def take_now(self) -> Chunk[M] | None:
        """The next chunk; None once closed. Raises LookupError if there is none now."""
        while True:
            if self.suspended:
                raise LookupError("nothing is handed out")
            try:
                chunk = self._returned.popleft() if self._returned else self._chunks.get_nowait()
            except (IndexError, queue.Empty):
                raise LookupError("nothing is here") from None
            # As in `take`: an empty chunk only wakes.
            if chunk is None or chunk.messages:
                return self._taken(chunk)

    async def changed(self) -> None:
        """Return when something was put, or it was closed: perhaps for another taker, so look again."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        entry = loop, future
        with self._lock:
            self._waiting.append(entry)
        if (
            self._returned or not self._chunks.empty()
        ) and not self.suspended:  # It came between the look and the wait.
            self._wake()
        try:
            await future
        finally:
            with self._lock, contextlib.suppress(ValueError):  # A taker that gives up must not be kept.
                self._waiting.remove(entry)

    async def take_async(self) -> Chunk[M] | None:
        """The next chunk; None once closed."""
        while True:
            with contextlib.suppress(LookupError):
                return self.take_now()
            await self.changed()

    def give_back(self, chunk: Chunk[M]) -> None:
        """Return the rest of a chunk for the next taker."""
        self._returned.append(chunk)
        self.put(chunk.rest(len(chunk.messages)))  # Empty: makes a waiting taker look.

    def close(self) -> None:
        with self._lock:
            self.closed = True
            self._going.set()
        self._chunks.put(None)
        self._wake()

    def refuse(self, error: AccessDenied) -> None:
        """Raise `error` in one taker, behind what was put before: a broker refuses what the group needs."""
        with self._lock:
            if self._refusal is not None:  # nobody has taken the last one yet
                return
            self._refusal = error
        self._chunks.put(None)
        self._wake()

    def interrupt(self) -> None:
        """Let takers get None behind what was put before, until `restart`."""
        self._chunks.put(None)
        self._wake()

    def restart(self) -> None:
        """Undo `interrupt`, and drop the chunks of dropped windows. Called where `put` is."""
        self._refusal = None  # Its mark in the queue goes, too; the next try brings another.
        # In this order: what was given back is older than what waits in the queue.
        kept = [chunk for chunk in self._returned if not chunk.window.dropped]
        self._returned.clear()
        with contextlib.suppress(queue.Empty):
            while True:
                chunk = self._chunks.get_nowait()
                if chunk is not None and not chunk.window.dropped:
                    kept.append(chunk)
        for chunk in kept:
            self._chunks.put(chunk)

    def _suspended_since(self, chunk: Chunk[M] | None) -> bool:
        """Put a chunk back in its place if `suspend` came meanwhile. Returns whether it did."""
        if self._going.is_set() or chunk is None:
            return False
        if chunk.messages:
            self._returned.append(chunk)
        return True

    def _taken(self, chunk: Chunk[M] | None) -> Chunk[M] | None:
        if chunk is None and not self.closed and self._refusal is not None:
            with self._lock:
                refusal, self._refusal = self._refusal, None
            if refusal is not None:
                raise refusal
        # Closed in between: the chunk stays unfinished, and comes again.
        if chunk is None or self.closed:
            self._chunks.put(None)  # For the next taker.
            if self._waiting:  # It may have looked while the mark was in our hands.
                self._wake()
            return None
        return chunk

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            try:
                loop.call_soon_threadsafe(_release, future)
            except RuntimeError:  # Its loop is closed: nobody waits.
                continue


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
