"""Handlers that need cores: each worker of `run(handler, processes=8)` has a process, to which it sends its messages.

    worker thread            process
    messages, pickled   ->   handler(message) ...
    settles             <-   an outcome for each, as it comes

Only outcomes in a few plain words come back, so nothing of the handler's own has to be picklable. Messages are settled
here, by the thread that took them. A process that dies is replaced: the message that it had in hand failed, those behind
it go to the next one. Quick handlers get several messages at a time, as many as take about two milliseconds, because a
trip there and back costs some 50 µs.

Processes are spawned, never forked: this process has threads.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import logging
import multiprocessing
import signal
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Self

from metaq.client.consumer.handling.handlers import name_of, settle_all, settle_by_result
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received.outcome import Later, Pause, Reject
from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError

log = logging.getLogger("metaq.client")

_SIGNALS = {signal.SIGINT, signal.SIGTERM}
Outcome = tuple[str, Any]
"""What a handler returned or raised, as plain values that can be pickled: see `_outcome`."""

SLICE_SECONDS = 0.002
"""Work to send to a process at a time, so that the trip costs little beside it."""
SLICE_MAX = 64
END_SECONDS = 5.0
"""Seconds for a process without work to end by itself."""


def pickled(handler: object) -> bytes:
    """A handler as it goes to a process. Raises TypeError: it cannot."""
    try:
        # As `multiprocessing` itself pickles, so that what it can send can be sent here.
        return bytes(ForkingPickler.dumps(handler))
    except Exception as error:  # noqa: BLE001  pickling runs the handler's own code
        raise TypeError(
            f"the handler {name_of(handler)} cannot go to another process ({error}): define it with `def` at the top level "
            "of a module that can be imported there, not in a function and not as a lambda"
        ) from None


# ---------------------------------------------------------------- in the process


def serve(connection: Connection) -> None:
    """A worker process: handle what comes until the other end is closed.

    Signals are for the parent, which finishes what is in hand and then closes its end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The parent had blocked them when it started this process, see `_signals_blocked`.
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        handler = ForkingPickler.loads(connection.recv_bytes())
    except EOFError:
        return
    except Exception:  # noqa: BLE001  unpickling imports the handler's module
        connection.send(("unusable", traceback.format_exc()))
        return
    connection.send(("ready", None))
    try:
        while True:
            batched, messages = connection.recv()
            for hand in [messages] if batched else messages:
                connection.send(_outcome(handler, hand))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _outcome(handler: Callable[[Any], object], hand: object) -> Outcome:
    """The outcome of one call of the handler. Whatever is no `Exception` ends the process."""
    try:
        result = handler(hand)
    except (Later, Reject, Pause) as verdict:
        result = verdict
    except Exception:  # noqa: BLE001  reported to the parent
        return "raised", traceback.format_exc()
    if result is None:
        return "done", None
    if isinstance(result, Later):
        return "later", result.delay_level
    if isinstance(result, Pause):
        return "pause", result.seconds
    if isinstance(result, Reject) or result is Reject:
        return "reject", None
    # It cannot be sent back, and nobody awaits it here.
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        return "awaitable", None
    return "other", repr(result)


# ---------------------------------------------------------------- in the parent


