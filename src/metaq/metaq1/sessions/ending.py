"""How session factories end, for threads and for asyncio."""

from __future__ import annotations

from typing import Self

from metaq.metaq1.sessions.base import SessionFactoryBase
from metaq.metaq1.shared.core import CLOSE_SECONDS


class ThreadSessions(SessionFactoryBase):
    """A session factory for threads."""

    def shutdown(self) -> None:
        """Close connections, producers and consumers. Waits for sends under way, up to 5 s; then they fail with ClientClosed.

        Servers roll back local transactions that have not ended.
        """
        self._core.check_may_wait()
        closing = self._begin_shutdown()
        if closing is not None:
            self._core.thread.run(closing, 2 * CLOSE_SECONDS)
            self._core.callbacks.close()

    close = shutdown
    """The same as `shutdown`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class AsyncSessions(SessionFactoryBase):
    """A session factory for asyncio."""

    async def shutdown(self) -> None:
        """Close everything. As `metaq.metaq1.MetaMessageSessionFactory.shutdown`."""
        closing = self._begin_shutdown()
        if closing is not None:
            await self._core.thread.awaited(closing, 2 * CLOSE_SECONDS)
            self._core.callbacks.close()

    close = shutdown
    """The same as `shutdown`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()
