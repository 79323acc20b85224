"""The consumer of threads: what users receive with. `metaq.aio.Consumer` is the other."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Self

from metaq.client.consumer.base import CALL_SECONDS, CLOSE_SECONDS, EXIT_SECONDS, ConsumerBase, warn_of_busy
from metaq.client.consumer.handlers import Handler, check_handler, handle
from metaq.client.consumer.received import ReceivedMessage
from metaq.errors import ConfigError
from metaq.model import MessageQueue

log = logging.getLogger("metaq.client")


class Consumer(ConsumerBase):
    """Receives a group's messages in any number of threads. Iterate over it, or give `run` a handler."""

    _workers: frozenset[threading.Thread] = frozenset()
    """The threads of `run`, all started, for `close`."""

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Messages as they come, until `stop` or `close`. Each must be finished: use `with message:`.

        Several threads may iterate, each with an iterator of its own; a chunk of messages then goes to one of them.
        Raises ClientClosed if it is closed already.
        """
        self._check_open()
        return self._messages()

    def _messages(self) -> Iterator[ReceivedMessage]:
        while (chunk := self._handover.take(None)) is not None:
            yield from self._of(chunk)

    def receive(self, timeout: float | None = None) -> ReceivedMessage | None:
        """The next message; None after `timeout` seconds, or once `stopped`. Safe from many threads.

        Raises ClientClosed if it is closed already.
        """
        self._check_open()
        return self._next(timeout)

    def _next(self, timeout: float | None) -> ReceivedMessage | None:
        deadline = None if timeout is None else self._core.clock.monotonic() + timeout
        if not self._one_by_one.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            return None
        try:
            while (message := next(self._current, None)) is None:
                left = None if deadline is None else max(0.0, deadline - self._core.clock.monotonic())
                try:
                    chunk = self._handover.take(left)
                except TimeoutError:
                    return None
                if chunk is None:
                    return None
                self._current = self._of(chunk)
            return message
        finally:
            self._one_by_one.release()

    def run(self, handler: Handler, threads: int = 1) -> None:
        """Call `handler(message)` for each message in `threads` threads, until `stop`, `close`, SIGTERM or Ctrl-C.

        The handler's result decides: None finishes the message; `Later(level)`, returned or raised, and any exception
        deliver it again later; `Reject` files it with the dead letters. Any other result counts as a failure and is
        logged (Java's listeners fail by returning null: here None is what a function without `return` gives).

        SIGTERM drains: the messages in hand are finished, the progress is committed, and `run` returns. So it is only
        in the main thread and where SIGTERM has its default meaning; a handler of the program's own stays, and has to
        call `stop`.

        Raises: TypeError: the handler cannot be called with one message, or returns an awaitable. ClientClosed. What is
        no `Exception` (SystemExit, Ctrl-C) and comes out of a handler ends `run`, after the messages in hand.
        """
        check_handler(handler, awaited=False)
        if threads < 1:
            raise ConfigError(f"threads={threads}: need at least 1")
        failures: list[BaseException] = []
        workers = [
            threading.Thread(
                target=self._work, args=(handler, failures), name=f"metaq-{self.group}-{number}", daemon=True
            )
            for number in range(threads)
        ]
        with self._drain_on_sigterm():
            with self._beginning:
                self._check_open()
                for worker in workers:
                    worker.start()
                self._workers |= frozenset(workers)
            try:
                for worker in workers:
                    while worker.is_alive():
                        worker.join(1.0)  # Not for ever: on Windows an endless join hides Ctrl-C.
            except BaseException:
                self.stop()
                for worker in workers:
                    worker.join()
                raise
            finally:
                with self._beginning:
                    self._workers -= frozenset(workers)
                if self._open:  # `close` commits by itself.
                    self.commit()
        if failures:
            raise failures[0]

    def _work(self, handler: Handler, failures: list[BaseException]) -> None:
        try:
            while (message := self._next(None)) is not None:
                handle(message, handler)
        except BaseException as error:  # noqa: BLE001  raised by `run`
            failures.append(error)
            self.stop()

    @contextlib.contextmanager
    def _drain_on_sigterm(self) -> Iterator[None]:
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            yield
            return

        def drain(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  the interpreter's signature
            log.info("SIGTERM: finishing the messages in hand")
            self.stop()

        signal.signal(signal.SIGTERM, drain)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGTERM) is drain:  # The program may have set its own since.
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def seek(
        self, queue: MessageQueue | None = None, *, offset: int | None = None, time: float | dt.datetime | None = None
    ) -> None:
        """Go on at an offset, or at the first message stored at a moment or later: in one queue or (None) in all of ours.

        The progress is kept there at once. Messages in hand can be finished, which counts no more for the progress.
        Raises ConfigError: the queue is not this member's now. NoRoute, BrokerError, RequestTimeout, ClientClosed.
        """
        self._check_open()
        self._core.thread.run(self._seek(queue, offset, time), CALL_SECONDS)

    def commit(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Keep the progress now; it is kept every 5 s and by `close` anyway. Raises RequestTimeout, ClientClosed."""
        self._check_open()
        self._core.thread.run(self._member.persist(), timeout)

    def wait_assigned(self, timeout: float | None = None) -> None:
        """Wait until the group has given this member its queues for the first time. Raises RequestTimeout, ClientClosed."""
        self._check_open()
        self._core.thread.run(self._assigned(), timeout)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Stop, let the handlers of `run` finish, commit, leave the group, disconnect.

        Raises RequestTimeout after `timeout` seconds; handlers that take longer are left behind, with a warning.
        """
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        with self._beginning:
            self._open, workers = False, self._workers
        self.stop()
        deadline = self._core.clock.monotonic() + timeout
        if threading.current_thread() not in workers:  # A handler that closes cannot wait for itself.
            for worker in workers:
                worker.join(max(0.0, deadline - self._core.clock.monotonic()))
            warn_of_busy(self.group, sum(worker.is_alive() for worker in workers))
        self._core.thread.run(self._close(), max(EXIT_SECONDS, deadline - self._core.clock.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
