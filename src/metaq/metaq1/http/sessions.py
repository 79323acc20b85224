"""Session factories over HTTP, for threads; and what those for asyncio share with them."""

from __future__ import annotations

from typing import cast

from metaq.clock import Clock
from metaq.metaq1.config import ConsumerConfig, MetaClientConfig
from metaq.metaq1.consuming.message_ids import MessageIdCache
from metaq.metaq1.consuming.rejecting import LOCAL, RejectConsumptionHandler
from metaq.metaq1.http.config import GROUP, HttpClientConfig
from metaq.metaq1.http.consuming import HttpMessageConsumer
from metaq.metaq1.http.core import HttpCore
from metaq.metaq1.http.producing import HttpMessageProducer
from metaq.metaq1.sessions.base import SessionFactoryBase
from metaq.metaq1.sessions.ending import ThreadSessions
from metaq.metaq1.shared.core import FactoryCore
from metaq.metaq1.shared.links import ConnectionPace
from metaq.metaq1.storages.storage import OffsetStorage


class HttpSessions(SessionFactoryBase):
    """What factories over HTTP for threads and for asyncio share."""

    def _make_core(self, config: MetaClientConfig, pace: ConnectionPace | None, clock: Clock) -> FactoryCore:
        if not isinstance(config, HttpClientConfig):
            raise TypeError(f"config is {config!r:.100}: pass a HttpClientConfig")
        return HttpCore(config, pace, clock)

    @property
    def _http(self) -> HttpCore:
        return cast("HttpCore", self._core)


class HttpMessageSessionFactory(HttpSessions, ThreadSessions):
    """Makes producers and consumers of MetaQ 1.x over HTTP, which share its connections. One for a whole program is enough.

        with HttpMessageSessionFactory(HttpClientConfig(server_url="http://127.0.0.1:8120")) as factory:
            factory.create_producer().send_message(Message("test", b"hello"), "0-1")

    Leaving the block shuts it down, and all that it has made.
    """

    def create_producer(self) -> HttpMessageProducer:
        """Return a new producer. Raises ClientClosed, ClientForked."""
        return self._adopt(lambda closed: HttpMessageProducer(self._http, closed))

    def create_consumer(
        self,
        config: ConsumerConfig | None = None,
        offset_storage: OffsetStorage | None = None,
        *,
        recover: str | RejectConsumptionHandler = LOCAL,
        message_ids: MessageIdCache | None = None,
    ) -> HttpMessageConsumer:
        """Return a new consumer. As `metaq.metaq1.MetaMessageSessionFactory.create_consumer`.

        Args: config: None: of the group "httpgroup". offset_storage: None: the file `offsets_path`.
        """
        wanted = ConsumerConfig(GROUP) if config is None else config
        return self._consumer(HttpMessageConsumer, wanted, offset_storage, recover, message_ids)
