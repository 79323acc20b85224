"""Questions that are answered later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Asking:
    """Runs coroutines, and tells their results by callback. Used in one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        """The loop holds tasks weakly: without this one may be collected while it runs."""

    def tell(self, work: Coroutine[Any, Any, T | None], tell: Callable[[T | None], None]) -> None:
        """Call `tell` with the result of `work`, later; with None if it has failed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def told(task: asyncio.Task[T | None]) -> None:
            self._tasks.discard(task)
            tell(None if task.cancelled() or task.exception() is not None else task.result())

        task.add_done_callback(told)
