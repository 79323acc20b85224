"""Session factories over HTTP, for asyncio."""

from __future__ import annotations

from metaq.metaq1.config import ConsumerConfig
from metaq.metaq1.consuming.message_ids import MessageIdCache
from metaq.metaq1.consuming.rejecting import LOCAL, RejectConsumptionHandler
from metaq.metaq1.http.config import GROUP
from metaq.metaq1.http.consuming_async import HttpMessageConsumer
from metaq.metaq1.http.producing_async import HttpMessageProducer
from metaq.metaq1.http.sessions import HttpSessions
from metaq.metaq1.sessions.ending import AsyncSessions
from metaq.metaq1.storages.storage import OffsetStorage


class HttpMessageSessionFactory(HttpSessions, AsyncSessions):
    """`metaq.metaq1.http.HttpMessageSessionFactory` for asyncio, with `async with`."""

    def create_producer(self) -> HttpMessageProducer:
        """Return a new producer. As `metaq.metaq1.http.HttpMessageSessionFactory.create_producer`."""
        return self._adopt(lambda closed: HttpMessageProducer(self._http, closed))

    def create_consumer(
        self,
        config: ConsumerConfig | None = None,
        offset_storage: OffsetStorage | None = None,
        *,
        recover: str | RejectConsumptionHandler = LOCAL,
        message_ids: MessageIdCache | None = None,
    ) -> HttpMessageConsumer:
        """Return a new consumer. As `metaq.metaq1.http.HttpMessageSessionFactory.create_consumer`."""
        wanted = ConsumerConfig(GROUP) if config is None else config
        return self._consumer(HttpMessageConsumer, wanted, offset_storage, recover, message_ids)
