"""The outcome of a send that is under way.

`concurrent.futures.Future` takes 4 us to make, with a lock and a condition each; a million sends a second have one
each. Here a whole batch has one outcome, and the future of a message is two slots: its batch and its place in it.
Locks, events and receipts are made when somebody asks for them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

from metaq.client.conversation.sending.sending import Stored
from metaq.client.shared.callbacks import CallbackThreads
from metaq.errors import RequestTimeout
from metaq.model import SendReceipt
from metaq.wire import hot

log = logging.getLogger("metaq.client")

_waiting = threading.Lock()
"""Guards what is rare: making an event, adding a callback. One lock for all batches, held for nanoseconds."""


def _new_lock() -> None:
    global _waiting  # noqa: PLW0603  in a forked child: a thread that is not here may have held it
    _waiting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


NOWHERE: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
"""Nothing waits in any event loop. Never added to."""


class SendBatch(hot.Batch):
    """Messages of one topic that are sent in one request, and what became of them.

    `add_message` and `add` return -1 once the batch was taken, is full, or the message is one for the slow path.
    """

    __slots__ = (
        "_callbacks", "_each", "_error", "_event", "_offset_ids", "awaited", "first", "prefix", "settled", "stored",
        "threads", "when_failed",
    )  # fmt: skip

    def __init__(self, id_prefix: bytes, bytes_max: int) -> None:
        super().__init__(id_prefix, bytes_max)
        self.threads: CallbackThreads | None = None
        """Threads that run the callbacks; None: the thread that settles the batch runs them."""
        self.when_failed: Callable[[Exception], None] | None = None
        """Called when the batch fails."""
        self.prefix = id_prefix.decode()
        self.first = 0
        """Number of the first message in its id; other than 0 for a message that is sent again under its old id."""
        self.settled = False
        self.stored: Stored | None = None
        self._offset_ids: list[str] | None = None
        self._error: Exception | None = None
        self._each: Sequence[Stored | Exception] | None = None
        self._event: threading.Event | None = None
        self._callbacks: list[tuple[Callable[[SendFuture], object], SendFuture]] | None = None
        self.awaited: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = NOWHERE
        """What waits, by its event loop. A loop's list is released in that loop, behind all that it does now: so whoever finds
        the list of the loop in which he runs may add to it, without a lock."""

    def acknowledge(self, stored: Stored) -> None:
        """The broker stored the batch, contiguously."""
        self.stored = stored
        self._settle()

    def fail(self, error: Exception) -> None:
        """None of the batch's messages is known to be stored."""
        self._error = error
        self._settle()
        if self.when_failed is not None:
            self.when_failed(error)

    def settle_each(self, outcomes: Sequence[Stored | Exception]) -> None:
        """Settle each message by itself: they were sent one by one in the end."""
        self._each = outcomes
        self._settle()

    def receipt(self, index: int) -> SendReceipt:
        """What the broker said of message `index`. Raises its error."""
        if (stored := self.stored) is not None:
            number, ids = index - self.first, self._offset_ids
            # Split once for the whole batch, when the first receipt is asked for.
            if ids is None:
                ids = self._offset_ids = stored.offset_ids.split(",")
            offset_id = ids[number] if number < len(ids) else ""
            return SendReceipt(
                f"{self.prefix}{index:04X}", stored.queue, stored.offset + number, stored.status, offset_id
            )
        if (error := self.error(index)) is not None:
            raise error.with_traceback(None)  # One error may be raised by every future of the batch.
        assert self._each is not None, "it is stored otherwise"
        single = self._each[index - self.first]
        assert not isinstance(single, Exception)
        return SendReceipt(self.message_id(index), single.queue, single.offset, single.status, single.offset_ids)

    def error(self, index: int) -> Exception | None:
        """Why message `index` failed; None if it was acknowledged."""
        if self._each is not None:
            outcome = self._each[index - self.first]
            return outcome if isinstance(outcome, Exception) else None
        return self._error

    def message_id(self, index: int) -> str:
        return f"{self.prefix}{index:04X}"

    def wait(self, timeout: float | None) -> None:
        """Block until the batch is settled. Raises RequestTimeout."""
        with _waiting:
            if self.settled:
                return
            event = self._event
            if event is None:
                event = self._event = threading.Event()
        if not event.wait(timeout):
            raise RequestTimeout(f"no acknowledgement within {timeout} s; the send goes on")

    def when_settled(self, function: Callable[[SendFuture], object], future: SendFuture) -> None:
        """Call `function(future)` once the batch is settled, at once if it is."""
        with _waiting:
            if not self.settled:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append((function, future))
                return
        # Without the lock: the function may wait, or add another callback.
        _call(function, future)

    def waiter(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None] | None:
        """A future of `loop` that is done when the batch is settled; None if it is already."""
        with _waiting:
            if self.settled:
                return None
            # NOWHERE is shared by all batches.
            if self.awaited is NOWHERE:
                self.awaited = {}
            future: asyncio.Future[None] = loop.create_future()
            self.awaited.setdefault(loop, []).append(future)
            return future

    def orphan(self, error: Exception) -> None:
        """`fail` in a forked child, where no lock and no event can be trusted."""
        self._error = error
        self.settled = True

    def _settle(self) -> None:
        with _waiting:
            self.settled = True
            event, callbacks, awaited = self._event, self._callbacks, self.awaited
            self._event, self._callbacks, self.awaited = None, None, NOWHERE
        # Without the lock: what is woken or called here may use the batch at once.
        if event is not None:
            event.set()
        for loop, futures in awaited.items():
            try:
                loop.call_soon_threadsafe(_release, futures)
            except RuntimeError:  # The waiting loop was closed: nobody waits any more.
                log.debug("a loop was closed with %d sends awaited in it", len(futures))
        if callbacks and self.threads is not None:
            self.threads.do(lambda: _call_all(callbacks))
        elif callbacks:
            _call_all(callbacks)


