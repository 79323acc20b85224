"""The broadcast factory for asyncio."""

from __future__ import annotations

from metaq.metaq1.config import ConsumerConfig
from metaq.metaq1.consuming.consumer_async import MessageConsumer
from metaq.metaq1.consuming.message_ids import MessageIdCache
from metaq.metaq1.consuming.rejecting import LOCAL, RejectConsumptionHandler
from metaq.metaq1.sessions.factory_async import MetaMessageSessionFactory
from metaq.metaq1.storages.storage import OffsetStorage


class MetaBroadcastMessageSessionFactory(MetaMessageSessionFactory):
    """`metaq.metaq1.MetaBroadcastMessageSessionFactory` for asyncio."""

    def create_broadcast_consumer(
        self,
        config: ConsumerConfig,
        offset_storage: OffsetStorage | None = None,
        *,
        recover: str | RejectConsumptionHandler = LOCAL,
        message_ids: MessageIdCache | None = None,
    ) -> MessageConsumer:
        """Return a broadcast consumer. As `metaq.metaq1.MetaBroadcastMessageSessionFactory.create_broadcast_consumer`."""
        return self._consumer(MessageConsumer, config, offset_storage, recover, message_ids, broadcast=True)
