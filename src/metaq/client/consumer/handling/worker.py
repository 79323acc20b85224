"""Threads of `run`, and how one waits for them, whenever Ctrl-C comes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from metaq.client.shared.loop import LOOK_SECONDS


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
        """Interrupted, it may begin all the same: then it says so itself."""
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
        """Wait for its end, if it has begun. Returns False if it is still busy after so many seconds, roughly."""
        while self.begun and not self.ended and seconds > 0:  # in turns: on Windows an endless wait hides Ctrl-C
            if self._running.acquire(timeout=min(seconds, LOOK_SECONDS)):
                self._running.release()
            seconds -= LOOK_SECONDS
        return self.ended or not self.begun