class Worker:
    """One process and what it has in hand, for one thread."""

    def __init__(self, handler: bytes, name: str, clock: Clock = SYSTEM) -> None:
        """Args: handler: as `pickled` makes it."""
        self._handler, self._name, self._clock = handler, name, clock
        self._process: SpawnProcess | None = None
        self.slice = 1
        """Messages to send to the process at a time, so that a trip is worth its cost."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """The process ends when it has nothing in hand; one that hangs is killed."""
        process = self._process
        if process is not None:
            # The process reads until the end of the connection, and then ends.
            self._connection.close()
            process.join(END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
            _running.discard(process)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def handle(self, messages: Sequence[ReceivedMessage], *, batched: bool) -> None:
        """Have messages handled, one by one or all at once, and settle them.

        Raises TypeError: the handler is asynchronous. ConfigError: no process can be started.
        """
        if self._process is not None and not self._process.is_alive():
            self._replace([])  # While it had nothing in hand: no message is to blame.
        waiting = deque([list(messages)] if batched else [[message] for message in messages])
        while waiting:
            began, count = self._clock.monotonic(), len(waiting)
            if self._converse(waiting, batched=batched):
                self._measure(self._clock.monotonic() - began, count)
            else:
                self._replace(waiting.popleft() if waiting else [])

    def _converse(self, waiting: deque[list[ReceivedMessage]], *, batched: bool) -> bool:
        """Exchange messages and outcomes with the process; settled messages leave `waiting`. Returns whether the
        process survived."""
        try:
            self._connection.send((batched, [message for hand in waiting for message in hand]))
            while waiting:
                outcome = self._connection.recv()
                # It leaves `waiting` only when it is settled: what is left is in hand or behind.
                _settle(waiting[0], outcome)
                waiting.popleft()
        except (EOFError, OSError):
            return False
        return True

    def _measure(self, seconds: float, count: int) -> None:
        each = seconds / count
        # At most twice as many as before: one quick message says little about the next ones.
        self.slice = max(1, min(SLICE_MAX, 2 * self.slice, int(SLICE_SECONDS / max(each, 1e-6))))

    def _replace(self, hand: list[ReceivedMessage]) -> None:
        """Replace a process that died; the messages it had in hand are sent back."""
        assert self._process is not None
        dead = self._process
        dead.join()
        _running.discard(dead)
        self._connection.close()
        log.error(
            "the worker process %s (pid %d) ended with exit code %s while it handled %s: it is replaced, and what it "
            "had in hand is delivered again",
            self._name, dead.pid, dead.exitcode, hand[0] if hand else "nothing",
        )  # fmt: skip
        settle_all(hand, Later())
        # One at a time again: if the next dies, too, only one message is to blame.
        self.slice = 1
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), name=self._name)
        try:
            # The first start in a program starts this as well, which ends with both signals unblocked (CPython before 3.13):
            # the worker would begin with them, and a Ctrl-C or SIGTERM to the group end it before it ignores them.
            resource_tracker.ensure_running()
            with _signals_blocked():
                process.start()
        finally:
            # With our copy of their end open, the end of the process would not show as EOF.
            theirs.close()
        self._process = process
        _running.add(process)
        try:
            self._connection.send_bytes(self._handler)
            word, detail = self._connection.recv()
        except (EOFError, OSError):
            process.join()
            raise ConfigError(
                f"the worker process {self._name} ended with exit code {process.exitcode} before its first message; what it "
                'wrote says why. A program that starts processes has its start below `if __name__ == "__main__":`, '
                "because each process imports it"
            ) from None
        if word == "unusable":
            raise TypeError(
                "the handler cannot be used in another process: define it at the top level of a module that can be "
                f"imported there. What was raised: {detail}"
            )


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals for this thread and a process that it starts: a Ctrl-C would end that before it can ignore the
    signal."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _settle(hand: list[ReceivedMessage], outcome: Outcome) -> None:
    word, detail = outcome
    if word == "raised":
        log.warning("handling %s failed in its process, it will be delivered again:\n%s", hand[0], detail)
        settle_all(hand, Later())
        return
    if word == "awaitable":
        raise TypeError("the handler is asynchronous, and nobody awaits it in a process: make it `def`")
    if word == "other":
        log.error(
            "the handler returned %s for %s: need None, Later, Pause or Reject; it will be delivered again",
            detail, hand[0],
        )  # fmt: skip
        settle_all(hand, Later())
        return
    result = None if word == "done" else _VERDICTS[word](detail)
    for message in hand:
        if not message.settled:
            settle_by_result(message, result)


_VERDICTS: dict[str, Callable[[Any], Exception]] = {
    "later": Later,
    "pause": Pause,
    "reject": lambda _: Reject(),
}

_running: weakref.WeakSet[SpawnProcess] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """End worker processes at exit, before `multiprocessing` waits for them for ever: they ignore SIGTERM."""
    for process in list(_running):
        process.kill()
