"""Keys that a person presses while a command runs."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from typing import Final

_SEQUENCE: Final = re.compile(r"\x1b(\[[0-9;]*[A-Za-z~]|O.)?")
"""What a terminal sends for arrows and the like."""


@contextlib.contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Give a function that waits so many seconds for a key of the terminal, and returns it; empty if none came.

    Where standard input is no terminal, no key comes. The terminal is as before at the end, whatever the end is.
    """
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):
        yield _no_key
        return

    waiting: list[str] = []

    def pressed(seconds: float) -> str:
        if not waiting and select.select([terminal], [], [], seconds)[0]:
            data = os.read(terminal, 64)
            if not data:  # the terminal is gone: the signal of that comes, or a pause ends the turn
                return _no_key(seconds)
            waiting.extend(_SEQUENCE.sub("", data.decode("ascii", "replace")))
        return waiting.pop(0) if waiting else ""

    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _no_key(seconds: float) -> str:
    threading.Event().wait(seconds)
    return ""
