"""Consumers for asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator
from typing import Any, Self

from metaq.metaq1.consuming.base import ConsumerBase
from metaq.metaq1.consuming.delivery import MessageFilter
from metaq.metaq1.consuming.reading import GET_SECONDS, BrowserBase, MessageIterator
from metaq.metaq1.consuming.subscriptions import (
    MAX_SIZE,
    AsyncListenerFunction,
    ListenerFunction,
    MessageListener,
    subscription,
)
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.model.received import ReceivedMessage
from metaq.metaq1.shared.facade import AsyncFacade


class MessageConsumer(AsyncFacade, ConsumerBase):
    """`metaq.metaq1.MessageConsumer` for asyncio, made by `create_consumer` of a session factory: listeners may be coroutine functions, which run in the loop that called
    `complete_subscribe`."""

    def subscribe(
        self,
        topic: str,
        max_size: int = MAX_SIZE,
        listener: MessageListener | AsyncListenerFunction | ListenerFunction | None = None,
        *,
        message_filter: MessageFilter | None = None,
        executor: concurrent.futures.Executor | None = None,
        auto_ack: bool = True,
    ) -> Self:
        """Take note of a topic. As `metaq.metaq1.MessageConsumer.subscribe`; a plain function is called in the consumer's threads."""
        one = subscription(topic, max_size, listener, message_filter, executor, auto_ack, asyncio_allowed=True)
        self._subscribe(one)
        return self

    async def complete_subscribe(self) -> None:
        """Join the group and begin to consume. As `metaq.metaq1.MessageConsumer.complete_subscribe`."""
        self._check_open()
        with self._lock:
            self._subscriptions.complete()
        loop = asyncio.get_running_loop()
        try:
            await self._core.awaited(lambda: self._begin(loop))
        except BaseException:
            self._subscriptions.is_complete = False
            raise

    async def get(
        self,
        topic: str,
        partition: Partition | str,
        offset: int,
        max_size: int = MAX_SIZE,
        *,
        timeout: float = GET_SECONDS,
    ) -> MessageIterator | None:
        """Return the messages from a byte position on. As `metaq.metaq1.MessageConsumer.get`."""
        work = self._checked_get(topic, partition, offset, max_size, timeout)
        return await self._core.awaited(work)

    def _keep(self, message: ReceivedMessage) -> Any:
        if self._subscriptions.by_topic[message.topic].is_async:
            return asyncio.to_thread(self._local.keep, message)  # a disk is waited for
        return super()._keep(message)


class TopicBrowser(BrowserBase):
    """`metaq.metaq1.TopicBrowser` for asyncio: `async for`. Made by `create_topic_browser` of a session factory."""

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        walk = await self._core.awaited(self._begin)
        try:
            while (block := await self._core.awaited(lambda: self._next(walk))) is not None:
                for message in block:
                    yield message
        finally:
            if not self._core.closed:
                await self._core.awaited(self._end_walk)
