"""Threads for users' callbacks, which may block there without delaying heartbeats.

Threads are made when there is something to call, up to a number, and are daemons: a function that never returns keeps no
process from its end. Who closes waits for what was to be called before.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger("metaq.client")

Job = Callable[[], None]


class CallbackThreads:
    """Runs callbacks in up to `count` threads; with 0, in the calling thread."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._jobs: queue.SimpleQueue[tuple[int, Job] | None] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._unfinished: set[int] = set()
        self._threads: set[int | None] = set()
        self._closed = False

    def do(self, job: Job) -> None:
        """Queue `job`, which raises nothing. Jobs begin in the order of the calls."""
        if not self._count:
            job()
            return
        with self._changed:
            number = next(self._numbers)
            self._unfinished.add(number)
            self._jobs.put((number, job))
            # As many threads as callbacks at the same time, at most: a client without callbacks has none.
            if len(self._threads) < min(self._count, len(self._unfinished)):
                thread = threading.Thread(target=self._work, name="metaq-callback", daemon=True)
                thread.start()
                self._threads.add(thread.ident)

    def _work(self) -> None:
        while (taken := self._jobs.get()) is not None:
            number, job = taken
            try:
                job()
            except BaseException:  # SystemExit: the next job needs the thread.
                log.exception("a function of the application's wanted to end the thread that called it")
            finally:
                with self._changed:
                    self._unfinished.discard(number)
                    self._changed.notify_all()

    def wait(self, timeout: float | None) -> bool:
        """Wait until all jobs that came before are done. Returns False after `timeout` seconds. Called by a job it
        returns at once: it would wait for itself."""
        with self._changed:
            if threading.get_ident() in self._threads:
                return True
            # Only what is here now: with steady sends it would otherwise never be empty.
            before = set(self._unfinished)
            return self._changed.wait_for(lambda: not before & self._unfinished, timeout)

    def close(self) -> None:
        """End the threads when the jobs are done. Later jobs run in the calling thread."""
        with self._changed:
            self._count = 0
            for _ in self._threads:
                self._jobs.put(None)
