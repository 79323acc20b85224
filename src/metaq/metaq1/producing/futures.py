"""The outcome of a send that is under way."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Generator
from typing import Any

from metaq.client.shared.callbacks import CallbackThreads
from metaq.metaq1.model.message import SendResult

log = logging.getLogger("metaq.client")


class SendFuture(concurrent.futures.Future[SendResult]):
    """A send's future: `result`, `exception`, `add_done_callback`; it can be awaited in any event loop.

    A send cannot be cancelled: the server may have it. Callbacks run in threads of the factory (`callback_threads`).
    """

    def __init__(self, threads: CallbackThreads) -> None:
        super().__init__()
        self._threads = threads

    def cancel(self) -> bool:
        return False

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[SendResult]], object]) -> None:
        """Call `fn` with this future when it is done."""

        def call() -> None:
            try:
                fn(self)
            except Exception:
                log.exception("a done-callback of a send raised")

        super().add_done_callback(lambda _: self._threads.do(call))

    def settled(self, fn: Callable[[concurrent.futures.Future[SendResult]], object]) -> None:
        """Call `fn`, which raises nothing and does not wait, in the client's own thread when it is done."""
        super().add_done_callback(fn)

    def __await__(self) -> Generator[Any, None, SendResult]:
        if not self.done():
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()

            def release() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            def wake(_: object) -> None:
                try:
                    loop.call_soon_threadsafe(release)
                except RuntimeError:  # the waiting loop was closed
                    log.debug("a loop was closed with a send awaited in it")

            # Not by the callback threads: a hop less, and a callback that blocks holds up none that await.
            super().add_done_callback(wake)
            yield from waiter
        return self.result()
