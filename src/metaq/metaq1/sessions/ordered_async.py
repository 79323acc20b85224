"""Session factories for asyncio whose producers keep an order."""

from __future__ import annotations

from typing import Self

from metaq.metaq1.producing.ordered_async import OrderedMessageProducer
from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.sessions.ordered import OrderedFactoryBase
from metaq.metaq1.shared.core import CLOSE_SECONDS


class OrderedMetaMessageSessionFactory(OrderedFactoryBase):
    """`metaq.metaq1.OrderedMetaMessageSessionFactory` for asyncio, with `async with`."""

    def create_producer(self, selector: PartitionSelector) -> OrderedMessageProducer:
        """Return a new ordered producer. As `metaq.metaq1.OrderedMetaMessageSessionFactory.create_producer`."""
        backlog = self._shared_backlog()
        return self._adopt(
            lambda closed: OrderedMessageProducer(
                self._core, self._default, selector, closed, backlog=backlog, layouts=self._layouts
            )
        )

    async def shutdown(self) -> None:
        """Close everything. As `metaq.metaq1.OrderedMetaMessageSessionFactory.shutdown`."""
        closing = self._begin_shutdown()
        if closing is not None:
            await self._core.thread.awaited(closing, 2 * CLOSE_SECONDS)
            self._core.callbacks.close()

    close = shutdown

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()
