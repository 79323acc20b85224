"""A moment between what was stored before and what is stored after it, for brokers that keep milliseconds."""

from __future__ import annotations

import time

from tests.support import eventually


def a_moment() -> float:
    """Seconds since the epoch; more than a millisecond after what came before the call, and before what comes after it."""
    began = time.time()
    eventually(lambda: time.time() > began + 0.002)
    moment = time.time()
    eventually(lambda: time.time() > moment + 0.002)
    return moment
