"""Restart of streaming queries on a machine that is too busy to start a Python within Spark's ten seconds.

Spark starts a Python process beside the driver for each Python streaming source, and gives it ten seconds to connect; no
setting changes that. If it takes longer, the query fails before it has read anything. Nothing is lost: a restarted query
continues from its checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

_LOG = logging.getLogger(__name__)

Outcome = TypeVar("Outcome")

# With one core for twelve programs one start in several is quick enough: ten tries were too few.
STARTS_MAX: Final = 30
TOO_SLOW: Final = "Python worker failed to connect back"
"""Text of Spark's error."""


def run_through(start: Callable[[], Any], watch: Callable[[Any], Outcome]) -> Outcome:
    """Start a query and watch it to its end; again, at most STARTS_MAX times in all, if its Python started too slowly.

    Args:
        start: starts the query, with the same checkpoint each time.
        watch: waits for the query and raises what it failed with.

    Returns: what `watch` returned. Raises: what `start` or `watch` raised.
    """
    for _ in range(STARTS_MAX - 1):
        try:
            return watch(start())
        except Exception as fault:
            if TOO_SLOW not in str(fault):
                raise
            _LOG.warning(
                "Spark's Python did not start within ten seconds: this machine is busy; starting the query again"
            )
    return watch(start())
