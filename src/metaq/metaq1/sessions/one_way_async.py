"""Session factories for asyncio whose producers do not wait for the server."""

from __future__ import annotations

from metaq.clock import SYSTEM, Clock
from metaq.metaq1.config import MetaClientConfig
from metaq.metaq1.producing.one_way import WINDOW, IgnoreMessageProcessor
from metaq.metaq1.producing.one_way_async import AsyncMessageProducer
from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.sessions.factory_async import MetaMessageSessionFactory
from metaq.metaq1.sessions.one_way import SharedBacklog
from metaq.metaq1.shared.links import Pace


class AsyncMetaMessageSessionFactory(MetaMessageSessionFactory):
    """`metaq.metaq1.AsyncMetaMessageSessionFactory` for asyncio, with `async with`."""

    def __init__(self, config: MetaClientConfig, *, pace: Pace | None = None, clock: Clock = SYSTEM) -> None:
        super().__init__(config, pace=pace, clock=clock)
        self._backlog = SharedBacklog()

    def create_async_producer(
        self,
        selector: PartitionSelector | None = None,
        *,
        window: int = WINDOW,
        ignore_processor: IgnoreMessageProcessor | None = None,
    ) -> AsyncMessageProducer:
        """Return a new one-way producer. As `metaq.metaq1.AsyncMetaMessageSessionFactory.create_async_producer`."""
        self._core.check_open()
        backlog = self._backlog.get(self._core, self._default)
        return self._adopt(
            lambda closed: AsyncMessageProducer(
                self._core, self._default, selector, closed, backlog=backlog, window=window, processor=ignore_processor
            )
        )
