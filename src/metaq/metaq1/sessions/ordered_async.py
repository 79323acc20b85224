"""Session factories for asyncio whose producers keep an order."""

from __future__ import annotations

from metaq.metaq1.producing.ordered_async import OrderedMessageProducer
from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.sessions.ending import AsyncSessions
from metaq.metaq1.sessions.ordered import OrderedFactoryBase


class OrderedMetaMessageSessionFactory(AsyncSessions, OrderedFactoryBase):
    """`metaq.metaq1.OrderedMetaMessageSessionFactory` for asyncio, with `async with`."""

    def create_producer(self, selector: PartitionSelector) -> OrderedMessageProducer:
        """Return a new ordered producer. As `metaq.metaq1.OrderedMetaMessageSessionFactory.create_producer`."""
        return self._ordered(OrderedMessageProducer, selector)
