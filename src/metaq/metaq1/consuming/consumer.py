"""Consumers for threads."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from typing import Self

from metaq.metaq1.consuming.base import ConsumerBase
from metaq.metaq1.consuming.delivery import MessageFilter
from metaq.metaq1.consuming.reading import GET_SECONDS, BrowserBase, MessageIterator
from metaq.metaq1.consuming.subscriptions import MAX_SIZE, ListenerFunction, MessageListener, subscription
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.model.received import ReceivedMessage
from metaq.metaq1.shared.facade import ThreadFacade


class MessageConsumer(ThreadFacade, ConsumerBase):
    """Gets messages of its group's share of partitions, in order within each partition. Made by `create_consumer` of a session factory.

        consumer = factory.create_consumer(ConsumerConfig("group"))
        consumer.subscribe("test", 1024 * 1024, lambda message: print(message.data))
        consumer.complete_subscribe()

    A message whose listener raises is delivered again after a pause, before all others of its partition; after `max_fetch_retries`
    it is rejected. Each message is delivered at least once.

    `shutdown` waits for listeners that run, saves offsets and gives the partitions back. It is bounded: a listener that does not
    return within some seconds is left alone, and what it had is delivered to others.
    """

    def subscribe(
        self,
        topic: str,
        max_size: int = MAX_SIZE,
        listener: MessageListener | ListenerFunction | None = None,
        *,
        message_filter: MessageFilter | None = None,
        executor: concurrent.futures.Executor | None = None,
        auto_ack: bool = True,
    ) -> Self:
        """Take note of a topic; `complete_subscribe` begins. Calls for one partition never overlap.

        Args:
            max_size: bytes that a fetch asks for, 1 MiB by default.
            listener: function of a `ReceivedMessage`, or an object with `receive_messages`.
            message_filter: function of group and message; those for which it says no count as consumed.
            executor: calls the listener in place of the consumer's `fetch_runner_count` threads.
            auto_ack: False: the listener calls `message.ack()` or `message.rollback()` for all since the last acknowledged one.

        Raises ClientError: the topic is subscribed to, or complete_subscribe was called. TypeError, ConfigError, InvalidMessage,
        ClientClosed, ClientForked.
        """
        one = subscription(topic, max_size, listener, message_filter, executor, auto_ack, asyncio_allowed=False)
        self._subscribe(one)
        return self

    def complete_subscribe(self) -> None:
        """Join the group and begin to consume. To be called once. Returns when partitions are there, or are waited for.

        Raises ConnectionFailed: ZooKeeper or the fixed server does not answer; it may be called again then. ConfigError: another
        session has this consumer id (`refuse_shared_consumer_id`). ClientError: it was called, or nothing is subscribed to.
        """
        self._check_open()
        self._core.check_may_wait()
        with self._lock:
            self._subscriptions.complete()
        try:
            self._core.run(lambda: self._begin(None))
        except BaseException:
            self._subscriptions.is_complete = False
            raise

    def get(
        self,
        topic: str,
        partition: Partition | str,
        offset: int,
        max_size: int = MAX_SIZE,
        *,
        timeout: float = GET_SECONDS,
    ) -> MessageIterator | None:
        """Return the messages from a byte position on, up to `max_size` bytes; None: there is nothing (yet).

        Of a fixed server only the partition's number matters. Raises NoRoute: the partition has no server; ConnectionFailed;
        RequestTimeout: no answer within `timeout` (10) seconds; BrokerError, RemoteProtocolError; ConfigError, InvalidMessage,
        ClientClosed, ClientForked.
        """
        work = self._checked_get(topic, partition, offset, max_size, timeout)
        return self._core.run(work)


class TopicBrowser(BrowserBase):
    """Iterate over all messages of a topic, partition by partition. Offsets of no group are touched. Made by
    `create_topic_browser` of a session factory.

        for message in factory.create_topic_browser("test"):
            print(message.partition, message.offset, message.data)

    Iterating raises ConnectionFailed, RequestTimeout, BrokerError, RemoteProtocolError, ClientClosed.
    """

    def __iter__(self) -> Iterator[ReceivedMessage]:
        walk = self._core.run(self._begin)
        try:
            while (block := self._core.run(lambda: self._next(walk))) is not None:
                yield from block
        finally:
            if not self._core.closed:
                self._core.run(self._end_walk)
