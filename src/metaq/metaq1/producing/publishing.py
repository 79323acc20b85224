"""Producers that learn the routes of their topics, for threads and for asyncio."""

from __future__ import annotations

from metaq.metaq1.producing.base import ProducerBase
from metaq.metaq1.shared.facade import AsyncFacade, ThreadFacade


class PublishingProducer(ThreadFacade, ProducerBase):
    """A producer for threads."""

    def publish(self, topic: str) -> None:
        """Learn where the topic's messages go, and connect there. Once for each topic, before the first send; repeating is harmless.

        A topic that no server has is no error here but of the send. Raises ConnectionFailed: ZooKeeper does not answer.
        InvalidMessage, TypeError: no topic. ClientClosed, ClientForked.
        """
        name = self._checked_topic(topic)
        if name not in self._topics:
            self._core.run(lambda: self._publish(name))

    def set_default_topic(self, topic: str) -> None:
        """Publish a topic whose partitions take the messages of topics that are not published; they keep their own topic.

        One for all producers of a factory. Raises ConfigError: it has another; and what `publish` raises.
        """
        name = self._checked_topic(topic)
        self._core.run(lambda: self._set_default(name))


class AsyncPublishingProducer(AsyncFacade, ProducerBase):
    """A producer for asyncio."""

    async def publish(self, topic: str) -> None:
        """Learn where the topic's messages go. As `metaq.metaq1.MessageProducer.publish`."""
        name = self._checked_topic(topic)
        if name not in self._topics:
            await self._core.awaited(lambda: self._publish(name))

    async def set_default_topic(self, topic: str) -> None:
        """Publish the topic for what is not published. As `metaq.metaq1.MessageProducer.set_default_topic`."""
        name = self._checked_topic(topic)
        await self._core.awaited(lambda: self._set_default(name))
