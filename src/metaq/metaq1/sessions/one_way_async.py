"""Session factories for asyncio whose producers do not wait for the server."""

from __future__ import annotations

from metaq.metaq1.producing.one_way import WINDOW, IgnoreMessageProcessor
from metaq.metaq1.producing.one_way_async import AsyncMessageProducer
from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.sessions.factory_async import MetaMessageSessionFactory
from metaq.metaq1.sessions.one_way import OneWaySessions


class AsyncMetaMessageSessionFactory(OneWaySessions, MetaMessageSessionFactory):
    """`metaq.metaq1.AsyncMetaMessageSessionFactory` for asyncio, with `async with`."""

    def create_async_producer(
        self,
        selector: PartitionSelector | None = None,
        *,
        window: int = WINDOW,
        ignore_processor: IgnoreMessageProcessor | None = None,
    ) -> AsyncMessageProducer:
        """Return a new one-way producer. As `metaq.metaq1.AsyncMetaMessageSessionFactory.create_async_producer`."""
        return self._one_way(AsyncMessageProducer, selector, window, ignore_processor)
