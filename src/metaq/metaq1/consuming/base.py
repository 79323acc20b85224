"""What the consumers for threads and for asyncio share: subscriptions, and the way from them to fetches."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

from metaq.client.identity.options import check_whole, checked_seconds
from metaq.errors import ClientClosed, ConfigError, InvalidMessage
from metaq.log import when_dead
from metaq.metaq1.config import ConsumerConfig
from metaq.metaq1.consuming.fetches import Fetches
from metaq.metaq1.consuming.handing import Handing
from metaq.metaq1.consuming.message_ids import MessageIdCache
from metaq.metaq1.consuming.reading import MessageIterator, read
from metaq.metaq1.consuming.rejecting import DROP, LocalRecover, Recovery, RejectConsumptionHandler, handler_of
from metaq.metaq1.consuming.subscriptions import Subscription, Subscriptions
from metaq.metaq1.model.message import check_topic_word
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.model.received import ReceivedMessage
from metaq.metaq1.rebalance.fetching import Balance
from metaq.metaq1.rebalance.fixed import FixedBalance
from metaq.metaq1.shared.core import CLOSE_SECONDS, FactoryCore
from metaq.metaq1.shared.facade import FactoryChild
from metaq.metaq1.storages.local_file import LocalFileOffsetStorage
from metaq.metaq1.storages.storage import OffsetStorage
from metaq.worker import Worker

log = logging.getLogger("metaq.client")

STORAGE_SECONDS: Final = 3.0
"""Longest wait of an end for the offset storage to be closed."""


class ConsumerBase(FactoryChild):
    """One consumer of a session factory.

    Args:
        core: of the factory.
        config: of the consumer.
        storage: of offsets; None: ZooKeeper, or a local file with a fixed server.
        recover: what becomes of rejected messages: see `handler_of`.
        ids: of consumed messages; the process's.
        group: under which it registers and saves offsets; a broadcast consumer's is its own.
        closed: called once with the consumer when it is closed.

    Raises TypeError: the configuration is none.
    """

    _end_seconds = CLOSE_SECONDS

    def __init__(
        self,
        core: FactoryCore,
        config: ConsumerConfig,
        storage: OffsetStorage | None,
        recover: str | RejectConsumptionHandler,
        ids: MessageIdCache,
        group: str,
        closed: Callable[[ConsumerBase], object],
    ) -> None:
        if not isinstance(config, ConsumerConfig):
            raise TypeError(f"config is {config!r:.100}: pass a ConsumerConfig")
        self._core, self._config, self._ids, self._group = core, config, ids, group
        self._storage = storage
        self._recover = handler_of(recover)
        self._local = LocalRecover(core.config.recover_path, group)
        self._subscriptions = Subscriptions(group)
        self._tell_closed = closed
        self._lock = threading.Lock()
        self._closed = False
        self._fetches: Fetches | None = None
        self._balance: Balance | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._recovering: tuple[Worker, Handing] | None = None

    @property
    def config(self) -> ConsumerConfig:
        """The settings that it was made with."""
        return self._config

    @property
    def group(self) -> str:
        """Under which it registers and saves offsets."""
        return self._group

    @property
    def consumer_id(self) -> str | None:
        """Its name within the group; None: it has not begun, or a fixed server knows no names."""
        return getattr(self._balance, "consumer_id", None)

    @property
    def subscribed(self) -> frozenset[str]:
        """Topics that were subscribed to."""
        return frozenset(self._subscriptions.by_topic)

    @property
    def partitions(self) -> frozenset[tuple[str, Partition]]:
        """(topic, partition) that it consumes now."""
        return frozenset(getattr(self._balance, "owned", ()))

    @property
    def is_closed(self) -> bool:
        """Whether it was shut down, by itself or with its factory."""
        return self._closed

    @property
    def reject_consumption_handler(self) -> RejectConsumptionHandler | str:
        """What becomes of messages that fail too often: "local", "drop" or a function, as of `create_consumer`. May be set."""
        return self._recover

    @reject_consumption_handler.setter
    def reject_consumption_handler(self, handler: RejectConsumptionHandler | str) -> None:
        self._recover = handler_of(handler)

    # -------------------------------------------------------------- users' calls

    def _check_open(self) -> None:
        self._core.check_open()
        if self._closed:
            raise ClientClosed(f"the consumer of group {self._group} is closed")

    def _subscribe(self, one: Subscription) -> None:
        self._check_open()
        with self._lock:
            self._subscriptions.add(one)

    def _checked_get(
        self, topic: str, partition: Partition | str, offset: int, max_size: int, timeout: float
    ) -> Callable[[], Coroutine[Any, Any, MessageIterator | None]]:
        """Return the work of a get. Raises what it raises before anything is sent."""
        self._check_open()
        check_topic_word(topic)
        check_whole("offset", offset)
        check_whole("max_size", max_size)
        if max_size <= 0 or offset < 0:
            raise ConfigError(
                f"a get of topic {topic} needs an offset of 0 or more and a max_size above 0: {offset}, {max_size}"
            )
        checked_seconds("timeout", timeout, least=0.001)
        if isinstance(partition, str):
            try:
                partition = Partition.parse(partition)
            except ValueError as error:
                raise InvalidMessage(str(error)) from None
        return functools.partial(read, self._core, topic, self._group, partition, offset, max_size, timeout)

    def _reject(self, message: ReceivedMessage) -> Any:
        """In a listener's thread, or in the user's loop: take a message that has failed too often."""
        if callable(self._recover):
            return self._recover(message, self)
        if self._recover == DROP:
            log.warning(
                "a message of topic %s, partition %s, at %d, has failed too often in group %s, and is dropped",
                message.topic, message.partition, message.offset, self._group,
            )  # fmt: skip
            return None
        return self._keep(message)

    def _keep(self, message: ReceivedMessage) -> Any:
        """Keep a message in the local file."""
        self._local.keep(message)
        return None

    # -------------------------------------------------------------- in the loop

    async def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Take partitions and fetch. `loop`: the user's, for coroutine functions."""
        count = self._config.fetch_runner_count
        storage = self._storage or self._default_storage()
        handing = Handing(count, loop)
        by_topic = dict(self._subscriptions.by_topic)
        self._fetches = Fetches(
            self._core, self._config, self._group, by_topic, storage, handing, self._ids, self._reject
        )
        try:
            self._balance = self._make_balance(self._fetches)
            await self._balance.begin(by_topic)
        except BaseException:
            await self._leave()
            raise
        work: list[tuple[Coroutine[Any, Any, None], str]] = [
            (self._fetches.keep_committing(), "offsets are not saved any more")
        ]
        aside, own = Worker("MetaQ 1.x rejected messages"), Handing(self._core.config.recover_thread_count, loop)
        self._recovering = aside, own
        recovery = Recovery(
            self._local, list(by_topic.values()), self._core.config.recover_message_interval, own, aside.run
        )
        work.append((recovery.follow(), "rejected messages are not tried again any more"))
        for coroutine, dead in work:
            task = asyncio.create_task(coroutine, name=f"consumer of {self._group}")
            task.add_done_callback(when_dead(log, f"group {self._group}: {dead}"))
            self._tasks.append(task)

    def _make_balance(self, fetches: Fetches) -> Balance:
        if self._core.config.address is not None:
            return FixedBalance(self._core, self._config, fetches)
        from metaq.metaq1.rebalance.zookeeper import ZookeeperBalance  # kazoo is an extra

        return ZookeeperBalance(self._core, self._config, fetches, group=self._group)

    def _default_storage(self) -> OffsetStorage:
        if self._core.config.address is not None:
            return LocalFileOffsetStorage(self._core.config.offsets_path)
        from metaq.metaq1.storages.zookeeper import ZookeeperOffsetStorage  # kazoo is an extra

        return ZookeeperOffsetStorage(self._core)

    async def _leave(self) -> None:
        """Give everything back."""
        balance, self._balance = self._balance, None
        fetches, self._fetches = self._fetches, None
        if balance is not None:
            await balance.end()
        if fetches is not None:
            try:
                async with asyncio.timeout(STORAGE_SECONDS):
                    await fetches.close()
            except TimeoutError:
                log.warning("the offset storage of group %s does not close within %g s", self._group, STORAGE_SECONDS)
            except Exception:
                log.exception("the offset storage of group %s does not close", self._group)

    async def _end(self) -> None:
        """What comes before the connections are closed. Bounded."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._leave()
        if self._recovering is not None:
            aside, own = self._recovering
            aside.end()
            own.close()
            self._recovering = None
