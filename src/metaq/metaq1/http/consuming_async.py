"""Consumers over HTTP, for asyncio."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Collection
from typing import Self

from metaq.metaq1.consuming.consumer_async import MessageConsumer
from metaq.metaq1.consuming.delivery import MessageFilter
from metaq.metaq1.consuming.subscriptions import MAX_SIZE, AsyncListenerFunction, ListenerFunction, MessageListener
from metaq.metaq1.http.consuming import HttpConsuming
from metaq.metaq1.model.partition import Partition


class HttpMessageConsumer(HttpConsuming, MessageConsumer):
    """`metaq.metaq1.http.HttpMessageConsumer` for asyncio: listeners may be coroutine functions. Made by
    `HttpMessageSessionFactory.create_consumer`."""

    def subscribe(
        self,
        topic: str,
        max_size: int = MAX_SIZE,
        listener: MessageListener | AsyncListenerFunction | ListenerFunction | None = None,
        *,
        partitions: Collection[Partition | str] = (),
        message_filter: MessageFilter | None = None,
        executor: concurrent.futures.Executor | None = None,
        auto_ack: bool = True,
    ) -> Self:
        """Take note of a topic and of partitions of it. As `metaq.metaq1.http.HttpMessageConsumer.subscribe`."""
        self._name(topic, partitions)
        return super().subscribe(
            topic, max_size, listener, message_filter=message_filter, executor=executor, auto_ack=auto_ack
        )