def _call_all(callbacks: list[tuple[Callable[[SendFuture], object], SendFuture]]) -> None:
    for function, future in callbacks:
        _call(function, future)


def _release(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _call(function: Callable[[SendFuture], object], future: SendFuture) -> None:
    try:
        function(future)
    except Exception:
        log.exception("a done-callback of a send raised")


class SendFuture:
    """One message's send. Has the methods of `concurrent.futures.Future` and can be awaited in any event loop.

    A send cannot be cancelled: it may already be at the broker. Callbacks run in threads of the producer
    (`client_callback_executor_threads`).
    """

    __slots__ = ("_batch", "_index")  # Filled by who makes it: an __init__ would cost a tenth of `submit`.

    _batch: SendBatch
    _index: int

    @property
    def message_id(self) -> str:
        """The message's unique id, known before it is sent and kept over re-sends."""
        return self._batch.message_id(self._index)

    def done(self) -> bool:
        """Return whether the send has ended, well or not."""
        return self._batch.settled

    def running(self) -> bool:
        """Return whether the send has not ended yet."""
        return not self._batch.settled

    def cancel(self) -> bool:
        """Return False: a send cannot be cancelled."""
        return False

    def cancelled(self) -> bool:
        """Return False: a send cannot be cancelled."""
        return False

    def result(self, timeout: float | None = None) -> SendReceipt:
        """Wait for the acknowledgement.

        Raises: SendFailed, NoRoute, BrokerError: it was not stored, or nobody knows. RequestTimeout: not within
        `timeout` seconds; the send goes on.
        """
        if not self._batch.settled:
            self._batch.wait(timeout)
        return self._batch.receipt(self._index)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The error that `result` would raise, or None for an acknowledged send. Raises RequestTimeout as `result`, after `timeout`
        seconds."""
        if not self._batch.settled:
            self._batch.wait(timeout)
        return self._batch.error(self._index)

    def add_done_callback(self, function: Callable[[SendFuture], object]) -> None:
        """Call `function` with this future when it is done; at once, if it is. What it raises is logged."""
        self._batch.when_settled(function, self)

    def __await__(self) -> Generator[Any, None, SendReceipt]:
        waiter = self._batch.waiter(asyncio.get_running_loop())
        if waiter is not None:
            yield from waiter
        return self._batch.receipt(self._index)

    def __repr__(self) -> str:
        state = "pending" if not self.done() else "failed" if self._batch.error(self._index) else "acknowledged"
        return f"<SendFuture {self.message_id} {state}>"


def future_of(batch: SendBatch, index: int) -> SendFuture:
    """The future of message `index` of a batch."""
    future = SendFuture()
    future._batch, future._index = batch, index  # noqa: SLF001  the module's own class
    return future
