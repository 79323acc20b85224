"""Consumers over HTTP, for threads; and what those for asyncio share with them."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Collection, Sequence
from typing import Self

from metaq.errors import ConfigError, InvalidMessage
from metaq.metaq1.consuming.base import ConsumerBase
from metaq.metaq1.consuming.consumer import MessageConsumer
from metaq.metaq1.consuming.delivery import MessageFilter
from metaq.metaq1.consuming.subscriptions import MAX_SIZE, ListenerFunction, MessageListener
from metaq.metaq1.http.balance import NamedPartitions
from metaq.metaq1.http.core import HttpCore
from metaq.metaq1.model.message import check_topic_word
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.rebalance.fetching import Balance, Fetching, Held
from metaq.metaq1.storages.local_file import LocalFileOffsetStorage
from metaq.metaq1.storages.storage import OffsetStorage


class HttpConsuming(ConsumerBase):
    """What consumers over HTTP do otherwise: partitions are named, and nobody else is asked."""

    _named: dict[str, tuple[Partition, ...]]

    def _name(self, topic: str, partitions: Collection[Partition | str]) -> None:
        """Take note of a topic's partitions. Raises ConfigError, InvalidMessage, TypeError."""
        check_topic_word(topic)
        if isinstance(partitions, str):
            raise TypeError(f"partitions is {partitions!r}: pass several, such as ['0-0', '0-1']")
        named: Sequence[Partition | str] = tuple(partitions) or (
            [self._config.partition] if self._config.partition else ()
        )
        if not named:
            raise ConfigError(
                f"subscribe({topic!r}): a gateway tells no partitions, so name them: partitions=['0-0', '0-1'], each brokerId-number"
            )
        found = list[Partition]()
        for one in named:
            try:
                partition = Partition.parse(str(one))
            except ValueError as error:
                raise InvalidMessage(str(error)) from None
            if partition.partition < 0:
                raise ConfigError(f"subscribe({topic!r}): {partition} is any partition, and nobody can consume that")
            found.append(partition)
        if "_named" not in self.__dict__:
            self._named = {}
        self._named[topic] = tuple(dict.fromkeys(found))

    def _make_balance(self, fetches: Fetching) -> Balance:
        assert isinstance(self._core, HttpCore), "the factory is one over HTTP"
        wanted = [Held(topic, partition) for topic, named in self._named.items() for partition in named]
        return NamedPartitions(self._core, self._group, fetches, wanted)

    def _default_storage(self) -> OffsetStorage:
        return LocalFileOffsetStorage(self._core.config.offsets_path)


class HttpMessageConsumer(HttpConsuming, MessageConsumer):
    """Gets messages of the partitions that it names, in order within each. Made by `HttpMessageSessionFactory.create_consumer`.

        consumer = factory.create_consumer()
        consumer.subscribe("test", 1024 * 1024, lambda message: print(message.data), partitions=["0-0", "0-1"])
        consumer.complete_subscribe()

    Offsets are kept in the file `offsets_path`, or in the storage that the factory was given. Two consumers of one group that name
    the same partition both get its messages. All else is as with `metaq.metaq1.MessageConsumer`.
    """

    def subscribe(
        self,
        topic: str,
        max_size: int = MAX_SIZE,
        listener: MessageListener | ListenerFunction | None = None,
        *,
        partitions: Collection[Partition | str] = (),
        message_filter: MessageFilter | None = None,
        executor: concurrent.futures.Executor | None = None,
        auto_ack: bool = True,
    ) -> Self:
        """Take note of a topic and of partitions of it; `complete_subscribe` begins. As `metaq.metaq1.MessageConsumer.subscribe`.

        Args: partitions: those to consume; none: the one of `ConsumerConfig.partition`.
        """
        self._name(topic, partitions)
        return super().subscribe(
            topic, max_size, listener, message_filter=message_filter, executor=executor, auto_ack=auto_ack
        )
