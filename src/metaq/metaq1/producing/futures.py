"""The outcome of a send that is under way.

`concurrent.futures.Future` makes a condition with its lock for each future, which was the dearest part of a send: here one is made when
somebody waits. Nothing is locked before. Who settles the future writes the outcome and then looks whether there is a condition or a
callback; who waits makes a condition, or adds a callback, and then looks whether there is an outcome. So one of the two sees the other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures._base import FINISHED, PENDING
from typing import Any

from metaq.client.shared.callbacks import CallbackThreads
from metaq.metaq1.model.message import SendResult
from metaq.metaq1.shared.wakes import Wakes

log = logging.getLogger("metaq.client")

Callback = Callable[[concurrent.futures.Future[SendResult]], object]


class SendFuture(concurrent.futures.Future[SendResult]):
    """A send's future, made by `submit`: `result`, `exception`, `add_done_callback`; it can be awaited in any event loop.

    A send cannot be cancelled: the server may have it. Callbacks run in threads of the factory (`callback_threads`).
    """

    _done_callbacks: list[Callback]

    def __init__(self, threads: CallbackThreads, wakes: Wakes) -> None:
        # Not the base's, which makes the condition: see `__getattr__`. The names are the base's own.
        self._state = PENDING
        self._result: SendResult | None = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks = []
        self._threads, self._wakes = threads, wakes

    def __getattr__(self, name: str) -> Any:
        if name == "_condition":  # asked for by the base, and by the functions of `concurrent.futures`
            return self.__dict__.setdefault(name, threading.Condition())
        raise AttributeError(name)

    def cancel(self) -> bool:
        """Return False: a send cannot be cancelled."""
        return False

    def done(self) -> bool:
        """Return whether the send has ended, well or not."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> SendResult:
        """Wait for the acknowledgement. Raises what `MessageProducer.send_message` raises; TimeoutError: not within `timeout`
        seconds, None waits as long as it takes; the send goes on."""
        if self._state == FINISHED and self._exception is None:
            assert self._result is not None, "it is finished"
            return self._result
        return super().result(timeout)

    def set_result(self, result: SendResult) -> None:
        """End it well. For the producer that made it."""
        self._result = result
        self._finish()

    def set_exception(self, exception: BaseException | None) -> None:
        """End it with an error. For the producer that made it."""
        self._exception = exception
        self._finish()

    def _finish(self) -> None:
        self._state = FINISHED
        condition = self.__dict__.get("_condition")
        if condition is not None:
            with condition:
                for waiter in self._waiters:
                    if self._exception is None:
                        waiter.add_result(self)
                    else:
                        waiter.add_exception(self)
                condition.notify_all()
        if self._done_callbacks:
            self._call_back()

    def _call_back(self) -> None:
        while self._done_callbacks:
            try:
                function = self._done_callbacks.pop(0)
            except IndexError:  # another thread has it
                return
            function(self)

    def add_done_callback(self, fn: Callback) -> None:
        """Call `fn` with this future when it is done."""

        def call() -> None:
            try:
                fn(self)
            except Exception:
                log.exception("a done-callback of a send raised")

        self.settled(lambda _: self._threads.do(call))

    def settled(self, fn: Callback) -> None:
        """Call `fn`, which raises nothing and does not wait, in the client's own thread when it is done."""
        self._done_callbacks.append(fn)
        if self._state == FINISHED:
            self._call_back()

    def __await__(self) -> Generator[Any, None, SendResult]:
        if self._state != FINISHED:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # Not by the callback threads: a hop less, and a callback that blocks holds up none that await.
            self.settled(functools.partial(_wake, self._wakes, waiter))
            yield from waiter
        return self.result()


def _wake(wakes: Wakes, waiter: asyncio.Future[None], _: object) -> None:
    wakes.wake(waiter)
