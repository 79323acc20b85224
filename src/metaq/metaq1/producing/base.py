"""What the producers for threads and for asyncio share: topics, the choice of a partition, the way of a message to its server."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable

from metaq.client.identity.options import checked_seconds
from metaq.errors import (
    ClientClosed,
    ClientError,
    ConfigError,
    MetaqError,
    NoRoute,
)
from metaq.metaq1.model.message import Message, SendResult, check_size, check_topic_word
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.producing.futures import SendFuture
from metaq.metaq1.producing.put import Put
from metaq.metaq1.producing.selectors import PartitionSelector, RoundRobinPartitionSelector, chosen
from metaq.metaq1.producing.transactions import LocalTransactionCore, current
from metaq.metaq1.shared.core import FactoryCore
from metaq.metaq1.shared.facade import FactoryChild
from metaq.metaq1.shared.routes import TopicRoute
from metaq.model.transactions.metaq1 import LocalKey

SEND_SECONDS = 3.0
"""Time-out of a send, as in Java."""


class DefaultTopic:
    """The topic whose partitions take the messages of topics that are not published; one of each factory."""

    def __init__(self) -> None:
        self.topic: str | None = None


class SendingBase(FactoryChild):
    """What every producer checks before anything is sent."""

    def _check_open(self) -> None:
        self._core.check_open()
        if self._closed:
            raise ClientClosed("the producer is closed")

    def _checked(self, message: object, timeout: float) -> tuple[Message, int, bytes]:
        """Return a message with its flag and its body on the wire. Raises what a send raises before anything is sent."""
        self._check_open()
        if not isinstance(message, Message):
            raise TypeError(f"message is {message!r:.100}: pass a metaq.metaq1.Message")
        if timeout != SEND_SECONDS:
            checked_seconds("timeout", timeout, least=0.001)
        flag, body = message.encoded()
        check_size(message, body, self._core.config.max_message_bytes)
        return message, flag, body


class ProducerBase(SendingBase):
    """One producer of a session factory.

    Args:
        core: of the factory.
        default: the factory's default topic.
        selector: chooses partitions.
        closed: called once with the producer when it is closed.

    Raises TypeError: the selector is no function.
    """

    def __init__(
        self,
        core: FactoryCore,
        default: DefaultTopic,
        selector: PartitionSelector | None,
        closed: Callable[[ProducerBase], object],
    ) -> None:
        if selector is not None and not callable(selector):
            raise TypeError(f"selector is {selector!r}: pass a function of topic, partitions and message")
        self._core, self._default = core, default
        self._selector = selector or RoundRobinPartitionSelector()
        self._tell_closed = closed
        self._session_id = core.session_id()
        self._numbers = itertools.count(1)
        self._transactions: weakref.WeakSet[LocalTransactionCore] = weakref.WeakSet()
        self._topics: set[str] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def selector(self) -> PartitionSelector:
        """What chooses the partition of each message."""
        return self._selector

    @property
    def published(self) -> frozenset[str]:
        """Topics that were published by this producer."""
        return frozenset(self._topics)

    @property
    def is_closed(self) -> bool:
        """Whether it was shut down, by itself or with its factory."""
        return self._closed

    # -------------------------------------------------------------- topics

    async def _publish(self, topic: str) -> None:
        """In the loop. Once for each topic of a producer."""
        if topic not in self._topics:
            await self._core.routes.publish(topic)
            if topic in self._topics:  # two calls at once
                await self._core.routes.unpublish(topic)
            self._topics.add(topic)

    async def _set_default(self, topic: str) -> None:
        before = self._default.topic
        if before not in {None, topic}:
            raise ConfigError(f"the default topic of this session factory is {before} already, and not {topic}")
        self._default.topic = topic
        try:
            await self._publish(topic)
        except BaseException:
            self._default.topic = before
            raise

    async def _end(self) -> None:
        """In the loop: what comes before the connections are closed. Others may need them on: transactions end here."""
        with self._lock:
            transactions = list(self._transactions)
        for transaction in transactions:
            if transaction.begun:
                with contextlib.suppress(MetaqError):
                    await transaction.rollback()
        topics, self._topics = self._topics, set()
        for topic in topics:
            await self._core.routes.unpublish(topic)

    def _checked_topic(self, topic: object) -> str:
        self._check_open()
        check_topic_word(topic)
        assert isinstance(topic, str), "it is checked"
        return topic

    # -------------------------------------------------------------- sends

    def _route(self, topic: str) -> TopicRoute:
        """Raises NoRoute: neither the topic nor a default topic is published."""
        routes = self._core.routes
        route = routes.route(topic)
        if route is None and self._default.topic is not None:
            route = routes.route(self._default.topic)
        if route is None:
            raise _unpublished(topic)
        return route

    def _submit(self, message: Message, flag: int, body: bytes, timeout: float) -> SendFuture:
        """Any thread: hand a message in that belongs to no transaction."""
        return self._put(message, flag, body, *self._place(message), timeout)

    def _place(self, message: Message) -> tuple[Partition, str]:
        """Return the partition of a message, and its server."""
        route = self._route(message.topic)
        partition = chosen(self._selector, message, route.partitions, tuple(route.addresses))
        return partition, route.addresses[partition.broker_id]

    def _put(
        self, message: Message, flag: int, body: bytes, partition: Partition, address: str, timeout: float
    ) -> SendFuture:
        """Any thread: hand a message in for one partition."""
        put = Put(self._core, message.topic, flag, body, partition, address, timeout)
        self._core.hand_in(put.begin)
        return put.future

    # -------------------------------------------------------------- transactions

    def _new_transaction(self, timeout: float) -> LocalTransactionCore:
        self._check_open()
        key = LocalKey(self._session_id, next(self._numbers))
        transaction = LocalTransactionCore(self, self._core, key, self._session_id, timeout)
        with self._lock:
            self._transactions.add(transaction)
        return transaction

    def _transaction(self) -> LocalTransactionCore | None:
        return current(self)

    def _own_transaction(self) -> LocalTransactionCore:
        """Raises ClientError: none has begun in this thread or task."""
        transaction = current(self)
        if transaction is None:
            self._check_open()
            raise ClientError("no transaction of this producer has begun in this thread or task: begin_transaction()")
        return transaction

    async def _transactional_route(self, transaction: LocalTransactionCore, topic: str) -> TopicRoute:
        """In the loop: where messages of a transaction may go, from now on. Raises NoRoute; ConnectionFailed, RequestTimeout: of a
        fixed server that does not tell."""
        routes = self._core.routes
        route = await routes.transactional(topic)
        if route is None and self._default.topic is not None:
            route = await routes.transactional(self._default.topic)
        if route is None:
            raise _unpublished(topic)
        transaction.routes[topic] = route
        return route

    def _place_in(self, transaction: LocalTransactionCore, message: Message, route: TopicRoute) -> Partition:
        """Return the partition of a message in a transaction: at the broker of those before it. In the sender's thread."""
        with transaction.lock:
            broker_id = transaction.broker_id
            partitions = [one for one in route.partitions if broker_id in (None, one.broker_id)]
            known = tuple(route.addresses) if broker_id is None else (broker_id,)
            # A selector for a fixed server may know the partitions that the server does not tell.
            if not partitions and broker_id in (None, *route.addresses) and self._core.config.address is not None:
                partitions = [Partition(next(iter(route.addresses)), 0)]
            partition = chosen(self._selector, message, partitions, known)
            transaction.broker_id = partition.broker_id
            return partition

    def _started(
        self,
        transaction: LocalTransactionCore,
        message: Message,
        flag: int,
        body: bytes,
        route: TopicRoute,
        timeout: float,
        *,
        awaited: bool,
    ) -> SendFuture:
        """Any thread: hand a message in that belongs to a transaction."""
        partition = self._place_in(transaction, message, route)
        address = route.addresses[partition.broker_id]
        size = len(body)
        self._core.admit(size)
        future = SendFuture(self._core.callbacks, self._core.wakes)

        def transfer(done: concurrent.futures.Future[SendResult]) -> None:
            self._core.done(size)
            if done.cancelled():
                future.set_exception(ClientClosed("the session factory was closed"))
            elif (error := done.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())

        work = self._core.start(
            lambda: transaction.send(message, flag, body, partition, address, timeout, awaited=awaited)
        )
        work.add_done_callback(transfer)
        return future


def _unpublished(topic: str) -> NoRoute:
    return NoRoute(
        f"there is no available partition for topic {topic}: publish it first, or set_default_topic of one that is"
    )
