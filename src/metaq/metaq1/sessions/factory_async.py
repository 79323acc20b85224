"""Session factories for asyncio."""

from __future__ import annotations

from metaq.metaq1.config import ConsumerConfig
from metaq.metaq1.consuming.consumer_async import MessageConsumer, TopicBrowser
from metaq.metaq1.consuming.message_ids import MessageIdCache
from metaq.metaq1.consuming.reading import BROWSER_BYTES, BROWSER_SECONDS
from metaq.metaq1.consuming.rejecting import LOCAL, RejectConsumptionHandler
from metaq.metaq1.model.message import check_topic_word
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.producing.producer_async import MessageProducer
from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.sessions.ending import AsyncSessions
from metaq.metaq1.storages.storage import OffsetStorage


class MetaMessageSessionFactory(AsyncSessions):
    """`metaq.metaq1.MetaMessageSessionFactory` for asyncio, with `async with`."""

    def create_producer(self, selector: PartitionSelector | None = None) -> MessageProducer:
        """Return a new producer. As `metaq.metaq1.MetaMessageSessionFactory.create_producer`."""
        return self._adopt(lambda closed: MessageProducer(self._core, self._default, selector, closed))

    def create_consumer(
        self,
        config: ConsumerConfig,
        offset_storage: OffsetStorage | None = None,
        *,
        recover: str | RejectConsumptionHandler = LOCAL,
        message_ids: MessageIdCache | None = None,
    ) -> MessageConsumer:
        """Return a new consumer. As `metaq.metaq1.MetaMessageSessionFactory.create_consumer`."""
        return self._consumer(MessageConsumer, config, offset_storage, recover, message_ids)

    def create_topic_browser(
        self, topic: str, max_size: int = BROWSER_BYTES, *, timeout: float = BROWSER_SECONDS
    ) -> TopicBrowser:
        """Return what iterates over all messages of a topic. As `metaq.metaq1.MetaMessageSessionFactory.create_topic_browser`."""
        self._core.check_open()
        return TopicBrowser(self._core, topic, max_size, timeout)

    async def get_partitions(self, topic: str) -> list[Partition]:
        """Return the partitions of a topic. As `metaq.metaq1.MetaMessageSessionFactory.get_partitions`."""
        check_topic_word(topic)
        return await self._core.awaited(lambda: self._partitions(topic))

    async def get_stats(self, item: str | None = None, *, broker: str | None = None) -> dict[str, dict[str, str]]:
        """Return figures of servers. As `metaq.metaq1.MetaMessageSessionFactory.get_stats`."""
        self._checked_item(item)
        return await self._core.awaited(lambda: self._stats(item, broker))
