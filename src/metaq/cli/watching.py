"""`--watch`: a command that looks again and again, and what has changed a second since its last look."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable
from typing import Annotated, TypeVar

import typer

from metaq.clock import SYSTEM, Clock
from metaq.errors import MetaqError

T = TypeVar("T")

Watch = Annotated[bool, typer.Option("--watch", "-w", help="print again and again, until Ctrl-C")]
Interval = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="seconds between two updates")]
INTERVAL_DEFAULT = 2.0


class Rates:
    """Growth of numbers a second since the last look."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._last: dict[Hashable, tuple[float, int]] = {}

    def rate(self, key: Hashable, number: int) -> float | None:
        """Return the growth of a number a second; None at the first look, or if it is smaller than it was."""
        now = self._clock.monotonic()
        before = self._last.get(key)
        self._last[key] = now, number
        if before is None or number < before[1] or now <= before[0]:
            return None
        return (number - before[1]) / (now - before[0])


def repeat(
    look: Callable[[], T], show: Callable[[T], None], *, watch: bool, seconds: float, clear: bool = True
) -> None:
    """Show what `look` finds, with `watch` every so many seconds, with `clear` each time on an empty screen.

    Once something was shown, a look that fails is told on standard error, and the next one may do.
    """
    shown, pause = False, threading.Event()
    while True:
        try:
            found = look()
        except MetaqError as error:
            if not shown:
                raise
            print(f"metaq: {error}", file=sys.stderr)
        else:
            if watch and clear and sys.stdout.isatty():
                print("\x1b[H\x1b[2J", end="")
            show(found)
            sys.stdout.flush()
            shown = True
        if not watch:
            return
        pause.wait(seconds)


def rate_text(rate: float | None) -> str:
    """Return a rate for people; empty for None."""
    return "" if rate is None else f"{rate:,.1f}"
