"""Ordered producers for asyncio."""

from __future__ import annotations

from metaq.metaq1.model.message import Message, SendResult
from metaq.metaq1.producing.base import SEND_SECONDS
from metaq.metaq1.producing.ordered import OrderedBase
from metaq.metaq1.shared.facade import AsyncFacade


class OrderedMessageProducer(AsyncFacade, OrderedBase):
    """`metaq.metaq1.OrderedMessageProducer` for asyncio: messages of one task for one partition are stored in their order. Made by
    `OrderedMetaMessageSessionFactory.create_producer`."""

    async def publish(self, topic: str) -> None:
        """Learn the topic's fixed partitions. As `metaq.metaq1.OrderedMessageProducer.publish`."""
        name = self._checked_topic(topic)
        if name not in self._topics:
            await self._core.awaited(lambda: self._publish_ordered(name))

    async def send_message(self, message: Message, *, timeout: float = SEND_SECONDS) -> SendResult:
        """Send and wait until it is stored. As `metaq.metaq1.OrderedMessageProducer.send_message`. The disk is waited for in another
        thread."""
        message, flag, body = self._checked(message, timeout)
        partitions = await self._core.awaited(lambda: self._layout(message.topic))
        partition = self._choose(message, partitions)
        return await self._core.awaited(lambda: self._send_to(message, flag, body, partition, timeout))
