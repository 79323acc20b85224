"""Waiting for what another process or thread does in its own time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from metaq.clock import SYSTEM
from metaq.errors import MetaqError

Value = TypeVar("Value")

_PAUSE_SECONDS: Final = 0.01


def eventually(probe: Callable[[], Value], timeout: float = 60.0, *, what: str = "") -> Value:
    """Call `probe` until it returns something true, and return that.

    For what is announced nowhere. Assertion errors, refused connections and MetaQ's own errors count as "not yet".
    Raises AssertionError, with the last outcome, after `timeout` seconds; `what` says what was waited for.
    """
    deadline = SYSTEM.monotonic() + timeout
    pause = threading.Event()
    while True:
        outcome: object
        try:
            if value := probe():
                return value
            outcome = value
        except (AssertionError, OSError, MetaqError) as error:
            outcome = error
        # Looked at after the probe: on a slow machine it is still called at least once.
        if SYSTEM.monotonic() > deadline:
            raise AssertionError(f"{what or 'the condition'} did not come true in {timeout} s; last: {outcome!r}")
        pause.wait(_PAUSE_SECONDS)
