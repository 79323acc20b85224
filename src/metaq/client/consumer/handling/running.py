"""One call of `run`: what it was asked to do, checked before the first message, and the threads that do it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from metaq.client.consumer.handling.handlers import check_handler, name_of
from metaq.client.identity.options import check_whole
from metaq.client.shared.loop import LOOK_SECONDS
from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.client.consumer.handling.processes import Worker


class Job(Struct, frozen=True):
    """One call of `run`."""

    handler: Any
    workers: int
    """Threads or tasks."""
    batch: int | None
    """How many messages the handler gets at most, in a list; None: it gets one, as it is."""
    pickled: bytes | None
    """The handler for a process per worker."""

    @classmethod
    def of(cls, handler: object, workers: int, batch: int | None, processes: int, *, awaited: bool) -> Self:
        """Check what `run` was given. `awaited`: the handler is asynchronous and runs here.

        Raises TypeError: the handler cannot be used; ConfigError.
        """
        taking = "one message" if batch is None else "a list of messages"
        check_handler(handler, awaited=awaited and not processes, taking=taking)
        what = "tasks" if awaited else "threads"
        for name, number in ((what, workers), ("batch", 1 if batch is None else batch), ("processes", processes)):
            check_whole(name, number)
        if workers < 1:
            raise ConfigError(f"{what}={workers}: need at least 1")
        if batch is not None and batch < 1:
            raise ConfigError(f"batch={batch}: need at least 1, or None for one message that is no list")
        if processes < 0 or (processes and workers > 1):
            raise ConfigError(f"processes={processes} with {what}={workers}: need one of the two, at least 1")
        if not processes:
            return cls(handler, workers, batch, None)
        from metaq.client.consumer.handling.processes import pickled  # Only who needs it pays for multiprocessing.

        return cls(handler, processes, batch, pickled(handler))

    @property
    def name(self) -> str:
        return name_of(self.handler)

    def worker(self) -> Worker:
        """A process for one worker."""
        from metaq.client.consumer.handling.processes import Worker

        assert self.pickled is not None
        return Worker(self.pickled, f"metaq-{self.name}")

    def hand_size(self, worker: Worker, *, orderly: bool) -> int:
        """How many messages one worker takes at a time."""
        if self.batch is not None:
            return self.batch
        return 1 if orderly else worker.slice


class WorkerThread(threading.Thread):
    """A thread of `run`. Whoever waits for it uses `wait`.

    What threading has for that fails an interrupted program. `join`, interrupted, takes the thread for ended in Python
    3.11, and what it had in hand would be left behind. A `Condition` that is interrupted just when it has got its lock
    keeps it, also the one inside an `Event`: then the thread that would tell of its end waits for ever. A lock by itself
    does neither.
    """

    def __init__(self, work: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._running = threading.Lock()
        self._running.acquire()
        self.begun = self.ended = False

    def start(self) -> None:
        """Start the thread. Interrupted, it may have begun all the same: then `run` sets `begun`."""
        super().start()
        self.begun = True

    def run(self) -> None:
        self.begun = True
        try:
            self._work()
        finally:
            self.ended = True
            self._running.release()

    def wait(self, seconds: float = math.inf) -> bool:
        """Wait for its end, if it has begun. Returns False if it is still busy after about so many seconds."""
        while self.begun and not self.ended and seconds > 0:  # in turns: on Windows an endless wait hides Ctrl-C
            if self._running.acquire(timeout=min(seconds, LOOK_SECONDS)):
                self._running.release()
            seconds -= LOOK_SECONDS
        return self.ended or not self.begun
