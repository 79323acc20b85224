"""How producers and consumers of a factory end, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from metaq.metaq1.shared.core import FactoryCore


class FactoryChild:
    """What a producer or consumer of a factory has, whichever facade it is."""

    _core: FactoryCore
    _closed: bool
    _tell_closed: Callable[[Any], object]
    _end_seconds: float | None = None
    """Longest wait for `_end`; None: it bounds itself."""

    async def _end(self) -> None:
        """In the loop: what comes before the connections are closed."""
        raise NotImplementedError

    def _may_end(self) -> bool:
        """It is open, and this is no child of the process that made it."""
        return not self._closed and self._core.in_own_process

    def _leave_factory(self) -> bool:
        """Take no more calls. Return whether there is anything to do in the loop: a factory that is closed has done it."""
        self._closed = True
        self._tell_closed(self)
        return not self._core.closed


class ThreadFacade(FactoryChild):
    """A producer or consumer for threads, also as a block."""

    def shutdown(self) -> None:
        """End it; the factory goes on, and closes connections that nobody else needs. What is under way still ends. Harmless twice.

        Raises ClientError: in a callback that must not wait.
        """
        if self._may_end():
            self._core.check_may_wait()
            if self._leave_factory():
                self._core.run(self._end, self._end_seconds)

    close = shutdown
    """The same as `shutdown`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class AsyncFacade(FactoryChild):
    """A producer or consumer for asyncio, also as a block."""

    async def shutdown(self) -> None:
        """End it; the factory goes on, and closes connections that nobody else needs. What is under way still ends. Harmless twice."""
        if self._may_end() and self._leave_factory():
            await self._core.awaited(self._end, self._end_seconds)

    close = shutdown
    """The same as `shutdown`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()
