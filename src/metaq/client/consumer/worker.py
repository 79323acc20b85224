"""Threads of `run`, and how one waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable


class WorkerThread(threading.Thread):
    """A thread of `run`. Whoever waits for it waits for `ended`.

    `join` would not do: interrupted by Ctrl-C, Python 3.11 takes the thread for ended (its `_wait_for_tstate_lock` finds
    the lock held, as it is while the thread runs), and what the thread had in hand would be left behind.
    """

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            self._work()
        finally:
            self.ended.set()
