"""Background threads of the store: a failing step is logged, tried again with growing pauses, and reported as `trouble`."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from metaq.errors import StoreFull
from metaq.store.disk import NO_ROOM

log = logging.getLogger(__name__)
T = TypeVar("T")
FAILURES_MAX: Final = 8
"""After so many failures in a row, some 25 seconds, the fault does not go away by itself."""
_USED_UP: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_PAUSE_SECONDS: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 30.0
_ITEMS_AT_ONCE: Final = 128
"""Some 50 µs of work."""
_WAY_SECONDS: Final = 0.0002


def pause_after(failures: int) -> float:
    """Seconds to wait after the n-th failure in a row: 0.1, 0.2, 0.4 ... 30. Pure."""
    return float(min(_PAUSE_SECONDS_MAX, _PAUSE_SECONDS * 2.0 ** min(failures - 1, 20)))


def is_no_room(error: BaseException) -> bool:
    """Whether the disk was full, which passes when somebody makes room."""
    return isinstance(error, StoreFull) or (isinstance(error, OSError) and error.errno in NO_ROOM)


def is_shortage(error: BaseException) -> bool:
    """Whether something was used up that others give back: room, descriptors, memory. Then nothing is broken."""
    cause = error.__cause__  # a StoreError says it in words
    if is_no_room(error) or isinstance(error, MemoryError):
        return True
    return any(isinstance(one, OSError) and one.errno in _USED_UP for one in (error, cause))


def giving_way(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, with a short pause after some: for work of a background thread on thousands of them.

    While such a thread computes, the event loop waits for the interpreter whenever it comes back from a system call, up to the
    switch interval each time, which is several times per message.
    """
    never = threading.Event()
    for number, item in enumerate(items, 1):
        yield item
        if not number % _ITEMS_AT_ONCE:
            never.wait(_WAY_SECONDS)


class Worker:
    """A thread that takes `step` whenever it is woken, and at least every `wait()` seconds.

    A step that raises an Exception does not end it, anything else does. `on_failure` is called, once, with the reason, when `FAILURES_MAX` or more in a row
    have failed and it is not for want of room, descriptors or memory; the thread goes on trying even then. It is called, too, when the thread dies.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], None],
        wait: Callable[[], float],
        on_failure: Callable[[str], None] | None = None,
        pause: Callable[[int], float] = pause_after,
    ) -> None:
        self.name = name
        self.trouble = ""
        """What failed last, and how often in a row; "" while all is well."""
        self._step, self._wait, self._on_failure, self._pause = step, wait, on_failure, pause
        self._wake, self._end = threading.Event(), threading.Event()
        self._failures, self._gave_up = 0, False
        # The thread is a daemon: a step that hangs on a dead disk must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"metaq-{name}", daemon=True)

    @property
    def stopping(self) -> bool:
        return self._end.is_set()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def died(self) -> bool:
        """Whether the thread has ended, and nobody told it to."""
        return self._thread.ident is not None and not self._thread.is_alive() and not self._end.is_set()

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """End the thread; returns when its step is over."""
        self._end.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._end.is_set():
            self._wake.wait(self._wait())
            # Before the step: a wake-up that comes during it leads to another one.
            self._wake.clear()
            if self._end.is_set():
                return
            try:
                self._step()
            except Exception as error:  # noqa: BLE001  told, logged and tried again
                self._failed(error)
                # On `_end` and not on `_wake`: a thread that is woken for each message would try without a pause.
                self._end.wait(self._pause(self._failures))
            except (
                BaseException
            ) as error:  # a SystemExit of a library: nothing more is done here, and nobody would notice
                self._died(error)
                raise
            else:
                if self._failures:
                    log.info("%s works again after %d failures", self.name, self._failures)
                self._failures, self._gave_up, self.trouble = 0, False, ""

    def _died(self, error: BaseException) -> None:
        self.trouble = f"{self.name} has died: {type(error).__name__}: {error}"
        log.critical("%s", self.trouble, exc_info=error)
        if self._on_failure is not None:
            self._on_failure(self.trouble)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self.trouble = f"{self.name} failed {self._failures} times in a row: {type(error).__name__}: {error}"
        if (
            self._failures & (self._failures - 1) == 0
        ):  # the 1st, 2nd, 4th, 8th ... time: a full disk must not fill the log
            expected = isinstance(error, OSError | StoreFull)
            log.error("%s; it is tried again", self.trouble, exc_info=None if expected else error)
        # A shortage is no fault: it passes when somebody makes room or closes connections, and stopping the store would not
        # help.
        if self._failures >= FAILURES_MAX and not (self._gave_up or is_shortage(error)):
            self._gave_up = True
            if self._on_failure is not None:
                self._on_failure(self.trouble)
