"""How fast messages go out, and what is told of it meanwhile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TextIO

from metaq.clock import SYSTEM, Clock

_TOLD_SECONDS = 0.2


class Pace:
    """Lets messages go at a rate, evenly; None: as fast as they can."""

    def __init__(
        self, rate: float | None, clock: Clock = SYSTEM, wait: Callable[[float], object] | None = None
    ) -> None:
        self._rate, self._clock = rate, clock
        self._wait = threading.Event().wait if wait is None else wait
        self._began: float | None = None
        self._gone = 0

    def before_next(self, idle: Callable[[], None] = lambda: None) -> None:
        """Wait until the next message may go; `idle` is called before a wait."""
        if self._rate is None:
            return
        if self._began is None:
            self._began = self._clock.monotonic()
        due = self._began + self._gone / self._rate
        self._gone += 1
        if due <= self._clock.monotonic():
            return
        idle()
        while (left := due - self._clock.monotonic()) > 0:
            self._wait(left)


class Progress:
    """A line on a terminal that is written again and again; in a file or pipe nothing."""

    def __init__(self, total: int | None, verb: str, out: TextIO | None = None, clock: Clock = SYSTEM) -> None:
        self._total, self._verb, self._clock = total, verb, clock
        self._out = sys.stderr if out is None else out
        self._shown = self._out.isatty()
        self._began = self._told = clock.monotonic()
        self._width = 0

    def show(self, done: int) -> None:
        if not self._shown or (now := self._clock.monotonic()) - self._told < _TOLD_SECONDS:
            return
        self._told = now
        of = "" if self._total is None else f" of {self._total:,} ({done / max(1, self._total):.0%})"
        text = f"{done:,}{of} messages {self._verb}, {done / max(now - self._began, 1e-9):,.0f}/s"
        self._out.write(f"\r{text:{self._width}}")
        self._out.flush()
        self._width = len(text)

    def end(self) -> None:
        """Take the line away."""
        if self._width:
            self._out.write(f"\r{'':{self._width}}\r")
            self._out.flush()
            self._width = 0
