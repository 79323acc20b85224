"""Producers over HTTP, for asyncio."""

from __future__ import annotations

from metaq.metaq1.http.producing import HttpProducing
from metaq.metaq1.model.message import Message, SendResult
from metaq.metaq1.model.partition import RANDOM_PARTITION, Partition
from metaq.metaq1.producing.futures import SendFuture
from metaq.metaq1.shared.facade import AsyncFacade


class HttpMessageProducer(AsyncFacade, HttpProducing):
    """`metaq.metaq1.http.HttpMessageProducer` for asyncio. Made by `HttpMessageSessionFactory.create_producer`."""

    async def send_message(
        self, message: Message, partition: Partition | str = RANDOM_PARTITION, *, timeout: float | None = None
    ) -> SendResult:
        """Send and wait until it is stored. As `metaq.metaq1.http.HttpMessageProducer.send_message`."""
        return await self._submit(message, partition, timeout)

    def submit(
        self, message: Message, partition: Partition | str = RANDOM_PARTITION, *, timeout: float | None = None
    ) -> SendFuture:
        """Send without waiting; the future can be awaited. As `metaq.metaq1.http.HttpMessageProducer.submit`."""
        return self._submit(message, partition, timeout)
